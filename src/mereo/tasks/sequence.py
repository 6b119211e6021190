"""Sequence: the class of a sequence of joints, such as the action of a body."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mereo.data import Batch, Images
from mereo.data.skeletons import SKELETONS, bodies_of
from mereo.errors import UsageError
from mereo.tasks.base import Objective, Settings, Task, register_task
from mereo.tasks.classification import Classification
from mereo.tasks.losses import score_loss
from mereo.tasks.skeleton_pictures import draw_skeletons


class SequenceObjective(Objective):
    """The cross-entropy of a network of sequences; of an ensemble, the sum over its members, each by itself."""

    def __init__(self, model: nn.Module, label_smoothing: float = 0.0) -> None:
        super().__init__(model)
        self.label_smoothing = label_smoothing

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        features = self.model.forward_features(batch.sequences, batch.lengths)
        scores = self.model.forward_head(features).float()
        trained = self.model.trained_scores(features).float()
        losses = [
            score_loss(each, batch.labels, "cross_entropy", label_smoothing=self.label_smoothing)
            for each in trained.unbind(1)
        ]
        return torch.stack(losses).sum(), scores

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return score_loss(outputs, batch.labels, "cross_entropy")


@register_task
class SequenceClasses(Classification):
    """Scores of classes for sequences of joints."""

    name = "sequence"
    requires = ("sequences", "lengths", "labels")
    input_kinds = ("sequences",)
    colour_model = None
    losses = ("cross_entropy",)
    unit = "sequences"
    example_model = "skeleton_ensemble_small"
    example_data = "actions"
    settings: ClassVar[Mapping[str, Any]] = {"batch_size": 64, "epochs": 10, "lr": 3e-3}
    most_drawn = 12

    resolve_loss = Task.resolve_loss

    def apply(self, model: nn.Module, batch: Batch) -> Tensor:
        scores: Tensor = model(batch.sequences, batch.lengths)
        return scores

    def objective(self, model: nn.Module, settings: Settings) -> SequenceObjective:  # type: ignore[override]
        if settings.mixup or settings.cutmix:
            raise UsageError("mixup and cutmix change images, and sequences have none; leave them out.")
        return SequenceObjective(model, settings.label_smoothing)

    def predict(self, outputs: Tensor, top: int = 3) -> list[dict[str, Any]]:
        """The most probable classes with their probabilities."""
        return super().predict(outputs.float().softmax(-1), top)

    @property
    def cell_names(self) -> tuple[str, ...]:
        return ("class", "probability")

    def cells(self, outputs: Tensor) -> list[list[str | float]]:
        """The most probable class of each sequence, and its probability."""
        best = outputs.float().softmax(-1).max(-1)
        return [
            [self._listed([place]), share]
            for place, share in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    def describe_data(self, train: Images, validation: Images | None, test: Images) -> list[str]:
        _, length, features = train.image_shape
        bodies, joints = bodies_of(features)
        known = "" if joints in SKELETONS else ", of which neither left, right nor bones are known"
        counts: Any = train.counts  # type: ignore[attr-defined]
        longer = int((counts > length).sum())
        cut = f"; {longer:,} are longer than {length}, of which every so many frames are read" if longer else ""
        return [f"{bodies} x {joints} joints{known}; {int(counts.min())} to {int(counts.max())} frames{cut}"]

    def example(self, model: Any, count: int, objects: int = 1) -> Batch:
        sequences = model.example_inputs(count)
        labels = torch.arange(count, device=sequences.device) % max(model.num_classes, 1)
        return Batch(sequences=sequences, lengths=torch.full_like(labels, sequences.shape[1]), labels=labels)

    def titles(self, batch: Batch) -> list[str]:
        if batch.labels is None:
            return [f"{length} frames" for length in batch.lengths.tolist()]
        return super().titles(batch)

    def _draw(self, batch: Batch, titles: Sequence[str], path: Path, wrong: Sequence[bool] = ()) -> None:
        assert batch.lengths is not None
        draw_skeletons(batch.sequences, batch.lengths, titles, path, wrong=wrong)

    def draw_samples(self, batch: Batch, path: Path) -> None:
        shown = batch.pick(slice(0, self.most_drawn))
        self._draw(shown, self.titles(shown), path)

    @torch.inference_mode()
    def draw(self, model: Any, batch: Batch, prepared: Batch, path: Path) -> None:
        """Draw bodies over time with the predicted class, misclassified ones in red with the true class."""
        shown = prepared.pick(slice(0, self.most_drawn))
        shares = self.apply(model, shown).float().softmax(-1).max(-1)
        answers = shares.indices.tolist()
        titles = [
            f"{self._listed([answer])} {share:.0%}"
            for answer, share in zip(answers, shares.values.tolist(), strict=True)
        ]
        wrong: list[bool] = []
        if shown.labels is not None:
            wrong = [answer != true for answer, true in zip(answers, shown.labels.tolist(), strict=True)]
            titles = [
                f"{title}, is {name}" if failed else title
                for title, name, failed in zip(titles, self.titles(shown), wrong, strict=True)
            ]
        self._draw(shown, titles, path, wrong)
