"""Questions: scores for the answers to a program about a scene.

Source: Ito, Dan, Rigotti, Kozloski, Campbell 2024, arXiv:2401.15030.
"""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.data import Batch, Images
from mereo.data.questions.scenes import generate
from mereo.data.questions.words import draw_scenes, in_words
from mereo.data.questions.world import (
    ANSWERS,
    OPERATORS,
    RULE_ROWS,
    SCENE_ROWS,
    SWITCH,
    Answered,
    decode_scenes,
    evaluate,
    join_rows,
    split_rows,
)
from mereo.errors import UsageError
from mereo.models.network import Network
from mereo.tasks.base import Metrics, Objective, Settings, Task, register_task
from mereo.tasks.classification import accuracy_figures
from mereo.tasks.pictures import draw_images

ASKED = OPERATORS[: SWITCH - 1]
CHANCE = "most frequent answer of each operator"
_GROUPS = (*(f"accuracy_{name}" for name in ASKED), *(f"accuracy_depth_{depth}" for depth in RULE_ROWS))
_DRAWN, _COLUMNS, _CELL = 12, 4, 16


def answered(batch: Batch) -> Answered:
    """The answers of the questions of a batch, from its rows."""
    assert batch.rows is not None
    return evaluate(*split_rows(batch.rows.cpu()))


def chance(found: Answered) -> dict[str, float]:
    """Accuracies of the most frequent answer of each operator among these answers."""
    metrics, best = QuestionsMetrics(), torch.zeros_like(found.target)
    for kind in found.operator.unique().tolist():
        own = found.operator == kind
        best[own] = found.target[own].mode().values
    metrics.count(found.operator, found.depth, best == found.target)
    return metrics.compute()


class QuestionsObjective(Objective):
    """The cross-entropy of the answer, from log probabilities."""

    def __init__(self, model: nn.Module, label_smoothing: float = 0.0) -> None:
        super().__init__(model)
        self.label_smoothing = label_smoothing

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        scores = self.model(batch.rows)
        return F.cross_entropy(scores.float(), batch.labels, label_smoothing=self.label_smoothing), scores

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(outputs.float(), batch.labels)


