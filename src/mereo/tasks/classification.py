"""Classification: one class for each image, or a set of classes for images of several objects."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mereo.core import AddedLoss, Capsules
from mereo.data import Batch
from mereo.errors import UsageError
from mereo.models import CapsuleClassifier
from mereo.tasks.base import Metrics, Objective, Settings, Task, precise, register_task
from mereo.tasks.interval import wilson_interval
from mereo.tasks.losses import LOSSES, SPREAD_LOSSES, SPREAD_MARGINS, reconstruction_loss, score_loss, spread_margin
from mereo.tasks.pictures import draw_images

UNEVEN = 0.005
"""Least difference from the accuracy at which balanced accuracy is shown too."""
_DRAWN = 8
"""Images in a row of the picture."""


def hits(scores: Tensor, labels: Tensor) -> Tensor:
    """Whether each object of an image is among its highest scores: bool (batch, objects).

    The number of scores taken is the number of objects.

    Shapes: scores (batch, classes); labels int64 (batch,) or (batch, objects), or soft float (batch, classes), where
    the class with the largest weight counts.
    """
    if labels.is_floating_point():
        labels = labels.argmax(1)
    columns = labels.unsqueeze(1) if labels.dim() == 1 else labels
    highest = scores.topk(columns.shape[1], 1).indices
    return (highest.unsqueeze(1) == columns.unsqueeze(2)).any(2)


def accuracy_figures(correct: float, count: int) -> dict[str, float]:
    """The accuracy and its 95 % Wilson interval."""
    accuracy = correct / max(count, 1)
    low, high = wilson_interval(min(accuracy, 1.0), count)
    return {"accuracy": accuracy, "accuracy_low": low, "accuracy_high": high}


class ClassificationObjective(Objective):
    """A classifier and its loss, with the squared error of its decoder if it has one.

    Args:
        model: scores from images; for a `CapsuleClassifier` the lengths of its class capsules.
        loss: "margin", "hard_margin", "cross_entropy", "spread" or "spread_sigmoid".
        reconstruction_weight: factor of the reconstruction loss; without a decoder it has no effect.
        label_smoothing: of the cross-entropy in training; held-out data is not smoothed.

    Shapes:
        batch: images (batch, channels, height, width), normalised; labels int64 (batch,) or (batch, objects), or soft
        float (batch, classes); targets (batch, channels, height, width) or (batch, objects, channels, height, width) in
        [0, 1], what the decoder should reconstruct -> loss (), scores (batch, classes).
    """

    margin: Tensor

    def __init__(
        self,
        model: nn.Module,
        loss: str = "margin",
        reconstruction_weight: float = 0.0005,
        *,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(model)
        if label_smoothing > 0 and loss != "cross_entropy":
            raise UsageError(f"label_smoothing is {label_smoothing} and loss is {loss!r}; it needs 'cross_entropy'.")
        self.kind, self.reconstruction_weight, self.label_smoothing = loss, reconstruction_weight, label_smoothing
        self.reconstruction = AddedLoss("reconstruction", reconstruction_weight) if self.rebuilds else None
        self.register_buffer("margin", torch.tensor(SPREAD_MARGINS[0]), persistent=False)

    def at_step(self, step: int, steps: int) -> None:
        if self.kind in SPREAD_LOSSES:
            self.margin.fill_(spread_margin(step, steps, SPREAD_LOSSES[self.kind]))

    @property
    def rebuilds(self) -> bool:
        """Whether the reconstruction is part of the loss."""
        return getattr(self.model, "decoder", None) is not None and self.reconstruction_weight > 0

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        capsules = None
        if isinstance(self.model, CapsuleClassifier):
            capsules = self.model.capsules(batch.images)
            scores = capsules.activation.float()
        else:
            scores = self.model(batch.images).float()
        loss = score_loss(scores, batch.labels, self.kind, label_smoothing=self.label_smoothing, margin=self.margin)
        if self.reconstruction is not None and self.training and capsules is not None and batch.targets is not None:
            self.reconstruction(self._reconstruction(capsules, batch.labels, batch.targets))
        return loss, scores

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return score_loss(outputs, batch.labels, self.kind, margin=self.margin)

    def _reconstruction(self, capsules: Capsules, labels: Tensor, targets: Tensor) -> Tensor:
        if labels.dim() == 1:
            return reconstruction_loss(self.model.reconstruct(capsules, labels).float(), targets)
        # The same decoder, once for each object, in one call.
        objects = labels.shape[1]
        repeated = Capsules(capsules.pose.repeat_interleave(objects, 0), capsules.activation)
        rebuilt = self.model.reconstruct(repeated, labels.flatten())
        return objects * reconstruction_loss(rebuilt.float(), targets.flatten(0, 1))


class ClassificationMetrics(Metrics):
    """Accuracy with its interval, and balanced accuracy, the mean over the classes of the share that is correct.

    For images of several objects, the mean fraction of objects that are predicted replaces balanced accuracy.

    Args:
        num_classes: how many there are.
    """

    def __init__(self, num_classes: int = 0) -> None:
        super().__init__(4 + 2 * num_classes)
        self.several, self.num_classes = False, num_classes

    def update(self, outputs: Tensor, batch: Batch) -> None:
        hit = hits(outputs, batch.labels)
        self.several = hit.shape[1] > 1
        kinds = (hit.new_ones(len(hit)), hit.all(1), hit.float().mean(1), hit.any(1))
        wide = precise(hit.device)
        classes = batch.labels.argmax(1) if batch.labels.is_floating_point() else batch.labels.flatten()
        by_class = torch.zeros(2, self.num_classes, dtype=wide, device=hit.device)
        if self.num_classes and not self.several:
            by_class[0].index_add_(0, classes, torch.ones_like(classes, dtype=wide))
            by_class[1].index_add_(0, classes, hit.squeeze(1).to(wide))
        self.add(*(rows.to(wide).sum() for rows in kinds), by_class)

    def compute(self) -> dict[str, float]:
        count, correct, mean_hits, any_hit = self.state[:4].tolist()
        figures = accuracy_figures(correct, int(count))
        there, right = self.state[4:].view(2, self.num_classes)
        if not self.several and self.num_classes:
            shares = (right / there)[there > 0]
            figures["balanced_accuracy"] = shares.mean().item() if len(shares) else 0.0
        if self.several:
            figures |= {"mean_hits": mean_hits / max(count, 1), "any_hit": any_hit / max(count, 1)}
        return figures


@register_task
class Classification(Task):
    """Scores for classes. An image of several objects is correct if all of them are predicted."""

    name = "classification"
    requires: ClassVar[tuple[str, ...]] = ("images", "labels")
    chooses = ("accuracy", "max")
    is_share = True
    scores_classes = True
    # Capsules on small maps learn shapes, textures and numbers of things too slowly.
    colour_model: ClassVar[str | None] = "resnet14_64"
    losses = LOSSES

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.class_names

    def resolve_loss(self, loss: str, module: type[nn.Module]) -> str:
        loss = super().resolve_loss(loss, module)
        return str(getattr(module, "default_loss", "cross_entropy")) if loss == "auto" else loss

    def objective(self, model: nn.Module, settings: Settings) -> ClassificationObjective:
        objective = ClassificationObjective(
            model, settings.loss, settings.reconstruction_weight, label_smoothing=settings.label_smoothing
        )
        mixed = settings.mixup > 0 or settings.cutmix > 0
        if mixed and settings.loss in SPREAD_LOSSES:
            raise UsageError(f"loss is {settings.loss!r}, which takes no soft labels; leave mixup and cutmix out.")
        if mixed and objective.rebuilds:
            raise UsageError(
                f"reconstruction_weight is {settings.reconstruction_weight}, and mixed images have no single class to"
                " reconstruct; set it to 0, or leave mixup and cutmix out."
            )
        return objective

    def metrics(self) -> ClassificationMetrics:
        return ClassificationMetrics(len(self.class_names))

    def predict(self, outputs: Tensor, top: int = 3) -> list[dict[str, Any]]:
        names = self.class_names or tuple(str(number) for number in range(outputs.shape[1]))
        values, indices = outputs.topk(min(top, len(names)), 1)
        rows = zip(values.tolist(), indices.tolist(), strict=True)
        return [
            {"class": names[order[0]], "scores": dict(zip([names[c] for c in order], scores, strict=True))}
            for scores, order in rows
        ]

    def example(self, model: Any, count: int, objects: int = 1) -> Batch:
        device = next(model.parameters()).device
        images = torch.rand(count, *model.image_shape, device=device)
        labels = torch.arange(count * objects, device=device).view(count, objects) % max(model.num_classes, 1)
        if objects == 1:
            return Batch(images, labels.squeeze(1), images)
        return Batch(images, labels, images.unsqueeze(1).expand(-1, objects, -1, -1, -1))

    def titles(self, batch: Batch) -> list[str]:
        if batch.labels.is_floating_point():
            shares = [[(share, c) for c, share in enumerate(row) if share > 0] for row in batch.labels.tolist()]
            return [", ".join(f"{self.class_names[c]} {share:.0%}" for share, c in row) for row in shares]
        return [self._listed(row) for row in batch.labels.reshape(len(batch.labels), -1).tolist()]

    def _listed(self, classes: Sequence[int]) -> str:
        return ", ".join(self.class_names[c] for c in classes)

    @torch.inference_mode()
    def draw(self, model: Any, batch: Batch, prepared: Batch, path: Path) -> None:
        """Draw images with the predicted class, misclassified ones in red with the true class, and the decoder's
        reconstructions."""
        capsules = model.capsules(prepared.images)
        scores = self.apply(model, prepared) if capsules is None else capsules.activation
        true = batch.labels.reshape(len(batch.labels), -1)
        predicted = scores.topk(true.shape[1], 1).indices
        wrong = (~hits(scores, batch.labels).all(1)).tolist()
        titles = [
            f"predicted {self._listed(answer)},\nis {self._listed(truth)}" if failed else self._listed(answer)
            for answer, truth, failed in zip(predicted.tolist(), true.tolist(), wrong, strict=True)
        ]
        images = batch.images
        if capsules is not None and model.decoder is not None:
            # Each row of images is above the row of reconstructions from their longest capsules.
            rebuilt = model.reconstruct(capsules).to(images)
            pairs = list(zip(images.split(_DRAWN), rebuilt.split(_DRAWN), strict=True))
            images = torch.cat([part for pair in pairs for part in pair])
            rows = [titles[i : i + _DRAWN] for i in range(0, len(titles), _DRAWN)]
            titles = [title for row in rows for title in (*row, *["rebuilt"] * len(row))]
            flags = [wrong[i : i + _DRAWN] for i in range(0, len(wrong), _DRAWN)]
            wrong = [flag for row in flags for flag in (*row, *[False] * len(row))]
        draw_images(images, titles, path, columns=_DRAWN, wrong=wrong)

    def summary(self, figures: Mapping[str, Any], chosen: str) -> list[tuple[str, str]]:
        rows = super().summary(figures, chosen)
        balanced = figures.get("balanced_accuracy")
        if balanced is not None and abs(balanced - figures["accuracy"]) > UNEVEN:
            rows.append(("balanced accuracy", f"{self.show(balanced)}, the mean over the classes"))
        if "mean_hits" in figures:
            share, some = self.show(figures["mean_hits"]), self.show(figures["any_hit"])
            rows.append(("objects hit", f"{share} of all objects; at least one in {some} of the images"))
        return rows
