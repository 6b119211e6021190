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
from mereo.inference.views import mean_over_views, views_of, words_of
from mereo.measure.attack_stage import measure_attacks
from mereo.measure.attacks.attack import check_attack
from mereo.measure.classification import calibrated_error, classification_metrics, reliabilities
from mereo.measure.classification_pictures import draw_calibration, draw_confusion, draw_scores
from mereo.measure.corruptions import CORRUPTIONS
from mereo.measure.couplings import WAYS, coupling_effect, coupling_effect_of_task, has_couplings
from mereo.measure.curve_pictures import draw_curves
from mereo.measure.curves import Point, check_epsilons, corruption_curve
from mereo.measure.equivariance import TRANSFORMS, equivariance, why_no_fit
from mereo.measure.equivariance_pictures import draw_equivariance
from mereo.measure.evaluation_plan import Plan
from mereo.measure.trained_models import TrainedModel
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

    The measurements follow from the task and the parts of the networks: `not_measured` of a network gives the reason
    for each one that was left out. Accuracy and errors come first, slow measurements after them.

    Args:
        trained: from `load_trained_models`.
        plan: what to measure.
        out: folder of the pictures.
        reporter: shows the progress; None for silence.
        finished: called after each of PARTS that is measured, before its pictures are drawn in the case of accuracy.
    """
    evaluation = _Evaluation(trained, plan, out, reporter or Reporter(silent=True), finished)
    if evaluation.task.scores_classes:
        evaluation.classifiers()
    else:
        evaluation.by_task()
    return evaluation.document


def _task(trained: Sequence[TrainedModel]) -> Task:
    """The task of the networks; UsageError for several."""
    names = sorted({network.task.name for network in trained})
    if len(names) > 1:
        raise UsageError(
            f"the networks were trained for the tasks {' and '.join(names)}; evaluate each task by itself."
        )
    return trained[0].task


def _scored(network: TrainedModel, plan: Plan) -> TrainedModel:
    """The network that gives the scores: with the mean over views if the plan asks for it."""
    if plan.attacks and (plan.tta or plan.five_crop):
        raise UsageError(
            f"attack is {' '.join(plan.attacks)}, and {'tta' if plan.tta else 'five_crop'} is set; accuracy under"
            " attack is measured without views, so do it in a command of its own, or leave the attack out."
        )
    return replace(network, model=mean_over_views(network.model, tta=plan.tta, five_crop=plan.five_crop))


def _description(network: TrainedModel) -> dict[str, Any]:
    """The weights, the size and the views of a network."""
    model = network.model
    views = views_of(model)
    return {
        "weights": str(network.source),
        "parameters": sum(p.numel() for p in model.parameters()),
        **({} if views is None else {"views": {"count": views.count, "changes": views.changes}}),
    }


class _Evaluation:
    """One evaluation: each method measures a part of `trained`, adds it to `document` and draws its pictures.

    Args:
        trained, plan, out, reporter, finished: as for `evaluate_models`.
    """

    def __init__(
        self, trained: Sequence[TrainedModel], plan: Plan, out: Path, reporter: Reporter, finished: Finished | None
    ) -> None:
        self.trained, self.plan, self.out, self.reporter, self.finished = trained, plan, out, reporter, finished
        self.task = _task(trained)
        self.scored = [_scored(network, plan) for network in trained]
        """The networks that give the scores; attacks and poses are measured of `trained`."""
        self.models: dict[str, dict[str, Any]] = {}
        self.document: dict[str, Any] = {
            "mereo": __version__,
            "task": self.task.name,
            "unit": self.task.unit,
            "data": trained[0].data,
            "class_names": list(trained[0].class_names),
            "plan": asdict(plan),
            "models": self.models,
        }

    def done(self, part: str) -> None:
        """Report that a part is measured."""
        if self.finished is not None:
            self.finished(part, self.document)

    def leave_out(self, network: TrainedModel, part: str, reason: str) -> None:
        """Note why a part of a network was not measured."""
        self.models[network.name].setdefault("not_measured", {})[part] = reason

    def by_task(self) -> None:
        """The metrics that the task itself keeps, for a task whose outputs are not scores of classes."""
        plan, task = self.plan, self.task
        for network in self.trained:
            with self.reporter.stage(f"{network.name}: {task.chooses[0]}", len(network.split)) as advance:
                figures = evaluate(network.model, network.split, task=task, batch_size=plan.batch_size, intervals=True)
                advance(len(network.split))
            references, remarks = task.references(network.split), task.remarks(network.model)
            self.models[network.name] = {
                **_description(network),
                "count": figures.count,
                "metrics": figures.values,
                "intervals": {name: list(ends) for name, ends in figures.intervals.items()},
                **({"references": references} if references else {}),
                **({"remarks": remarks} if remarks else {}),
            }
            reason = f"it needs one score for each class, and the outputs of the task {task.name} are something else"
            asked = {"corruptions": plan.corruptions, "attacks": plan.attacks, "equivariance": plan.equivariance}
            for part in ("calibration", *(name for name, wanted in asked.items() if wanted)):
                self.leave_out(network, part, reason)
        self.done("accuracy")
        self.couplings()

    def classifiers(self) -> None:
        """All parts of an evaluation of classifiers."""
        plan = self.plan
        self.check()
        answers: list[Answers] = []
        for network in self.scored:
            title = f"{network.name}: accuracy{words_of(network.model)}"
            with self.reporter.stage(title, len(network.split)) as advance:
                collected = collect_answers(network.model, network.split, batch_size=plan.batch_size, progress=advance)
            answers.append(collected)
            self.models[network.name] = {
                **_description(network),
                **classification_metrics(collected, network.class_names),
                **calibrated_error(collected, calibration_of(network.model)),
            }
        self.done("accuracy")
        for network, own in zip(self.scored, answers, strict=True):
            if network.split.labels_per_image == 1:
                _draw_classification(network, own, self.out / network.name)
        self.couplings(answers)
        if plan.corruptions:
            self.corruptions(answers)
        if plan.attacks:
            measure_attacks(self.trained, answers, plan, self.out, self.reporter, self.models)
            self.done("attacks")
        if plan.equivariance:
            for network in self.trained:
                self.equivariance(network)
            self.done("equivariance")

    def check(self) -> None:
        """UsageError for attacks and poses that are impossible."""
        plan, serves = self.plan, self.trained[0].split.serves
        names = ("corruptions", "attacks", "equivariance", "tta", "five_crop")
        for name in names if serves != "images" else ():
            if getattr(plan, name):
                raise UsageError(f"{name} is {getattr(plan, name)}, which changes images, not {serves}; leave it out.")
        if plan.attacks or plan.equivariance:
            check_one_label(self.trained[0].split)
        for network in self.trained:
            for name in plan.attacks:
                for epsilon in check_epsilons(plan.epsilons):
                    check_attack(name, epsilon, plan.steps_of(name), plan.restarts, plan.loss, network.model)

    def couplings(self, answers: Sequence[Answers] = ()) -> None:
        """The metric with replaced couplings, of networks that have some: of the task, or of classifiers' answers."""
        how: dict[str, int] = {"batch_size": self.plan.batch_size, "seed": self.plan.seed}
        done = False
        networks = self.scored if answers else self.trained
        for place, network in enumerate(networks if self.plan.couplings else ()):
            if not has_couplings(network.model):
                continue
            model, split, own = network.model, network.split, self.models[network.name]
            with self.reporter.stage(f"{network.name}: couplings replaced", len(WAYS) * len(split)) as advance:
                if answers:
                    effect = coupling_effect(model, split, answers[place], **how, progress=advance)
                else:
                    metric = own["metrics"][self.task.chooses[0]]
                    effect = coupling_effect_of_task(model, split, self.task, metric, **how)
                    advance(len(WAYS) * len(split))
            if effect is not None:
                own["couplings"], done = effect.to_dict(), True
        if done:
            self.done("couplings")

    def corruptions(self, answers: Sequence[Answers]) -> None:
        """The accuracy over the severities of each corruption."""
        panels: dict[str, tuple[str, dict[str, list[Point]]]] = {}
        for name, corruption in CORRUPTIONS.items():
            curves = {}
            for network, clean in zip(self.scored, answers, strict=True):
                total = len(network.split) * (len(corruption.severities) - 1)
                with self.reporter.stage(f"{network.name}: {name}", total) as advance:
                    points = corruption_curve(
                        name, network.model, network.split, clean, seed=self.plan.seed,
                        batch_size=self.plan.batch_size, progress=advance,
                    )  # fmt: skip
                curves[network.name] = points
                self.models[network.name].setdefault("corruptions", {})[name] = [p.to_dict() for p in points]
            panels[f"{name}{words_of(self.scored[0].model)}"] = corruption.unit, curves
        first = self.trained[0]
        draw_curves(
            panels, self.out / "corruptions.png", 1 / math.comb(len(first.class_names), first.split.labels_per_image)
        )
        self.done("corruptions")

    def equivariance(self, network: TrainedModel) -> None:
        """How the poses of class capsules change with the image."""
        model = network.model
        if not model.has_capsules:
            reason = f"{type(model).__name__} has no class capsules, whose poses would be compared"
            self.leave_out(network, "equivariance", reason)
            return
        results = {}
        for name, (_, amounts, _) in TRANSFORMS.items():
            total = len(network.split) * len(amounts)
            with self.reporter.stage(f"{network.name}: poses under {name}", total) as advance:
                results[name] = equivariance(
                    name, model, network.split, seed=self.plan.seed, batch_size=self.plan.batch_size, progress=advance
                )
        reasons = {name: why_no_fit(moved, labels) for name, (moved, _, labels) in results.items()}
        self.models[network.name] |= {
            "equivariance": {name: [m.to_dict() for m in moved] for name, (moved, _, _) in results.items()},
            "no_fit": {name: reason for name, reason in reasons.items() if reason is not None},
        }
        title = f"{network.name}: what happens to the capsule of the true class"
        draw_equivariance(results, title, self.out / network.name / "equivariance.png")


def _draw_classification(network: TrainedModel, answers: Answers, folder: Path) -> None:
    names, title = network.class_names, f"{network.name}{words_of(network.model)}"
    confusion = confusion_matrix(answers.predicted, answers.labels, len(names))
    draw_confusion(confusion, names, title, folder / "confusion.png")
    draw_calibration(reliabilities(answers), title, folder / "calibration.png")
    draw_scores(answers, title, folder / "scores.png")