class QuestionsMetrics(Metrics):
    """Accuracy over all questions, over those that each operator answers, and over programs of each depth.

    In a tree this is the operator at the end of the path that is taken. A group without questions has the accuracy 0.
    """

    def __init__(self) -> None:
        super().__init__(2 * len(_GROUPS))

    def count(self, operators: Tensor, depths: Tensor, hit: Tensor) -> None:
        """Add questions.

        Args:
            operators: that answer them.
            depths: of their programs.
            hit: whether they are answered.

        Shapes: int64 (n,), int64 (n,), bool (n,).
        """
        sums = torch.zeros(2, len(_GROUPS), dtype=torch.float64)
        for places in (operators.cpu() - 1, len(ASKED) + depths.cpu() // 2):
            sums[0].index_add_(0, places, torch.ones(len(places), dtype=torch.float64))
            sums[1].index_add_(0, places, hit.cpu().double())
        self.add(sums)

    def update(self, outputs: Tensor, batch: Batch) -> None:
        assert batch.rows is not None
        found = answered(batch)
        self.count(found.operator, found.depth, outputs.argmax(1) == batch.labels)

    def compute(self) -> dict[str, float]:
        there, right = self.state.view(2, len(_GROUPS)).cpu()
        figures = accuracy_figures(right[: len(ASKED)].sum().item(), int(there[: len(ASKED)].sum()))
        return figures | dict(zip(_GROUPS, (right / there.clamp(min=1)).tolist(), strict=True))


@register_task
class Questions(Task):
    """One of 138 answers to a program about a scene: true, false, a place, a shape or a colour."""

    name = "questions"
    requires = ("rows", "labels")
    input_kinds = ("rows",)
    chooses = ("accuracy", "max")
    is_share = True
    unit = "questions"
    outputs_are = "answers"
    may_mirror = False
    example_model = "gcog_dual_stream"
    example_data = "gcog"
    settings: ClassVar[Mapping[str, Any]] = {"batch_size": 64, "epochs": 10, "lr": 1e-4, "clip_norm": 1.0}
    most_drawn = _DRAWN

    @property
    def output_names(self) -> tuple[str, ...]:
        return ANSWERS

    def num_outputs(self, num_classes: int) -> int:
        return len(ANSWERS)

    def apply(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(batch.rows)

    def objective(self, model: nn.Module, settings: Settings) -> QuestionsObjective:
        if settings.mixup or settings.cutmix:
            raise UsageError("mixup and cutmix change images, and questions have none; leave them out.")
        return QuestionsObjective(model, settings.label_smoothing)

    def metrics(self) -> QuestionsMetrics:
        return QuestionsMetrics()

    def predict(self, outputs: Tensor, top: int = 3) -> list[dict[str, Any]]:
        """The most probable answers with their probabilities."""
        best = outputs.float().softmax(-1).topk(min(top, outputs.shape[1]), 1)
        rows = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        return [
            {"answer": ANSWERS[order[0]], "scores": {ANSWERS[n]: share for n, share in zip(order, shares, strict=True)}}
            for shares, order in rows
        ]

    @torch.inference_mode()
    def answers(self, model: nn.Module, batch: Batch, top: int = 3) -> list[dict[str, Any]]:
        """`predict`, with each question in words and its true answer."""
        assert batch.rows is not None
        words, true = in_words(split_rows(batch.rows.cpu())[0]), answered(batch).target.tolist()
        return [
            {"question": text, **found, "true": ANSWERS[right]}
            for text, found, right in zip(words, self.predict(self.apply(model, batch), top), true, strict=True)
        ]

    def references(self, split: Images) -> dict[str, dict[str, float]]:
        """Chance: the most frequent answer of each operator on this split."""
        found = answered(split.batch(torch.arange(len(split)))) if len(split) else None
        return {} if found is None else {CHANCE: chance(found)}

    def example(self, model: nn.Module, count: int, objects: int = 1) -> Batch:
        assert isinstance(model, Network)
        made = generate("distractor", max(count, 1), 0)
        rule = F.pad(made["rule"], (0, 0, 0, max(model.input_shape[0] - SCENE_ROWS - made["rule"].shape[1], 0)))
        batch = Batch(rows=join_rows(rule, made["stim"]), labels=made["target"])
        return batch.pick(slice(0, count)).to(next(model.parameters()).device)

    def titles(self, batch: Batch) -> list[str]:
        assert batch.rows is not None
        words = in_words(split_rows(batch.rows.cpu())[0])
        return [textwrap.fill(text.replace("current ", "").replace(" ,", ","), 34) for text in words]

    def _draw(self, batch: Batch, answers: list[str], path: Path, wrong: list[bool] | None = None) -> None:
        assert batch.rows is not None
        images = draw_scenes(decode_scenes(split_rows(batch.rows.cpu())[1]), _CELL).float() / 255
        titles = [f"{title}\n{answer}" for title, answer in zip(self.titles(batch), answers, strict=True)]
        draw_images(images, titles, path, columns=min(_COLUMNS, len(images)), wrong=wrong, side=2.2)

    def draw_samples(self, batch: Batch, path: Path) -> None:
        """Some scenes with the questions and their answers."""
        shown = batch.pick(slice(0, _DRAWN))
        self._draw(shown, [ANSWERS[label] for label in shown.labels.tolist()], path)

    @torch.inference_mode()
    def draw(self, model: nn.Module, batch: Batch, prepared: Batch, path: Path) -> None:
        """Some scenes with the questions and the predicted answers, wrong ones in red with the true answer."""
        shown = prepared.pick(slice(0, _DRAWN))
        predicted, true = self.apply(model, shown).argmax(1).tolist(), answered(shown).target.tolist()
        texts = [
            ANSWERS[given] if given == right else f"{ANSWERS[given]}, is {ANSWERS[right]}"
            for given, right in zip(predicted, true, strict=True)
        ]
        self._draw(shown, texts, path, [given != right for given, right in zip(predicted, true, strict=True)])

    def summary(self, figures: Mapping[str, Any], chosen: str) -> list[tuple[str, str]]:
        each = ", ".join(f"{name} {100 * figures[f'accuracy_{name}']:.1f} %" for name in ASKED)
        return [*super().summary(figures, chosen), ("by the operator that answers", each)]
