"""Tensor attention by a polynomial: its error and bound by the degree, and the time of three forms by the tokens."""

import math
import time
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mereo.mechanisms.attention.higher_order.tensor_attention import tensor_attention
from mereo.pictures import new_figure, save_figure
from mereo.runtime.turns import median_seconds
from papers.common.settings import Settings

DEGREES, SIZES = (0, 2, 4, 6, 8, 10, 12), (1.0, 1.5)
"""Degrees, and sizes of the largest entries."""
COUNT, DIM = 24, 3
"""Tokens and dimensions of the comparison by degrees."""
TOKENS: dict[str, tuple[int, ...]] = {
    "exact": (32, 64, 128, 256),
    "streamed": (32, 64, 128, 256, 512),
    "polynomial": (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
}
TIMED_DIM, TIMED_DEGREE, REPEATS = 4, 4, 5
PICTURE = "tensor_forms.png"

Sets = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def draw(tokens: int, dim: int, size: float, dtype: torch.dtype = torch.float64) -> Sets:
    """q, k1, v1, k2, v2, uniform between -size and size; values between -1 and 1."""
    q, k1, v1, k2, v2 = (2 * torch.rand(5, 1, 1, tokens, dim, dtype=dtype) - 1).unbind()
    return size * q, size * k1, v1, size * k2, v2


@torch.inference_mode()
def errors(size: float) -> list[dict[str, Any]]:
    """The largest error of an output and its bound, by the degree."""
    torch.manual_seed(0)
    inputs = draw(COUNT, DIM, size)
    exact = tensor_attention(*inputs, method="exact")
    rows = []
    for degree in DEGREES:
        found, bound = tensor_attention(*inputs, method="polynomial", degree=degree, return_bound=True)
        rows.append(
            {
                "entries up to": size,
                "degree": degree,
                "features": math.comb(DIM + degree, degree),
                "error": (found - exact).abs().max().item(),
                "bound": None if math.isinf(bound) else bound,
            }
        )
    return rows


@torch.inference_mode()
def seconds(method: str, tokens: int) -> float:
    """The median processor time of a call."""
    torch.manual_seed(0)
    inputs = draw(tokens, TIMED_DIM, 1.0, torch.float32)
    call = partial(tensor_attention, *inputs, method=method, degree=TIMED_DEGREE)
    return median_seconds({method: call}, REPEATS, time.process_time)[method]


def run(settings: Settings) -> dict[str, Any]:
    """Both tables and a picture of both."""
    by_degree = [row for size in SIZES for row in errors(size)]
    times = {}
    for method, counts in TOKENS.items():
        for tokens in counts:
            times[method, tokens] = 1000 * seconds(method, tokens)
            settings.say(f"{method}, {tokens} tokens: {times[method, tokens]:.2f} ms")
    all_counts = sorted({tokens for _, tokens in times})
    rows = [{"tokens": n, **{f"{m} ms": times.get((m, n)) for m in TOKENS}} for n in all_counts]
    _draw(by_degree, times, settings)
    return {
        "tables": {"Error by the degree": by_degree, "Processor time of a call": rows},
        "notes": [
            f"Errors: {COUNT} tokens of {DIM} dimensions in float64; the bound is infinite where none is shown.",
            f"Times: one head of {TIMED_DIM} dimensions in float32, degree {TIMED_DEGREE}.",
        ],
        "pictures": [PICTURE],
    }


def _draw(by_degree: list[dict[str, Any]], times: dict[tuple[str, int], float], settings: Settings) -> None:
    figure = new_figure(8.4, 3.2)
    left, right = figure.subplots(1, 2)
    for size, colour in zip(SIZES, ("#1971c2", "#e8590c"), strict=True):
        rows = [row for row in by_degree if row["entries up to"] == size]
        bounded = [row for row in rows if row["bound"] is not None]
        left.plot(
            [r["degree"] for r in rows], [r["error"] for r in rows], marker="o", color=colour,
            label=f"error, entries to {size:g}",
        )  # fmt: skip
        left.plot(
            [r["degree"] for r in bounded], [r["bound"] for r in bounded], "--", color=colour,
            label=f"bound, entries to {size:g}",
        )  # fmt: skip
    left.set(yscale="log", xlabel="degree of the polynomial", ylabel="largest error of an output")
    for method, counts in TOKENS.items():
        right.plot(counts, [max(times[method, n], 1e-3) for n in counts], marker="o", label=method)
    right.set(xscale="log", yscale="log", xlabel="tokens", ylabel="processor time, ms")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=7)
    save_figure(figure, settings.folder / PICTURE)
