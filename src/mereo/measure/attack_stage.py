"""The attacks of an evaluation: curves, attacked images, and checks for gradient masking."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from mereo.inference.answers import Answers, collect_answers
from mereo.measure.attacks.attack import ATTACKS, attack, check_attack
from mereo.measure.attacks.losses import losses_of
from mereo.measure.attacks.masking import SLACK, MaskingCheck, look_for_masking, masking_parts
from mereo.measure.conclusions import is_at_chance
from mereo.measure.curve_pictures import draw_attacked, draw_curves
from mereo.measure.curves import Point, answer, attack_curve, check_epsilons
from mereo.measure.evaluation_plan import Plan, part_of
from mereo.measure.trained_models import TrainedModel
from mereo.runtime.progress import Reporter

SHOWN_IMAGES, SHOWN_EPSILONS = 6, 4


def measure_attacks(
    trained: Sequence[TrainedModel], answers: list[Answers], plan: Plan, out: Path, reporter: Reporter,
    models: dict[str, dict[str, Any]],
) -> None:  # fmt: skip
    """Attack every network, check for gradient masking, draw the pictures, and add the numbers to `models`.

    Args:
        trained: the networks to attack.
        answers: the predictions of each before the attack.
        plan: which attacks, and how.
        out: folder of the pictures.
        reporter: shows the progress.
        models: the numbers of each network by its name.
    """
    parts = [part_of(s, a, plan.attack_limit, plan.seed) for s, a in zip(trained, answers, strict=True)]
    clean = [collect_answers(p.model, p.split, batch_size=plan.batch_size) for p in parts]
    epsilons = check_epsilons(plan.epsilons)
    panels: dict[str, tuple[str, dict[str, list[Point]]]] = {}
    for name in plan.attacks:
        curves = {}
        for part, unattacked in zip(parts, clean, strict=True):
            with reporter.stage(
                f"{part.name}: attack {name}", int(unattacked.correct.sum()) * (len(epsilons) - 1)
            ) as done:
                points = attack_curve(
                    name, part.model, part.split, unattacked, epsilons, **plan.attack_options(name),
                    batch_size=plan.batch_size, progress=done,
                )  # fmt: skip
            curves[part.name] = points
            models[part.name].setdefault("attacks", {})[name] = [p.to_dict() for p in points]
        steps = plan.steps_of(name)
        detail = "" if name == "fgsm" else f", {steps} {'queries' if name == 'square' else 'steps'}"
        panels[f"{written(name)}{detail}"] = "epsilon (largest change of a pixel in [0, 1])", curves
    draw_curves(panels, out / "attacks.png", 1 / len(trained[0].class_names))
    if len(epsilons) < 2:
        return
    for part, unattacked in zip(parts, clean, strict=True):
        curves_of = {panel: curves[part.name] for panel, (_, curves) in panels.items()}
        strongest = min(plan.attacks, key=lambda name: sum(p["accuracy"] for p in models[part.name]["attacks"][name]))
        _draw_attacked(part, unattacked, plan, strongest, epsilons[1:], out / part.name / "attacked.png")
        models[part.name]["attacked_images"] = len(part.split)
        if not plan.masking_images:
            continue
        if is_at_chance(models[part.name]):
            reason = "it predicts no better than chance, so that attacks have nothing to change"
            models[part.name].setdefault("not_measured", {})["gradient masking"] = reason
        else:
            models[part.name]["masking"] = _masking(part, unattacked, parts, plan, curves_of, reporter)


def accuracy_under(
    trained: TrainedModel, answers: Answers, name: str, epsilon: float, steps: int, *, limit: int, seed: int
) -> Point:
    """The accuracy of a network under one attack, of at most `limit` of its images, classes in proportion."""
    check_attack(name, epsilon, steps, 1, "cross_entropy", trained.model)
    few = part_of(trained, answers, limit, seed)
    clean = answers if few is trained else collect_answers(few.model, few.split)
    return attack_curve(name, few.model, few.split, clean, (epsilon,), steps=steps, seed=seed)[-1]


def written(name: str) -> str:
    """The usual spelling of an attack's name."""
    return "Square" if name == "square" else name.upper()


def informative_epsilon(curves: Sequence[Sequence[Point]]) -> float:
    """The epsilon above 0 at which the strongest attack leaves nearest to half of the images correct."""
    worst = [min(points, key=lambda p: p.correct) for points in zip(*curves, strict=True)]
    return min(worst[1:], key=lambda p: abs(p.correct - worst[0].correct / 2)).amount


def check_accuracy_falls(curves: dict[str, list[Point]]) -> MaskingCheck:
    """Whether the accuracy falls as epsilon grows, as it should."""
    rises = {name: max(b.accuracy - a.accuracy for a, b in pairwise(points)) for name, points in curves.items()}
    words = "Largest rise of accuracy from one epsilon to the next: "
    words += ", ".join(f"{name} {100 * max(rise, 0.0):.1f} points" for name, rise in rises.items()) + "."
    return MaskingCheck("accuracy over epsilon", rises, max(rises.values()) > SLACK, words)


def _masking(
    part: TrainedModel,
    answers: Answers,
    parts: Sequence[TrainedModel],
    plan: Plan,
    curves: dict[str, list[Point]],
    reporter: Reporter,
) -> dict[str, Any]:
    epsilon = informative_epsilon(list(curves.values()))
    few = part_of(part, answers, plan.masking_images, plan.seed, answers.correct)
    others = {
        p.name: p.model
        for p in parts
        if p.name != part.name and p.model.image_shape == part.model.image_shape and p.class_names == part.class_names
    }
    height, width = part.model.image_shape[1:]
    images, labels, *_ = few.split.batch(
        torch.arange(len(few.split)), crop=(height, width), device=next(part.model.parameters()).device
    )
    losses = len(losses_of(part.model))
    with reporter.stage(f"{part.name}: checks for gradient masking", masking_parts(losses, len(others))) as done:
        checks = look_for_masking(
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
    checks.append(check_accuracy_falls(curves))
    return {"epsilon": epsilon, "images": len(images), "checks": [check.to_dict() for check in checks]}


def _draw_attacked(
    part: TrainedModel, answers: Answers, plan: Plan, name: str, epsilons: Sequence[float], path: Path
) -> None:
    """A few correctly classified images, of different classes if possible, under the attack of that name."""
    few = part_of(part, answers, SHOWN_IMAGES, plan.seed, answers.correct)
    if not len(few.split):
        return
    height, width = part.model.image_shape[1:]
    indices = torch.arange(min(SHOWN_IMAGES, len(few.split)))
    images, labels, *_ = few.split.batch(indices, crop=(height, width), device=next(part.model.parameters()).device)
    names, rows = part.class_names, []
    # Evenly spaced, and always with the largest.
    step = -(-len(epsilons) // SHOWN_EPSILONS)
    for epsilon in list(epsilons)[::-1][::step][::-1]:
        changed = attack(name, part.model, images, labels, epsilon, **plan.attack_options(name))
        predicted = answer(part.model, changed)
        rows.append((epsilon, changed.cpu(), [names[c] for c in predicted.tolist()], (predicted == labels).tolist()))
    chosen = f", the strongest of {len(plan.attacks)} attacks" if len(plan.attacks) > 1 else ""
    title = f"{part.name} under {written(name)} ({ATTACKS[name].paper}){chosen}"
    draw_attacked(images.cpu(), rows, [names[c] for c in labels.tolist()], title, path)
