"""The complete evaluation of one or several networks: all numbers as plain values, all pictures as files."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mereo import __version__
from mereo.errors import UsageError
from mereo.inference.answers import Answers, check_one_label, collect_answers
from mereo.inference.evaluate import evaluate
from mereo.inference.metrics import confusion_matrix
from mereo.inference.temperature import calibration_of
from mereo.inference.views import MeanOverViews, mean_over_views, words_of
from mereo.measure.attack_stage import measure_attacks
from mereo.measure.attacks.attack import check_attack
from mereo.measure.classification import calibrated_error, classification_metrics, reliabilities
from mereo.measure.classification_pictures import draw_calibration, draw_confusion, draw_scores
from mereo.measure.corruptions import CORRUPTIONS
from mereo.measure.coupling_pictures import draw_coupling_effects
from mereo.measure.couplings import WAYS, coupling_effect, coupling_effect_of_task, has_couplings
from mereo.measure.curve_pictures import draw_curves
from mereo.measure.curves import Point, check_epsilons, corruption_curve
from mereo.measure.equivariance import TRANSFORMS, equivariance, why_no_fit
from mereo.measure.equivariance_pictures import draw_equivariance
from mereo.measure.evaluation_plan import Plan
from mereo.measure.trained_models import TrainedModel
from mereo.models import CapsuleClassifier
from mereo.runtime.progress import Reporter
from mereo.tasks import Task

Finished = Callable[[str, dict[str, Any]], None]
"""(part, the document so far): called when a part is measured."""
PARTS = ("accuracy", "couplings", "corruptions", "attacks", "equivariance")
"""The parts of an evaluation, in order."""


def evaluate_models(
    trained: Sequence[TrainedModel],
    plan: Plan,
    out: Path,
    reporter: Reporter | None = None,
    finished: Finished | None = None,
) -> dict[str, Any]:
    """Evaluate networks, draw the pictures into a folder, and return all numbers as plain values.

    What is measured follows from the task of the networks and from what they have: `not_measured` of a network gives
    the reason for each part that was left out. Accuracy and errors come first; what takes long comes after them.

    Args:
        trained: from `load_trained_models`.
        plan: what to measure.
        out: folder of the pictures.
        reporter: shows the progress; None for silence.
        finished: called after each of PARTS that is measured, before its pictures are drawn in the case of accuracy.
    """
    reporter = reporter or Reporter(silent=True)
    task = _task(trained)
    scored = [_scored(network, plan) for network in trained]
    document: dict[str, Any] = {
        "mereo": __version__,
        "task": task.name,
        "unit": task.unit,
        "data": trained[0].data,
        "class_names": list(trained[0].class_names),
        "plan": asdict(plan),
        "models": {},
    }

    def done(part: str) -> None:
        if finished is not None:
            finished(part, document)

    if task.scores_classes:
        _classifiers(trained, scored, plan, out, reporter, document["models"], done)
    else:
        _by_task(trained, plan, out, reporter, document["models"], done)
    return document


def _task(trained: Sequence[TrainedModel]) -> Task:
    """The task of the networks; UsageError for several."""
    names = sorted({network.task.name for network in trained})
    if len(names) > 1:
        raise UsageError(
            f"the networks were trained for the tasks {' and '.join(names)}; evaluate each task by itself."
        )
    return trained[0].task


def _scored(network: TrainedModel, plan: Plan) -> TrainedModel:
    """The network that gives the scores: with the mean over views where the plan wants it."""
    if plan.attacks and (plan.tta or plan.five_crop):
        raise UsageError(
            f"attack is {' '.join(plan.attacks)}, and {'tta' if plan.tta else 'five_crop'} is set; accuracy under"
            " attack is measured without views, so do it in a command of its own, or leave the attack out."
        )
    return replace(network, model=mean_over_views(network.model, tta=plan.tta, five_crop=plan.five_crop))


def _facts(network: TrainedModel) -> dict[str, Any]:
    model = network.model
    views = {"count": model.count, "changes": model.changes} if isinstance(model, MeanOverViews) else None
    return {
        "weights": str(network.source),
        "parameters": sum(p.numel() for p in model.parameters()),
        **({} if views is None else {"views": views}),
    }


def _by_task(
    trained: Sequence[TrainedModel], plan: Plan, out: Path, reporter: Reporter, models: dict[str, dict[str, Any]],
    done: Callable[[str], None],
) -> None:  # fmt: skip
    """The metrics that the task itself keeps, for a task whose outputs are not scores of classes."""
    for network in trained:
        task = network.task
        with reporter.stage(f"{network.name}: {task.chooses[0]}", len(network.split)) as advance:
            figures = evaluate(network.model, network.split, task=task, batch_size=plan.batch_size)
            advance(len(network.split))
        reason = f"it needs one score for each class, and the outputs of the task {task.name} are something else"
        requested = {"corruptions": plan.corruptions, "attacks": bool(plan.attacks), "equivariance": plan.equivariance}
        references = task.references(network.split)
        left_out = ["calibration", *[part for part, wanted in requested.items() if wanted]]
        models[network.name] = {
            **_facts(network),
            "count": figures.count,
            "metrics": figures.values,
            **({"references": references} if references else {}),
            "not_measured": dict.fromkeys(left_out, reason),
        }
    done("accuracy")
    if plan.couplings:
        for network in filter(_coupled, trained):
            metric = network.task.chooses[0]
            with reporter.stage(f"{network.name}: couplings replaced", 1) as advance:
                effect = coupling_effect_of_task(
                    network.model, network.split, network.task, models[network.name]["metrics"][metric],
                    batch_size=plan.batch_size, seed=plan.seed,
                )  # fmt: skip
                advance(1)
            if effect is not None:
                models[network.name]["couplings"] = effect.to_dict()
        _finish_couplings(models, out, done)


def _coupled(network: TrainedModel) -> bool:
    return has_couplings(network.model)


def _finish_couplings(
    models: dict[str, dict[str, Any]], out: Path, done: Callable[[str], None], over: str = ""
) -> None:
    effects = {name: model["couplings"] for name, model in models.items() if "couplings" in model}
    if effects:
        draw_coupling_effects(effects, out / "couplings.png", f"Couplings replaced{over}")
        done("couplings")


def _classifiers(
    trained: Sequence[TrainedModel], scored: Sequence[TrainedModel], plan: Plan, out: Path, reporter: Reporter,
    models: dict[str, dict[str, Any]], done: Callable[[str], None],
) -> None:  # fmt: skip
    """All of classifiers: `scored` give the scores, and attacks and poses are of `trained`."""
    _check(trained, plan)
    answers: list[Answers] = []
    for network in scored:
        with reporter.stage(f"{network.name}: accuracy{words_of(network.model)}", len(network.split)) as advance:
            answers.append(collect_answers(network.model, network.split, batch_size=plan.batch_size, progress=advance))
        models[network.name] = {
            **_facts(network),
            **classification_metrics(answers[-1], network.class_names),
            **calibrated_error(answers[-1], calibration_of(network.model)),
        }
    done("accuracy")
    for network, own in zip(scored, answers, strict=True):
        if network.split.labels_per_image == 1:
            _draw_classification(network, own, out / network.name)
    if plan.couplings:
        _couplings(scored, answers, plan, reporter, models)
        _finish_couplings(models, out, done, words_of(scored[0].model))
    if plan.corruptions:
        _corruptions(scored, answers, plan, out, reporter, models)
        done("corruptions")
    if plan.attacks:
        measure_attacks(trained, answers, plan, out, reporter, models)
        done("attacks")
    if plan.equivariance:
        for network in trained:
            if isinstance(network.model, CapsuleClassifier):
                _equivariance(network, network.model, plan, out, reporter, models)
            else:
                reason = f"{type(network.model).__name__} has no class capsules, whose poses would be compared"
                models[network.name].setdefault("not_measured", {})["equivariance"] = reason
        done("equivariance")


def _check(trained: Sequence[TrainedModel], plan: Plan) -> None:
    """UsageError for attacks and poses that are impossible."""
    if plan.attacks or plan.equivariance:
        check_one_label(trained[0].split)
    for network in trained:
        for name in plan.attacks:
            for epsilon in check_epsilons(plan.epsilons):
                check_attack(name, epsilon, plan.steps_of(name), plan.restarts, plan.loss, network.model)


def _couplings(
    trained: Sequence[TrainedModel], answers: list[Answers], plan: Plan, reporter: Reporter,
    models: dict[str, dict[str, Any]],
) -> None:  # fmt: skip
    for network, own in zip(trained, answers, strict=True):
        if not _coupled(network):
            continue
        with reporter.stage(f"{network.name}: couplings replaced", len(WAYS) * len(network.split)) as advance:
            effect = coupling_effect(
                network.model, network.split, own, batch_size=plan.batch_size, seed=plan.seed, progress=advance
            )
        if effect is not None:
            models[network.name]["couplings"] = effect.to_dict()


def _draw_classification(network: TrainedModel, answers: Answers, folder: Path) -> None:
    names, title = network.class_names, f"{network.name}{words_of(network.model)}"
    confusion = confusion_matrix(answers.predicted, answers.labels, len(names))
    draw_confusion(confusion, names, title, folder / "confusion.png")
    draw_calibration(reliabilities(answers), title, folder / "calibration.png")
    draw_scores(answers, title, folder / "scores.png")


def _corruptions(
    trained: Sequence[TrainedModel], answers: list[Answers], plan: Plan, out: Path, reporter: Reporter,
    models: dict[str, dict[str, Any]],
) -> None:  # fmt: skip
    panels: dict[str, tuple[str, dict[str, list[Point]]]] = {}
    for name, corruption in CORRUPTIONS.items():
        curves = {}
        for network, clean in zip(trained, answers, strict=True):
            total = len(network.split) * (len(corruption.severities) - 1)
            with reporter.stage(f"{network.name}: {name}", total) as done:
                points = corruption_curve(
                    name, network.model, network.split, clean, seed=plan.seed, batch_size=plan.batch_size, progress=done
                )
            curves[network.name] = points
            models[network.name].setdefault("corruptions", {})[name] = [p.to_dict() for p in points]
        panels[f"{name}{words_of(trained[0].model)}"] = corruption.unit, curves
    chance = 1 / math.comb(len(trained[0].class_names), trained[0].split.labels_per_image)
    draw_curves(panels, out / "corruptions.png", chance)


def _equivariance(
    network: TrainedModel, model: CapsuleClassifier, plan: Plan, out: Path, reporter: Reporter,
    models: dict[str, dict[str, Any]],
) -> None:  # fmt: skip
    results = {}
    for name, (_, amounts, _) in TRANSFORMS.items():
        with reporter.stage(f"{network.name}: poses under {name}", len(network.split) * len(amounts)) as done:
            results[name] = equivariance(
                name, model, network.split, seed=plan.seed, batch_size=plan.batch_size, progress=done
            )
    models[network.name]["equivariance"] = {
        name: [m.to_dict() for m in moved] for name, (moved, _, _) in results.items()
    }
    reasons = {name: why_no_fit(moved, labels) for name, (moved, _, labels) in results.items()}
    models[network.name]["no_fit"] = {name: reason for name, reason in reasons.items() if reason is not None}
    title = f"{network.name}: what happens to the capsule of the true class"
    draw_equivariance(results, network.class_names, title, out / network.name / "equivariance.png")
