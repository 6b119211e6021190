"""What spectral gating adds to attention: networks of one size with no, some and only spectral blocks, in both orders.

All have the same number of blocks and, by the hidden sizes of their feed-forwards, of parameters; they are trained with
the same images in the same order.
"""

from functools import partial
from typing import Any

from torch import nn

from mereo.models import create_model
from papers.common.comparison import compare
from papers.common.deep_training import small_images
from papers.common.settings import Settings

DIM, DEPTH, PATCH, HEADS, HIDDEN = 128, 6, 4, 2, 512
"""Sizes of the networks; `HIDDEN` is the size of the feed-forwards with two spectral blocks."""
IMAGES, EPOCHS, RATE = 2500, 10, 1e-3
NETWORKS = {
    "attention only": (0, True),
    "2 spectral blocks, then attention": (2, True),
    "attention, then 2 spectral blocks": (2, False),
    "spectral only": (DEPTH, True),
}
"""Of each network, how many blocks are spectral, and whether these are the first."""


def hidden_size(spectral: int, side: int) -> int:
    """The size of the feed-forwards at which a network has the number of parameters of one with two spectral blocks.

    Args:
        spectral: how many blocks are spectral.
        side: of the map in patches.
    """

    def mixing(count: int) -> int:
        return (DEPTH - count) * 4 * (DIM**2 + DIM) + count * 2 * side * (side // 2 + 1) * DIM

    return HIDDEN + round((mixing(2) - mixing(spectral)) / (DEPTH * (2 * DIM + 1)))


def make(shape: tuple[int, int, int], num_classes: int, *, spectral: int, first: bool) -> nn.Module:
    """A SpectFormer for images of (channels, side, side)."""
    ratio = hidden_size(spectral, shape[1] // PATCH) / DIM
    model: nn.Module = create_model(
        "spectformer_tiny", num_classes=num_classes, in_chans=shape[0], img_size=shape[1], patch_size=PATCH, dim=DIM,
        depth=DEPTH, num_heads=HEADS, spectral_layers=spectral, spectral_first=first, ratio=ratio,
    )  # fmt: skip
    return model


def run(settings: Settings) -> dict[str, Any]:
    """A table of losses and accuracies, and the curves."""
    networks = {name: partial(make, spectral=count, first=first) for name, (count, first) in NETWORKS.items()}
    return compare(
        settings, *small_images(settings, IMAGES), networks, differ="kind of blocks", depth=DEPTH,
        picture="spectral_layers.png", epochs=EPOCHS, rate=RATE,
    )  # fmt: skip
