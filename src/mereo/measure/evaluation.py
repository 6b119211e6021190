"""The whole evaluation of one network or several: every figure as plain values, every picture as a file."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mereo import __version__
from mereo.inference.answers import Answers, check_one_label, collect_answers
from mereo.inference.metrics import confusion_matrix
from mereo.measure.attack_stage import measure_attacks
from mereo.measure.attacks.attack import check_attack
from mereo.measure.classification import judge, reliabilities
from mereo.measure.corruptions import CORRUPTIONS
from mereo.measure.curve_pictures import draw_curves
from mereo.measure.curves import Point, check_epsilons, corruption_curve
from mereo.measure.equivariance import TRANSFORMS, equivariance, why_no_fit
from mereo.measure.equivariance_pictures import draw_equivariance
from mereo.measure.pictures import draw_calibration, draw_confusion, draw_lengths
from mereo.measure.plan import Plan
from mereo.measure.trained_models import Subject
from mereo.runtime.progress import Reporter


def evaluate_subjects(
    subjects: Sequence[Subject], plan: Plan, out: Path, reporter: Reporter | None = None
) -> dict[str, Any]:
    """Judge networks, draw the pictures into a folder, and return all figures as plain values.

    Args:
        subjects: from `load_subjects`.
        plan: what to measure.
        out: folder of the pictures.
        reporter: shows the progress; None for silence.
    """
    reporter = reporter or Reporter(silent=True)
    if plan.attacks or plan.equivariance:
        check_one_label(subjects[0].split)
    for subject in subjects:
        for name in plan.attacks:
            for epsilon in check_epsilons(plan.epsilons):
                check_attack(name, epsilon, plan.steps_of(name), plan.restarts, plan.loss, subject.model.num_classes)
    answers: list[Answers] = []
    models: dict[str, dict[str, Any]] = {}
    for subject in subjects:
        with reporter.stage(f"{subject.name}: accuracy", len(subject.split)) as done:
            answers.append(collect_answers(subject.model, subject.split, batch_size=plan.batch_size, progress=done))
        models[subject.name] = {
            "weights": str(subject.source),
            "parameters": sum(p.numel() for p in subject.model.parameters()),
            **judge(answers[-1], subject.class_names),
        }
        if subject.split.labels_per_image == 1:
            _draw_judgement(subject, answers[-1], out / subject.name)
    if plan.corruptions:
        _corruptions(subjects, answers, plan, out, reporter, models)
    if plan.attacks:
        measure_attacks(subjects, answers, plan, out, reporter, models)
    if plan.equivariance:
        for subject in subjects:
            _equivariance(subject, plan, out, reporter, models)
    return {
        "mereo": __version__,
        "data": subjects[0].data,
        "class_names": list(subjects[0].class_names),
        "plan": asdict(plan),
        "models": models,
    }


def _draw_judgement(subject: Subject, answers: Answers, folder: Path) -> None:
    names = subject.class_names
    confusion = confusion_matrix(answers.predicted, answers.labels, len(names))
    draw_confusion(confusion, names, subject.name, folder / "confusion.png")
    draw_calibration(reliabilities(answers), subject.name, folder / "calibration.png")
    draw_lengths(answers, subject.name, folder / "lengths.png")


def _corruptions(
    subjects: Sequence[Subject], answers: list[Answers], plan: Plan, out: Path, reporter: Reporter,
    models: dict[str, dict[str, Any]],
) -> None:  # fmt: skip
    panels: dict[str, tuple[str, dict[str, list[Point]]]] = {}
    for name, corruption in CORRUPTIONS.items():
        curves = {}
        for subject, clean in zip(subjects, answers, strict=True):
            total = len(subject.split) * (len(corruption.severities) - 1)
            with reporter.stage(f"{subject.name}: {name}", total) as done:
                points = corruption_curve(
                    name, subject.model, subject.split, clean, seed=plan.seed, batch_size=plan.batch_size, progress=done
                )
            curves[subject.name] = points
            models[subject.name].setdefault("corruptions", {})[name] = [p.to_dict() for p in points]
        panels[name] = corruption.unit, curves
    guessed = 1 / math.comb(len(subjects[0].class_names), subjects[0].split.labels_per_image)
    draw_curves(panels, out / "corruptions.png", guessed)


def _equivariance(
    subject: Subject, plan: Plan, out: Path, reporter: Reporter, models: dict[str, dict[str, Any]]
) -> None:
    found = {}
    for name, (_, amounts, _) in TRANSFORMS.items():
        with reporter.stage(f"{subject.name}: poses under {name}", len(subject.split) * len(amounts)) as done:
            found[name] = equivariance(
                name, subject.model, subject.split, seed=plan.seed, batch_size=plan.batch_size, progress=done
            )
    models[subject.name]["equivariance"] = {name: [m.to_dict() for m in moved] for name, (moved, _, _) in found.items()}
    reasons = {name: why_no_fit(moved, labels) for name, (moved, _, labels) in found.items()}
    models[subject.name]["no_fit"] = {name: reason for name, reason in reasons.items() if reason is not None}
    title = f"{subject.name}: what happens to the capsule of the true class"
    draw_equivariance(found, subject.class_names, title, out / subject.name / "equivariance.png")
