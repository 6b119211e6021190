"""Two shapes of different classes on a textured ground, and networks trained to name both."""

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.lr_scheduler import OneCycleLR

import mereo
from mereo.data.sets.shape_masks import CLASSES, inside_shape
from mereo.models import VisionModel
from papers.common.fitting import follow

NAMES = CLASSES[1:]
SIDE = 32


class Scenes(NamedTuple):
    """Images (count, 3, 32, 32), masks of classes from 1 on (count, 32, 32), and which of the four shapes are there."""

    images: Tensor
    masks: Tensor
    present: Tensor


def make_scenes(count: int, seed: int) -> Scenes:
    """Two of four shapes side by side or one below the other, lighter or darker than a ground with waves and noise."""
    draws, (down, across) = np.random.default_rng([seed, 2004_02866]), np.mgrid[:SIDE, :SIDE] + 0.5
    images, masks = np.empty((count, 3, SIDE, SIDE)), np.zeros((count, SIDE, SIDE), np.uint8)
    for image, mask in zip(images, masks, strict=True):
        waves = draws.uniform(-0.5, 0.5, 2)
        ground = 0.5 + 0.1 * np.sin(waves[0] * down + waves[1] * across + draws.uniform(0, 6.3))
        image[:] = ground + draws.uniform(-0.1, 0.1, 3)[:, None, None]
        swapped = draws.random() < 0.5
        for kind, near in zip(draws.permutation(len(NAMES))[:2] + 1, (8, 24), strict=True):
            y, x = draws.uniform(8, 24), near + draws.uniform(-1, 1)
            y, x = (x, y) if swapped else (y, x)
            radius, turned = draws.uniform(6, 8), draws.uniform(-0.3, 0.3)
            cosine, sine = np.cos(turned) / radius, np.sin(turned) / radius
            inside = inside_shape(
                int(kind), cosine * (across - x) + sine * (down - y), cosine * (down - y) - sine * (across - x)
            )
            image[:, inside] += draws.choice((-1, 1)) * draws.uniform(0.2, 0.35, 3)[:, None]
            mask[inside] = kind
    images = (images + draws.normal(0, 0.04, images.shape)).clip(0, 1)
    present = np.stack([(masks == kind).any((1, 2)) for kind in range(1, len(CLASSES))], 1)
    return Scenes(torch.from_numpy(images).float(), torch.from_numpy(masks), torch.from_numpy(present))


def networks() -> dict[str, VisionModel]:
    """A residual CNN, a vision transformer and MSPCaps, of 20 to 120 thousand weights."""
    presets: dict[str, tuple[str, dict[str, Any]]] = {
        "CNN": ("resnet20", {"blocks": 1, "widths": (8, 16, 32)}),
        "ViT": ("vit_tiny", {"patch_size": 8, "embed_dim": 48, "depth": 4, "num_heads": 4}),
        "MSPCaps": ("mspcaps_tiny", {"channels": (8, 16, 32)}),
    }
    made = {}
    for name, (preset, arguments) in presets.items():
        torch.manual_seed(0)
        made[name] = mereo.create_model(preset, num_classes=len(NAMES), img_size=SIDE, **arguments)
    return made


def train(model: VisionModel, scenes: Scenes, steps: int, batch: int) -> None:
    """Adam with one cycle of the rate, on images flipped at random; both shapes of an image are right.

    The loss is the cross entropy of each shape by itself, of capsules with their lengths as probabilities.
    """
    schedule = OneCycleLR(torch.optim.Adam(model.parameters(), lr=1e-3), 3e-3, total_steps=steps)
    draws = torch.Generator().manual_seed(1)
    loss_of = F.binary_cross_entropy if model.score_kind == "lengths" else F.binary_cross_entropy_with_logits
    torch.manual_seed(0)
    model.train()
    for _ in range(steps):
        chosen = torch.randint(len(scenes.images), (batch,), generator=draws)
        images = scenes.images[chosen]
        flipped = torch.rand(batch, 1, 1, 1, generator=draws) < 0.5
        scores = model(torch.where(flipped, images.flip(3), images) * 2 - 1)
        loss = loss_of(
            scores.clamp(1e-4, 1 - 1e-4) if model.score_kind == "lengths" else scores, scenes.present[chosen].float()
        )
        follow(schedule, loss)
    model.eval()
