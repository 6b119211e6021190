"""The attacks of an evaluation: curves, attacked images, and the search for hidden gradients."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from mereo.inference.answers import Answers, collect_answers
from mereo.robustness.attacks import ATTACKS, attack
from mereo.robustness.curve_pictures import draw_attacked, draw_curves
from mereo.robustness.curves import Point, answer, attack_curve, check_epsilons
from mereo.robustness.losses import LOSSES
from mereo.robustness.masking import SLACK, Finding, look_for_masking, masking_parts
from mereo.robustness.plan import Plan, part_of
from mereo.robustness.progress import Stages
from mereo.robustness.subjects import Subject

SHOWN_IMAGES, SHOWN_EPSILONS = 6, 4


def measure_attacks(
    subjects: Sequence[Subject], answers: list[Answers], plan: Plan, out: Path, stages: Stages,
    models: dict[str, dict[str, Any]],
) -> None:  # fmt: skip
    """Attack every network, look for hidden gradients, draw the pictures, and add the figures to `models`.

    Args:
        subjects: what is attacked.
        answers: what each said unattacked.
        plan: which attacks, and how.
        out: folder of the pictures.
        stages: tells how far it is.
        models: the figures of each network by its name.
    """
    parts = [part_of(s, a, plan.attack_limit, plan.seed) for s, a in zip(subjects, answers, strict=True)]
    clean = [collect_answers(p.model, p.split, batch_size=plan.batch_size) for p in parts]
    epsilons = check_epsilons(plan.epsilons)
    panels: dict[str, tuple[str, dict[str, list[Point]]]] = {}
    for name in plan.attacks:
        curves = {}
        for part, said in zip(parts, clean, strict=True):
            with stages.stage(f"{part.name}: attack {name}", int(said.right.sum()) * (len(epsilons) - 1)) as done:
                points = attack_curve(
                    name, part.model, part.split, said, epsilons, steps=plan.steps_of(name), restarts=plan.restarts,
                    loss=plan.loss, seed=plan.seed, batch_size=plan.batch_size, progress=done,
                )  # fmt: skip
            curves[part.name] = points
            models[part.name].setdefault("attacks", {})[name] = [p.to_dict() for p in points]
        steps = plan.steps_of(name)
        detail = "" if name == "fgsm" else f", {steps} {'queries' if name == 'square' else 'steps'}"
        panels[f"{written(name)}{detail}"] = "epsilon (largest change of a pixel in [0, 1])", curves
    draw_curves(panels, out / "attacks.png", 1 / len(subjects[0].class_names))
    if len(epsilons) < 2:
        return
    for part, said in zip(parts, clean, strict=True):
        curves_of = {panel: curves[part.name] for panel, (_, curves) in panels.items()}
        strongest = min(plan.attacks, key=lambda name: sum(p["accuracy"] for p in models[part.name]["attacks"][name]))
        _draw_attacked(part, said, plan, strongest, epsilons[1:], out / part.name / "attacked.png")
        models[part.name]["attacked_images"] = len(part.split)
        if plan.masking_images:
            found = _masking(part, said, parts, plan, curves_of, stages)
            models[part.name]["masking"] = found


def written(name: str) -> str:
    """An attack's name as people write it."""
    return "Square" if name == "square" else name.upper()


def telling_epsilon(curves: Sequence[Sequence[Point]]) -> float:
    """The epsilon above 0 at which the strongest attack leaves nearest to half of what is judged right unattacked."""
    worst = [min(points, key=lambda p: p.right) for points in zip(*curves, strict=True)]
    return min(worst[1:], key=lambda p: abs(p.right - worst[0].right / 2)).amount


def rising_curves(curves: dict[str, list[Point]]) -> Finding:
    """More freedom for the attacker should never help the network."""
    rises = {name: max(b.accuracy - a.accuracy for a, b in pairwise(points)) for name, points in curves.items()}
    words = "Largest rise of accuracy from one epsilon to the next: "
    words += ", ".join(f"{name} {100 * max(rise, 0.0):.1f} points" for name, rise in rises.items()) + "."
    return Finding("accuracy over epsilon", rises, max(rises.values()) > SLACK, words)


def _masking(
    part: Subject, said: Answers, parts: Sequence[Subject], plan: Plan, curves: dict[str, list[Point]], stages: Stages
) -> dict[str, Any]:
    epsilon = telling_epsilon(list(curves.values()))
    few = part_of(part, said, plan.masking_images, plan.seed, said.right)
    others = {
        p.name: p.model
        for p in parts
        if p.name != part.name and p.model.image_shape == part.model.image_shape and p.class_names == part.class_names
    }
    height, width = part.model.image_shape[1:]
    images, labels, *_ = few.split.batch(
        torch.arange(len(few.split)), crop=(height, width), device=next(part.model.parameters()).device
    )
    losses = len(LOSSES) - (part.model.num_classes < 3)
    with stages.stage(f"{part.name}: looking for hidden gradients", masking_parts(losses, len(others))) as done:
        found = look_for_masking(
            part.model,
            images,
            labels,
            epsilon,
            steps=plan.steps,
            loss=plan.loss,
            others=others,
            seed=plan.seed,
            done=done,
        )
    found.append(rising_curves(curves))
    return {"epsilon": epsilon, "images": len(images), "checks": [f.to_dict() for f in found]}


def _draw_attacked(part: Subject, said: Answers, plan: Plan, name: str, epsilons: Sequence[float], path: Path) -> None:
    """A few images that are judged right, of different classes where possible, under the attack of that name."""
    few = part_of(part, said, SHOWN_IMAGES, plan.seed, said.right)
    if not len(few.split):
        return
    height, width = part.model.image_shape[1:]
    indices = torch.arange(min(SHOWN_IMAGES, len(few.split)))
    images, labels, *_ = few.split.batch(indices, crop=(height, width), device=next(part.model.parameters()).device)
    names, rows = part.class_names, []
    # Evenly spread, the largest always among them.
    step = -(-len(epsilons) // SHOWN_EPSILONS)
    for epsilon in list(epsilons)[::-1][::step][::-1]:
        changed = attack(
            name, part.model, images, labels, epsilon, steps=plan.steps_of(name), restarts=plan.restarts,
            loss=plan.loss, seed=plan.seed,
        )  # fmt: skip
        predicted = answer(part.model, changed)
        rows.append((epsilon, changed.cpu(), [names[c] for c in predicted.tolist()], (predicted == labels).tolist()))
    chosen = f", the strongest of {len(plan.attacks)} attacks" if len(plan.attacks) > 1 else ""
    title = f"{part.name} under {written(name)} ({ATTACKS[name].paper}){chosen}"
    draw_attacked(images.cpu(), rows, [names[c] for c in labels.tolist()], title, path)
