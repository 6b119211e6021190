"""Rotary positions: pairs of channels turned by angles that grow with the position.

Source: Su et al. 2021, arXiv:2104.09864.
"""

import torch
from torch import Tensor

BASE = 10_000.0
"""Wavelengths of rotary positions grow up to 2 pi times this."""


def rotate(x: Tensor, position: int = 0, *, neighbours: bool = False) -> Tensor:
    """Turn pairs of channels of token t: pair c of D / 2 by the angle t BASE^(-2 c / D).

    Args:
        position: number of the first token.
        neighbours: whether a pair is channels 2 c and 2 c + 1, in place of c and c + D / 2.

    Shapes: (batch, heads, tokens, D), D even -> the same.
    """
    half = x.shape[-1] // 2
    rates = BASE ** (-torch.arange(half, dtype=torch.float32, device=x.device) / half)
    angles = torch.arange(position, position + x.shape[2], device=x.device).unsqueeze(1) * rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    if neighbours:
        first, second = x.unflatten(-1, (half, 2)).unbind(-1)
        return torch.stack((first * cos - second * sin, first * sin + second * cos), -1).flatten(-2)
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, first * sin + second * cos), -1)
