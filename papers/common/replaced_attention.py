"""A small vision transformer, trained, and how close networks with another attention come to it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.data import Batch, Splits
from mereo.data.split import stratified
from mereo.training.distil import Distilled, distil
from mereo.training.matching import Match
from papers.common.deep_networks import DeepTransformer
from papers.common.deep_training import small_images
from papers.common.fitting import fit
from papers.common.settings import Settings

DEPTH, DIM, HEADS, PATCH, EPOCHS, BATCH, TESTED, RATE = 4, 48, 3, 4, 12, 64, 1000, 2e-3
TOKENS = 65
"""Patches of an image of 32 x 32 pixels, and the class token."""


def _inputs(batch: Batch, draws: torch.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
    return (2 * batch.images - 1,), batch.labels


@dataclass
class Teacher:
    """A trained transformer with the images it was trained and is tested on.

    Attributes:
        model: in eval mode.
        data: name of the data set.
        splits: of the data set.
        images, labels: test images in [-1, 1].
        settings: of the experiment.
        device: of the model.
    """

    model: nn.Module
    data: str
    splits: Splits
    images: Tensor
    labels: Tensor
    settings: Settings
    device: torch.device

    @torch.no_grad()
    def logits(self, model: nn.Module) -> Tensor:
        """Of the test images."""
        return torch.cat([model.eval()(part) for part in self.images.split(250)])

    def row(self, model: nn.Module) -> dict[str, Any]:
        """Accuracy, agreement with the teacher, and KL(teacher || model) of a network."""
        ours, expected = self.logits(model), self.logits(self.model)
        divergence = F.kl_div(ours.log_softmax(1), expected.log_softmax(1), reduction="batchmean", log_target=True)
        return {
            "test %": 100 * (ours.argmax(1) == self.labels).float().mean().item(),
            "agrees %": 100 * (ours.argmax(1) == expected.argmax(1)).float().mean().item(),
            "KL": divergence.item(),
        }

    def teach(self, student: nn.Module, matches: Sequence[Match], title: str, epochs: int, **how: Any) -> Distilled:
        """Distil the teacher into a student, and print one line."""
        result = distil(
            self.model, student, self.splits.train, matches, prepare=_inputs, epochs=epochs,
            batch_size=self.settings.batch_size or BATCH, device=self.device, progress=False, **how,
        )  # fmt: skip
        first = result.history[0]["loss"]
        self.settings.say(f"{title}: loss {first:.3g} to {result.loss:.3g}, {result.seconds:.0f} s")
        return result


def train_teacher(settings: Settings) -> Teacher:
    """Train the dense transformer: `settings.epochs` of it, 12 by default."""
    data, splits = small_images(settings)
    device = settings.chosen_device()
    torch.manual_seed(0)
    shape, classes = splits.train.image_shape, len(splits.class_names)
    model = DeepTransformer(
        shape, classes, DEPTH, patch=PATCH, dim=DIM, heads=HEADS, residual="pre_norm", token="first"
    ).to(device)

    def loss(batch: Batch) -> Tensor:
        return F.cross_entropy(model(2 * batch.images - 1), batch.labels)

    fit(
        loss, model.parameters(), splits.train, epochs=settings.epochs or EPOCHS, lr=RATE, device=device,
        batch_size=settings.batch_size or BATCH, title="dense", say=settings.say,
    )  # fmt: skip
    everything = splits.test.batch(torch.arange(len(splits.test)))
    chosen = stratified(everything.labels, settings.images or TESTED, 0)[1]
    images, labels = (x[chosen].to(device) for x in (2 * everything.images - 1, everything.labels))
    return Teacher(model.eval(), data, splits, images, labels, settings, device)
