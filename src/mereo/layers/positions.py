"""Tables of positions for images of another size, and biases of scores by the distance of tokens."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.errors import UsageError, check_choice

DISTANCES = ("linear", "harmonic")
"""b(n): n, or the sum of 1 / t for t = 1 .. n, which grows as log n does."""


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
