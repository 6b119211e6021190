"""Two shapes of different classes on a textured ground, and networks trained to name both."""

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import mereo
from mereo.data.sets.shape_masks import CLASSES, make_sample
from mereo.models import VisionModel

NAMES = CLASSES[1:]
SMALLEST = 25
"""Fewest visible pixels of a shape."""


class Scenes(NamedTuple):
    """Images (count, 3, 32, 32), masks of classes from 1 on (count, 32, 32), and which of the four shapes are there."""

    images: Tensor
    masks: Tensor
    present: Tensor


def make_scenes(count: int, seed: int) -> Scenes:
    """Samples of `shape_masks` in which exactly two kinds of shapes are seen."""
    generator, kept = np.random.default_rng([seed, 2004_02866]), list[Any]()
    while len(kept) < count:
        image, mask = make_sample(generator)
        areas = np.bincount(mask.flatten(), minlength=len(CLASSES))[1:]
        if (areas > 0).sum() == 2 and areas[areas > 0].min() >= SMALLEST:
            kept.append((image, mask, areas > 0))
    images, masks, present = (torch.from_numpy(np.stack(each)) for each in zip(*kept, strict=True))
    return Scenes(images.float() / 255, masks, present)


def networks() -> dict[str, VisionModel]:
    """A residual CNN, a vision transformer and MSPCaps, of 20 to 120 thousand weights."""
    torch.manual_seed(0)
    common: dict[str, Any] = {"num_classes": len(NAMES), "img_size": 32}
    return {
        "CNN": mereo.create_model("resnet20", blocks=1, widths=(8, 16, 32), **common),
        "ViT": mereo.create_model("vit_tiny", patch_size=4, embed_dim=48, depth=4, num_heads=4, **common),
        "MSPCaps": mereo.create_model("mspcaps_tiny", channels=(8, 16, 32), **common),
    }


def train(model: VisionModel, scenes: Scenes, steps: int, batch: int) -> None:
    """Adam with one cycle of the rate, on images flipped at random; both shapes of an image are right.

    The loss is the cross entropy of each shape by itself, of capsules with their lengths as probabilities.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    draws = torch.Generator().manual_seed(1)
    loss_of = F.binary_cross_entropy if model.score_kind == "lengths" else F.binary_cross_entropy_with_logits
    model.train()
    for _ in range(steps):
        chosen = torch.randint(len(scenes.images), (batch,), generator=draws)
        images = scenes.images[chosen]
        flipped = torch.rand(batch, 1, 1, 1, generator=draws) < 0.5
        scores = model(torch.where(flipped, images.flip(3), images) * 2 - 1)
        loss = loss_of(
            scores.clamp(1e-4, 1 - 1e-4) if model.score_kind == "lengths" else scores, scenes.present[chosen].float()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
