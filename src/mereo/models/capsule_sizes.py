"""Weights of multi-scale capsules for images of another size: positions and routings on other grids of patches."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mereo.layers import resize_positions

Sides = tuple[int, int]


class Grids(NamedTuple):
    """Patch grids of the maps used, from fine to coarse: of trained weights, and of the network that takes them."""

    old: Sequence[Sides]
    new: Sequence[Sides]


def cells(grid: Sides) -> int:
    """Number of patches of a grid."""
    return grid[0] * grid[1]


def over_grid(weight: Tensor, old: Sides, new: Sides) -> Tensor:
    """Transforms of the senders of a grid, interpolated like a table of positions.

    Shapes: (receivers, cells of old, dim, pose) -> (receivers, cells of new, dim, pose).
    """
    receivers, _, dim, pose = weight.shape
    table = weight.transpose(0, 1).reshape(1, cells(old), -1)
    resized = resize_positions(table, old, new).view(cells(new), receivers, dim, pose)
    return resized.transpose(0, 1).contiguous()


def nearest_members(old: Sides, new: Sides, old_members: int, new_members: int) -> Tensor:
    """For each capsule grouped under a cell of the new grid, the index of one under the nearest cell of the old grid.

    Shapes: -> int64 (cells of new * new_members,).
    """
    rows, columns = (((torch.arange(n) + 0.5) * o / n).long().clamp(max=o - 1) for o, n in zip(old, new, strict=True))
    near = (rows.unsqueeze(1) * old[1] + columns).flatten()
    members = torch.arange(new_members) % old_members
    return (near.unsqueeze(1) * old_members + members).flatten()


def resize_routings(
    tensors: Mapping[str, Tensor], grids: Grids, scales: Sequence[int], members: tuple[Sequence[int], Sequence[int]],
    sums: bool,
) -> dict[str, Tensor]:  # fmt: skip
    """The tensors of `MultiScaleCapsules` with cross-agreement, for the grids of another image size.

    Tables of positions and the transforms of capsules with a place are interpolated. Capsules without one, grouped
    under a coarser cell, take the transform of one under the nearest cell.

    Args:
        tensors: of a network with the old grids.
        grids: of the maps used.
        scales: numbers of the maps.
        members: for the old and the new grids, the number of capsules under a cell in the middle routing and in the
            head.
        sums: whether parents sum over the senders, so that votes must be rescaled for another number of senders.
    """
    adapted = dict(tensors)
    for i, old, new in zip(scales, *grids, strict=True):
        name = f"patchify.{i}.position"
        adapted[name] = resize_positions(tensors[name].unsqueeze(0), old, new)[0]
    routings = {"head": -1} if len(scales) < 3 else {"middle": 1, "head": 2}
    for number, (routing, place) in enumerate(routings.items()):
        old, new = grids.old[place], grids.new[place]
        scale = cells(old) / cells(new) if sums else 1.0
        if (weight := tensors.get(f"{routing}.weight")) is not None:
            adapted[f"{routing}.weight"] = scale * over_grid(weight, old, new)
        if (own := tensors.get(f"{routing}.fine_weight")) is not None:
            inside = nearest_members(old, new, members[0][number], members[1][number])
            adapted[f"{routing}.fine_weight"] = own[:, inside].contiguous()
    if len(scales) == 3:
        parents = nearest_members(grids.old[2], grids.new[2], members[0][1], members[1][1])
        for name in ("middle.weight", "middle.fine_weight"):
            if name in adapted:
                adapted[name] = adapted[name][parents].contiguous()
    return adapted
