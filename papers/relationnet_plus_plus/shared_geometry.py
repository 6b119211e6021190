"""Time, work and memory of the scores of locations: from a table that all pairs share, and for each pair by itself."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from mereo.layers.keypoints import centres
from mereo.mechanisms.attention import LocationTable
from mereo.runtime.turns import median_seconds
from papers.common.settings import Settings

SIDE, STRIDES, KEYS, HEADS, CELLS, HIDDEN, TIMES = 128, (8, 16, 32), 50, 8, 401, 512, 3
"""Pixels of a side of the image, its levels, keys, heads of the attention, cells of the table, units of the network of
the paper, and passes of which the median counts."""


class SquareTable(nn.Module):
    """The same table as a square of all offsets, as the released code makes it, read with `grid_sample`."""

    code: Tensor

    def __init__(self, table: LocationTable) -> None:
        super().__init__()
        self.table = table
        places = torch.arange(CELLS) - CELLS // 2
        axis = table._code(places)
        square = torch.cat((axis[None].expand(CELLS, -1, -1), axis[:, None].expand(-1, CELLS, -1)), -1)
        self.register_buffer("code", square.contiguous())

    def forward(self, offsets: Tensor) -> Tensor:
        square = F.linear(self.code, self.table.weight, self.table.bias).permute(2, 0, 1).unsqueeze(0)
        sampled = F.grid_sample(
            square, (offsets / (CELLS // 2)).unsqueeze(0), padding_mode="border", align_corners=True
        )
        return sampled.squeeze(0).permute(1, 2, 0)


class TwoLayers(nn.Module):
    """The network of the paper, of two layers, applied to the embedding of each pair."""

    def __init__(self, table: LocationTable) -> None:
        super().__init__()
        self.table, width = table, table.weight.shape[1]
        self.layers = nn.Sequential(
            nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HEADS)
        )

    def forward(self, offsets: Tensor) -> Tensor:
        return self.layers(self.table._code(offsets).flatten(-2))


def _measure(module: Callable[[Tensor], Tensor], offsets: Tensor) -> dict[str, float]:
    """Median time of a pass forward and back, multiply-adds forward, and what is kept for the way back."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), FlopCounterMode(display=False) as count:
        output = module(offsets)
    seconds = median_seconds({"": lambda: module(offsets).square().mean().backward()}, TIMES)[""]
    del output
    return {
        "multiply-adds, M": count.get_total_flops() / 2e6,
        "kept, MB": sum(kept.values()) / 1e6,
        "ms": 1000 * seconds,
    }


def run(settings: Settings) -> dict[str, Any]:
    """One row for each way to score the locations of the pairs of an image."""
    torch.manual_seed(0)
    places = torch.cat([centres(-(-SIDE // s), -(-SIDE // s), s, torch.zeros(1)) for s in STRIDES])
    units = torch.cat([torch.full(((-(-SIDE // s)) ** 2, 1, 1), s / 2) for s in STRIDES])
    offsets = (SIDE * torch.rand(KEYS, 2) - places.unsqueeze(1)) / units
    table, direct = LocationTable(HEADS, CELLS), LocationTable(HEADS, None)
    direct.load_state_dict(table.state_dict())
    ways = {
        "shared, a row and a column": table,
        "shared, a square": SquareTable(table),
        "each pair, linear": direct,
        "each pair, two layers": TwoLayers(direct),
    }
    rows = [{"geometry": name, **_measure(way, offsets)} for name, way in ways.items()]
    with torch.no_grad():
        reference, square = direct(offsets), ways["shared, a square"](offsets)
        error = float((table(offsets) - reference).abs().max() / reference.abs().max())
        same = float((table(offsets) - square).abs().max() / reference.abs().max())
    return {
        "tables": {f"{len(places)} cells, {KEYS} keys, {HEADS} heads, a table of {CELLS} x {CELLS}": rows},
        "notes": [
            f"Reading between cells differs from computing by {error:.1e} of the largest score; the two tables by"
            f" {same:.1e}."
        ],
    }
