"""What the product in NiNformer's gates adds, compared with a sum and with an MLP-Mixer of the same size.

Blocks, channels and parameters agree; all are trained with the same images in the same order.
"""

from functools import partial
from typing import Any

from torch import Tensor, nn

from mereo.layers import FeedForward
from mereo.mechanisms.gate import MixerGate
from mereo.mechanisms.gate.mixer_gate import Mixing, TokenLinear
from mereo.models import create_model
from mereo.models.vision import NiNformer
from papers.common.comparison import compare
from papers.common.deep_training import small_images
from papers.common.settings import Settings

DIM, DEPTH, PATCH, HIDDEN, SIZE = 64, 2, 4, 128, 28
IMAGES, EPOCHS, RATE = 10_000, 3, 1e-3
NETWORKS = {"product": "NiNformer", "sum": "sum in place of the product", "mixer": "MLP-Mixer, wider"}


class SumGate(MixerGate):
    """The projection of the tokens plus the Mixer's output for them: W z + b + g. Shapes: as `MixerGate`."""

    def forward(self, tokens: Tensor) -> Tensor:
        return self.proj(tokens) + self.mix(tokens)


class MixerBlock(nn.Module):
    """An MLP-Mixer layer and a third part: x += part(norm x), first along the tokens, then twice along the channels.

    The third part has dim / 2 more hidden units than the third part of `NiNBlock`, in place of the projection.

    Args:
        dim, num_tokens, hidden_dim: as of `NiNBlock`.

    Shapes: maps (batch, dim, rows, columns) -> the same.
    """

    def __init__(self, dim: int, num_tokens: int, hidden_dim: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        along_tokens = TokenLinear(num_tokens, hidden_dim), TokenLinear(hidden_dim, num_tokens)
        parts = (Mixing(*along_tokens, 0.0), FeedForward(dim, hidden_dim), FeedForward(dim, hidden_dim + dim // 2))
        self.parts = nn.ModuleList(parts)

    def forward(self, maps: Tensor) -> Tensor:
        x = maps.permute(0, 2, 3, 1).flatten(1, 2)
        for norm, part in zip(self.norms, self.parts, strict=True):
            x = x + part(norm(x))
        return x.unflatten(1, maps.shape[2:]).permute(0, 3, 1, 2)


def make(shape: tuple[int, int, int], num_classes: int, *, network: str) -> nn.Module:
    """A network for images of (channels, side, side), by its name in `NETWORKS`."""
    model = create_model(
        "ninformer_cifar", num_classes=num_classes, in_chans=shape[0], img_size=shape[1], patch_size=PATCH, dim=DIM,
        depth=DEPTH, hidden_dim=HIDDEN, dropout=0.0,
    )  # fmt: skip
    assert isinstance(model, NiNformer)
    num_tokens = (shape[1] // PATCH) * (shape[2] // PATCH)
    if network == "mixer":
        model.stages = nn.ModuleList(MixerBlock(DIM, num_tokens, HIDDEN) for _ in range(DEPTH))
    elif network == "sum":
        for block in model.stages:
            block.gate = SumGate(DIM, num_tokens, HIDDEN)
    return model


def run(settings: Settings) -> dict[str, Any]:
    """A table of losses and accuracies, and the curves."""
    networks = {title: partial(make, network=network) for network, title in NETWORKS.items()}
    return compare(
        settings, *small_images(settings, IMAGES, SIZE, "mnist", "MNIST"), networks, differ="network", depth=DEPTH,
        picture="mixer_gating.png", epochs=EPOCHS, rate=RATE,
    )  # fmt: skip
