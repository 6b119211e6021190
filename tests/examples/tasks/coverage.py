"""A task that needs masks: the share of each class in an image."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mereo.data import Batch
from mereo.tasks.base import Metrics, Objective, Settings, Task, register_task
from mereo.tasks.pictures import draw_images


def shares(batch: Batch, classes: int) -> Tensor:
    """The share of each class in the pixels that have one: (batch, classes)."""
    assert batch.masks is not None
    found = nn.functional.one_hot(batch.masks + 1, classes + 1)[..., 1:].float().sum((1, 2))
    return found / found.sum(1, keepdim=True).clamp(min=1)


class CoverageObjective(Objective):
    """The cross-entropy of the shares."""

    def __init__(self, model: nn.Module, smoothing: float) -> None:
        super().__init__(model)
        self.smoothing = smoothing

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        outputs = self.model(batch.images)
        return self.loss(outputs, batch), outputs

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        targets = shares(batch, outputs.shape[1])
        return nn.functional.cross_entropy(outputs, targets, label_smoothing=self.smoothing)


class CoverageMetrics(Metrics):
    """The mean over images of the largest difference of a share."""

    def update(self, outputs: Tensor, batch: Batch) -> None:
        errors = (outputs.softmax(1) - shares(batch, outputs.shape[1])).abs().amax(1)
        self.add(errors.new_tensor(len(errors)), errors.sum())

    def compute(self) -> dict[str, float]:
        count, total = self.state.tolist()
        return {"largest_error": total / max(count, 1)}


@dataclass(frozen=True)
class CoverageOptions:
    """How shares are learned.

    Args:
        smoothing: the fraction of the target spread evenly over all classes.
    """

    smoothing: float = 0.0


@register_task
class Coverage(Task):
    """The share of each class in the pixels of an image, learned from masks."""

    name = "coverage"
    requires = ("images", "masks")
    chooses = ("largest_error", "min")
    Options = CoverageOptions
    example_data = "shape_masks"

    def objective(self, model: nn.Module, settings: Settings) -> CoverageObjective:
        return CoverageObjective(model, self.options.smoothing)

    def metrics(self) -> CoverageMetrics:
        return CoverageMetrics(2)

    def predict(self, outputs: Tensor, top: int = 3) -> list[dict[str, Any]]:
        return [{"shares": row} for row in outputs.softmax(1).tolist()]

    def example(self, model: Any, count: int, objects: int = 1) -> Batch:
        images = torch.rand(count, *model.image_shape, device=next(model.parameters()).device)
        return Batch(images, masks=torch.randint(-1, model.num_classes, images[:, 0].shape, device=images.device))

    def draw(self, model: nn.Module, batch: Batch, prepared: Batch, path: Path) -> None:
        rows = self.predict(self.apply(model, prepared))
        draw_images(batch.images, [" ".join(f"{share:.2f}" for share in row["shares"]) for row in rows], path)
