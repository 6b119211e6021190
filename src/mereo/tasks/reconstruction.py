"""Reconstruction: images rebuilt from latent capsules, without labels.

Source: Rawlinson, Ahmed, Kowadlo 2018, arXiv:1804.06094.
"""

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from mereo.core import lengths
from mereo.data import Batch
from mereo.errors import UsageError
from mereo.mechanisms.routing.competing_capsules import BOOST_EVERY
from mereo.models.capsule.sparse_capsnet import Rebuilt
from mereo.tasks.base import Metrics, Objective, Settings, Task, register_task
from mereo.tasks.losses import many_hot, margin_loss, reconstruction_loss
from mereo.tasks.pictures import draw_images

_DRAWN = 8


@runtime_checkable
class Rebuilding(Protocol):
    """A network that rebuilds its images from latent capsules."""

    def rebuild(self, images: Tensor, labels: Tensor | None = None) -> Rebuilt:
        """The rebuilt images, the capsules and their weights."""


class ReconstructionObjective(Objective):
    """The squared error of the rebuilt images; with mask="label" margin loss + reconstruction_weight * error.

    L = mean_b sum_pixels (decoder(m v) - image)^2

    Every 50 steps the boosts of the capsules are adapted.

    Args:
        model: a network with latent capsules and `rebuild`, such as `SparseCapsNet`.
        reconstruction_weight: factor of the squared error for mask="label", which is CapsNet's objective; the latent
            capsules are then the class capsules.
    """

    def __init__(self, model: nn.Module, reconstruction_weight: float = 0.0005) -> None:
        super().__init__(model)
        if not isinstance(model, Rebuilding):
            raise UsageError(
                f"model is a {type(model).__name__}, and the task reconstruction trains latent capsules; take a model"
                f" such as {Reconstruction.example_model}."
            )
        self.supervised, self.reconstruction_weight = self.model.latent.mask == "label", reconstruction_weight

    def at_step(self, step: int, steps: int) -> None:
        if step and step % BOOST_EVERY == 0:
            self.model.latent.rebalance()

    def step(self, batch: Batch) -> tuple[Tensor, Rebuilt]:
        rebuilt = self.model.rebuild(batch.images, batch.labels if self.supervised else None)
        loss = self.loss(rebuilt, batch)
        if self.supervised:
            scores = lengths(rebuilt.poses).float()
            loss = margin_loss(scores, many_hot(batch.labels, scores.shape[1])) + self.reconstruction_weight * loss
        return loss, rebuilt

    def loss(self, outputs: Rebuilt, batch: Batch) -> Tensor:
        return reconstruction_loss(outputs.images.float(), _targets(batch))


def _targets(batch: Batch) -> Tensor:
    """Images in [0, 1] as they should be rebuilt: (batch, channels, height, width)."""
    return batch.images if batch.targets is None else batch.targets


class ReconstructionMetrics(Metrics):
    """The squared error of an image, summed over its pixels, and how many capsules an image uses."""

    def __init__(self) -> None:
        super().__init__(3)

    def update(self, outputs: Rebuilt, batch: Batch) -> None:
        errors = (outputs.images - _targets(batch)).square().sum()
        self.add(errors.new_tensor(len(outputs.images)), errors, (outputs.mask > 0).sum())

    def compute(self) -> dict[str, float]:
        count, errors, used = self.state.tolist()
        return {"error": errors / max(count, 1), "capsules_used": used / max(count, 1)}


@register_task
class Reconstruction(Task):
    """Rebuild images from latent capsules that compete, without labels."""

    name = "reconstruction"
    chooses = ("error", "min")
    example_model = "sparse_caps_mnist"

    def num_outputs(self, num_classes: int) -> int:
        return 0

    def objective(self, model: nn.Module, settings: Settings) -> ReconstructionObjective:
        return ReconstructionObjective(model, settings.reconstruction_weight)

    def metrics(self) -> ReconstructionMetrics:
        return ReconstructionMetrics()

    def apply(self, model: Any, batch: Batch) -> Rebuilt:
        rebuilt: Rebuilt = model.rebuild(batch.images, batch.labels if model.latent.mask == "label" else None)
        return rebuilt

    def predict(self, outputs: Rebuilt, top: int = 3) -> list[dict[str, Any]]:
        """The capsules with the largest weights, each with its weight and its length."""
        weights, indices = outputs.mask.float().topk(min(top, outputs.mask.shape[1]), 1)
        sizes = lengths(outputs.poses.float()).gather(1, indices)
        rows = zip(indices.tolist(), weights.tolist(), sizes.tolist(), strict=True)
        return [
            {"capsules": [{"capsule": c, "weight": w, "length": s} for c, w, s in zip(*row, strict=True)]}
            for row in rows
        ]

    def example(self, model: Any, count: int, objects: int = 1) -> Batch:
        device = next(model.parameters()).device
        images = torch.rand(count, *model.image_shape, device=device)
        return Batch(images, torch.zeros(count, dtype=torch.int64, device=device), images)

    @torch.inference_mode()
    def draw(self, model: Any, batch: Batch, prepared: Batch, path: Path) -> None:
        """Draw rows of images above rows of their reconstructions, with the capsule of the largest weight."""
        rebuilt = self.apply(model.eval(), prepared)
        pairs = zip(batch.images.split(_DRAWN), rebuilt.images.to(batch.images).split(_DRAWN), strict=True)
        winners = [f"capsule {winner}" for winner in rebuilt.mask.argmax(1).tolist()]
        titles = []
        for first in range(0, len(winners), _DRAWN):
            row = winners[first : first + _DRAWN]
            titles += ["image"] * len(row) + row
        draw_images(torch.cat([part for pair in pairs for part in pair]), titles, path, columns=_DRAWN)
