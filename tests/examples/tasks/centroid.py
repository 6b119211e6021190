"""Centroid: where on the image its brightness is centred."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mereo.data import Batch
from mereo.tasks.base import Metrics, Objective, Settings, Task, register_task
from mereo.tasks.pictures import draw_images


def centroids(batch: Batch) -> Tensor:
    """Where the brightness of each image is centred, as shares of height and width: (batch, 2)."""
    images = batch.images if batch.targets is None else batch.targets  # targets are not normalised
    weight = images.flatten(1, -3).mean(1) + 1e-6
    weight = weight / weight.sum((1, 2), keepdim=True)
    rows, columns = ((torch.arange(side, device=images.device) + 0.5) / side for side in weight.shape[1:])
    return torch.stack([(weight.sum(2) * rows).sum(1), (weight.sum(1) * columns).sum(1)], 1)


class CentroidObjective(Objective):
    """The mean squared error of the two shares."""

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        outputs = self.model(batch.images)
        return self.loss(outputs, batch), outputs

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return nn.functional.mse_loss(outputs, centroids(batch))


class CentroidMetrics(Metrics):
    """The mean distance to the centroid."""

    def update(self, outputs: Tensor, batch: Batch) -> None:
        distances = (outputs - centroids(batch)).norm(dim=1)
        self.add(distances.new_tensor(len(distances)), distances.sum())

    def compute(self) -> dict[str, float]:
        count, total = self.state.tolist()
        return {"distance": total / max(count, 1)}


@register_task
class Centroid(Task):
    """Two numbers for an image: the share of its height and of its width at which its brightness is centred."""

    name = "centroid"
    chooses = ("distance", "min")

    def num_outputs(self, num_classes: int) -> int:
        return 2

    def objective(self, model: nn.Module, settings: Settings) -> CentroidObjective:
        return CentroidObjective(model)

    def metrics(self) -> CentroidMetrics:
        return CentroidMetrics(2)

    def predict(self, outputs: Tensor, top: int = 3) -> list[dict[str, Any]]:
        return [{"row": row, "column": column} for row, column in outputs.tolist()]

    def example(self, model: Any, count: int, objects: int = 1) -> Batch:
        images = torch.rand(count, *model.image_shape, device=next(model.parameters()).device)
        return Batch(images, targets=images)

    def draw(self, model: nn.Module, batch: Batch, prepared: Batch, path: Path) -> None:
        rows = self.predict(self.apply(model, prepared))
        draw_images(batch.images, [f"{row['row']:.2f}, {row['column']:.2f}" for row in rows], path)
