"""Fourier mixing: tokens and channels are mixed by a fixed transform, without parameters.

Source: arXiv:2105.03824, eq. 3.
Cost: 5 N D (log2 N + log2 D) FLOPs an image, no weights.
"""

import torch
from torch import Tensor, nn

from mereo.core import mechanism


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return FourierMixer(), (torch.randn(2, 6, 8),)


@mechanism(
    "fourier_mixer",
    family="mixer",
    source="arXiv:2105.03824",
    records="nothing",
    promises=("any length",),
    sender_axes={"0": 1},
    receiver_axes={"0": 1, "output": 1},
    example=_example,
)
class FourierMixer(nn.Module):
    """Mix tokens and channels by the real part of a two-dimensional Fourier transform.

    out = Re(F_tokens x F_channels) / sqrt(N D)

    Shapes: tokens (batch, tokens, dim) -> (batch, tokens, dim).

    Deviates: divided by sqrt(N D), so that the size of the numbers stays.
    """

    def forward(self, tokens: Tensor) -> Tensor:
        # PyTorch's CPU has no transform in half precision.
        wide = tokens.float() if tokens.dtype in {torch.float16, torch.bfloat16} else tokens
        return torch.fft.fft2(wide, norm="ortho").real.to(tokens.dtype)
