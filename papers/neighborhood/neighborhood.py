"""How much faster is neighbourhood attention by products of tiles, and fused, than by copying every window?

Only the operator, forward, in one and two dimensions; the ways take turns, and the medians are compared.
"""

from functools import partial
from typing import Any

import torch

from mereo.core.kernels import library
from mereo.mechanisms.attention import neighborhood_attention
from mereo.runtime.turns import median_seconds
from papers.common.settings import Settings

SIZES: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {1: ((2048,), (15, 31, 63)), 2: ((40, 40), (5, 7, 9, 13))}
"""Axes -> the grid, and windows."""
HEADS, DIM, ROUNDS = 4, 32, 5
NAIVE, WAYS = "gathered", {"tiles": "products of tiles", "compiled": "fused"}
REPORTED = {("tiles", 1): 895, ("tiles", 2): 272, ("compiled", 1): 1607, ("compiled", 2): 581}
"""The paper's average gains in percent on GPUs; of the fused one in half precision."""


@torch.inference_mode()
def seconds(grid: tuple[int, ...], window: int, ways: tuple[str, ...], rounds: int = ROUNDS) -> dict[str, float]:
    """The median time of each way; they take turns."""
    q, k, v = (torch.randn(1, *grid, HEADS, DIM, generator=torch.Generator().manual_seed(i)) for i in range(3))
    calls = {way: partial(neighborhood_attention, q, k, v, window, method=way) for way in ways}
    return median_seconds(calls, rounds)


def run(settings: Settings) -> dict[str, Any]:
    """A table of times, and one of the mean gains compared with the paper's."""
    ways = (NAIVE, *(way for way in WAYS if way != "compiled" or library.missing is None))
    rows: list[dict[str, Any]] = []
    gains: dict[tuple[str, int], list[float]] = {}
    for axes, (grid, windows) in SIZES.items():
        for window in windows:
            taken = seconds(grid, window, ways)
            row: dict[str, Any] = {"grid": " x ".join(map(str, grid)), "window": window}
            for way in ways:
                row[f"{WAYS.get(way, 'windows copied')}, ms"] = 1e3 * taken[way]
            for way in ways[1:]:
                gains.setdefault((way, axes), []).append(100 * (taken[NAIVE] / taken[way] - 1))
            rows.append(row)
        settings.say(f"{axes} axes: done")
    means = [
        {"execution": WAYS[way], "axes": axes, "faster by %": sum(g) / len(g), "reported %": REPORTED[way, axes]}
        for (way, axes), g in gains.items()
    ]
    return {
        "tables": {"Time of one call": rows, "Mean gain over copying every window": means},
        "notes": [
            f"{HEADS} heads of {DIM}, float32, {torch.get_num_threads()} threads. The paper's numbers are of its GPU"
            " kernels over its earlier kernels, ours of a CPU over copies of the windows.",
        ],
        "pictures": [],
    }
