"""Codes of positions: sines, tables by distance, tables of another size, and biases of scores by the distance."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.core.squash import accumulation_type
from mereo.errors import UsageError, check_choice, check_count, check_positive

DISTANCES = ("linear", "harmonic")
"""b(n): n, or the sum of 1 / t for t = 1 .. n, which grows as log n does."""


def sinusoids(positions: Tensor, like: Tensor) -> Tensor:
    """sin(p / 10000^(2 i / dim)), cos(p / 10000^(2 i / dim)) in turn, for rows of the size and type of `like`.

    Shapes: positions (batch or 1, rows), like (..., dim) -> (batch or 1, rows, dim).
    """
    dim, wide = like.shape[-1], accumulation_type(like)
    rates = 10000 ** (-torch.arange(0, dim, 2, device=like.device, dtype=wide) / dim)
    angles = positions.unsqueeze(-1) * rates
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2).to(like.dtype)


def distance_table(count: int, columns: int, norm: float, sigma: float = 2.0, seed: int = 0) -> Tensor:
    """Codes of equal norm whose cosine is a Gaussian of their distance, exactly.

    cos(e_i, e_j) = K_ij = exp(-(i - j)^2 / (2 sigma^2)),   K = U L U^T,   e = norm [U sqrt(L), 0] R

    Args:
        count: positions.
        columns: size of a code, at least `count`.
        norm: of each code.
        sigma: positions over which codes stay similar.
        seed: of R, a random rotation.

    Shapes: -> float32 (count, columns).

    Reference: arXiv:2407.13335, whose code approaches it by 10,000 steps of Adam.
    """
    check_count(1, count=count)
    check_positive(norm=norm, sigma=sigma)
    if count > columns:
        raise UsageError(f"count is {count} and columns {columns}; codes of {count} positions need as many columns.")
    places = np.arange(count)
    gram = np.exp(-np.square(places[:, None] - places) / (2 * sigma**2))
    values, vectors = np.linalg.eigh(gram)
    table = np.zeros((count, columns))
    table[:, :count] = vectors * np.sqrt(values.clip(min=0))
    rotation, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((columns, columns)))
    return torch.tensor((norm * table @ rotation).tolist())


def distance_bias(slopes: Tensor, kind: str, receivers: int, senders: int) -> Tensor:
    """What causal attention subtracts from a score, by the distance of its tokens, as a bias to add.

    bias_hij = -slope_h b(i - j) for j <= i,   b(n) = n, or 1 + 1/2 + ... + 1/n

    Args:
        slopes: of each head.
        kind: "linear" (ALiBi) or "harmonic".
        receivers, senders: their numbers; the receivers are the last of the senders. Later senders have the bias 0.

    Shapes: slopes (heads,) -> (1, heads, receivers, senders).

    Reference: arXiv:2108.12409 (linear); arXiv:2410.18441 (harmonic).
    """
    check_choice("kind", kind, DISTANCES)
    places = torch.arange(senders, device=slopes.device)
    apart = (places[senders - receivers :].unsqueeze(1) - places).clamp(min=0)
    if kind == "linear":
        sizes = apart.to(slopes.dtype)
    else:
        steps = torch.where(places > 0, 1 / places.clamp(min=1).double(), 0.0)
        sizes = steps.cumsum(0).to(slopes.dtype)[apart]
    return (-slopes.view(-1, 1, 1) * sizes).unsqueeze(0)


def resize_positions(table: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """A table of positions for a grid of another size, by bicubic interpolation with antialiasing, as timm does.

    Args:
        table: one row for each cell, row by row.
        old, new: (rows, columns) of the grids.

    Shapes: (1, rows * columns of old, dim) -> (1, rows * columns of new, dim), of the same type.
    """
    if table.dim() != 3 or table.shape[1] != old[0] * old[1]:
        raise UsageError(f"the table of positions is {tuple(table.shape)}, and its grid is {old[0]} x {old[1]}.")
    if old == new:
        return table
    maps = table.float().unflatten(1, old).permute(0, 3, 1, 2)
    resized = F.interpolate(maps, size=new, mode="bicubic", antialias=True, align_corners=False)
    return resized.flatten(2).transpose(1, 2).to(table.dtype)
