"""Masks of subjects on the grids of attention: from attention maps, on other grids, without overlaps.

Source: arXiv:2411.19261, and the authors' public code.
Cost: a product of the averaged self-attention with a few vectors, four times.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.errors import UsageError

BINS = 256


def min_max(x: Tensor, dims: int = 2) -> Tensor:
    """(x - min) / (max - min) over the last `dims` axes; zeros for a constant map."""
    flat = x.flatten(-dims)
    least, most = flat.amin(-1, keepdim=True), flat.amax(-1, keepdim=True)
    span = most - least
    return ((flat - least) / span.where(span > 0, 1)).view(x.shape)


def token_columns(attention: Tensor, tokens: Sequence[int | Sequence[int]], argument: str) -> Tensor:
    """The largest column of each group of tokens: (..., cells, words) -> (..., groups, cells).

    Raises:
        UsageError: for no group, an empty one, and a word that does not exist.
    """
    groups = [[each] if isinstance(each, int) else [*each] for each in tokens]
    count = attention.shape[-1]
    if not groups or not all(groups):
        raise UsageError(f"{argument} is {list(tokens)!r}, with an empty set of tokens; name a token for each subject.")
    if wrong := [word for group in groups for word in group if not -count <= word < count]:
        raise UsageError(f"{argument} holds {wrong[0]}, and there are {count} words; give 0 to {count - 1}.")
    return torch.stack([attention[..., group].amax(-1) for group in groups], -2)


def square(maps: Tensor) -> Tensor:
    """Maps (..., cells) as (..., side, side); UsageError for a number of cells that is no square."""
    side = int(maps.shape[-1] ** 0.5 + 0.5)
    if side * side != maps.shape[-1]:
        raise UsageError(f"attention maps have {maps.shape[-1]} cells; they must be of a square grid.")
    return maps.unflatten(-1, (side, side))


def spread_along(self_attn: Tensor, maps: Tensor, power: int) -> Tensor:
    """S^power x for maps x by products of a matrix with vectors: (..., N, N), (..., maps, N) -> (..., maps, N)."""
    for _ in range(power):
        maps = maps @ self_attn.transpose(-1, -2)
    return maps


def masks_from_attention(
    self_attn: Tensor, cross_attn: Tensor, token_ids: Sequence[int | Sequence[int]], power: int = 4
) -> Tensor:
    """Soft masks of subjects from attention: where the words of each stand, spread along self-attention.

    mask = min-max of max over words of sum_{n=1..4} S^n A / 4

    Args:
        self_attn, cross_attn: averaged over heads and layers of one step.
        token_ids: numbers of the words of each subject.

    Shapes: (..., N, N), (..., N, words) -> (..., subjects, side, side) in [0, 1].
    """
    columns = cross_attn.transpose(-1, -2)
    total = torch.zeros_like(columns)
    for _ in range(power):
        columns = spread_along(self_attn, columns, 1)
        total = total + columns / power
    return min_max(square(token_columns(total.transpose(-1, -2), token_ids, "token_ids")))


def otsu_threshold(values: Tensor) -> Tensor:
    """The threshold that separates values in [0, 1] best, by variance between two classes: (..., n) -> (...).

    Reference: Otsu 1979, doi:10.1109/TSMC.1979.4310076, on 256 bins; the middle of the best ones.
    """
    flat = values.reshape(-1, values.shape[-1]).double()
    bins = (flat * (BINS - 1)).round().long()
    counts = torch.zeros(len(flat), BINS, dtype=torch.float64, device=values.device).scatter_add_(
        1, bins, torch.ones_like(flat)
    )
    places = torch.arange(BINS, device=values.device, dtype=torch.float64)
    below, mass = counts.cumsum(1), (counts * places).cumsum(1)
    above, total = below[:, -1:] - below, mass[:, -1:]
    gap = mass / below.clamp(min=1) - (total - mass) / above.clamp(min=1)
    between = below * above * gap**2
    best = between == between.amax(1, keepdim=True)
    threshold = (best * places).sum(1) / best.sum(1) / (BINS - 1)
    return threshold.to(values.dtype).view(values.shape[:-1])


def on_grid(masks: Tensor, size: tuple[int, int]) -> Tensor:
    """Masks on the grid of a layer: bilinear, min-max, 1 above Otsu's threshold: (..., H, W) -> bool (..., h, w).

    Bool masks of the same size stay as they are. A map that is constant gives an empty mask.
    """
    if masks.dtype == torch.bool and masks.shape[-2:] == size:
        return masks
    soft = masks.float().flatten(0, -3).unsqueeze(1)
    soft = F.interpolate(soft, size=size, mode="bilinear", align_corners=False).view(*masks.shape[:-2], *size)
    soft = min_max(soft)
    return soft > otsu_threshold(soft.flatten(-2))[..., None, None]


def without_overlap(masks: Tensor, soft: Tensor | None = None) -> Tensor:
    """Masks of which no two share a cell: a shared one goes to the larger soft mask, or to the first.

    Shapes: bool (..., subjects, H, W), soft the same in numbers -> bool (..., subjects, H, W).
    """
    ranks = masks.to(torch.float32 if soft is None else soft.dtype) if soft is None else soft
    first = ranks.masked_fill(~masks, -torch.inf).argmax(-3, keepdim=True)
    subjects = torch.arange(masks.shape[-3], device=masks.device)[:, None, None]
    return masks & (first == subjects)
