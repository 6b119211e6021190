"""CLEAR by each of its executions, over radii and sizes of the image, compared with full attention."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.bench.counting import FLOAT
from mereo.bench.results import Run
from mereo.bench.suite import Contender, Mode, Setting, Suite, Table, UnavailableError, Work, Workload
from mereo.core import Circle
from mereo.mechanisms.attention import clear_attention

MOST_DENSE = 2**28
"""Pairs of tokens above which the dense contenders are left out."""
FULL = "full attention"


def circle_of(setting: Setting) -> Circle:
    """The sides of a square image of about `tokens` tokens, and the length of its text."""
    side = math.isqrt(setting.size("tokens"))
    return Circle((side, side), setting.size("radius"), setting.size("text"))


def inputs(setting: Setting, mode: Mode) -> tuple[Any, ...]:
    """Queries, keys and values (batch, heads, text + image, dim)."""
    circle = circle_of(setting)
    shape = (setting.size("batch"), setting.size("heads"), circle.text + circle.image, setting.size("dim"))
    return tuple(torch.randn(shape, device=setting.device).requires_grad_(mode == "training") for _ in range(3))


def _work(setting: Setting, mode: Mode, pairs: int) -> Work:
    each = setting.size("batch") * setting.size("heads") * setting.size("dim")
    products, tensors = (2, 4) if mode == "forward" else (7, 12)
    circle = circle_of(setting)
    return Work(2 * products * each * pairs, FLOAT * tensors * each * (circle.text + circle.image))


def work(setting: Setting, mode: Mode) -> Work:
    """Two products forward and five backward, where the scores are made anew, for the pairs that exist."""
    return _work(setting, mode, circle_of(setting).pairs)


def _check_size(setting: Setting) -> None:
    circle = circle_of(setting)
    if (circle.text + circle.image) ** 2 > MOST_DENSE:
        raise UnavailableError(f"{circle.text + circle.image:,} tokens have too many pairs")


def _dense(setting: Setting) -> Contender:
    circle = circle_of(setting)
    tokens = circle.text + circle.image

    def build(mode: Mode) -> Workload:
        _check_size(setting)
        mask = circle.allowed(tokens, tokens, torch.device(setting.device))

        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

        return Workload(call)

    return Contender("dense masked", build)


def _full(setting: Setting) -> Contender:
    """Full attention, which CLEAR replaces."""
    circle = circle_of(setting)

    def build(mode: Mode) -> Workload:
        _check_size(setting)
        return Workload(F.scaled_dot_product_attention)

    everyone = (circle.text + circle.image) ** 2
    return Contender(FULL, build, "unchecked", work=lambda mode: _work(setting, mode, everyone))


def _ours(setting: Setting, method: str, name: str) -> Contender:
    circle = circle_of(setting)

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return clear_attention(q, k, v, circle.grid, circle.radius, text_tokens=circle.text, method=method)

    def build(mode: Mode) -> Workload:
        if method == "flex":
            if mode == "training" and setting.device == "cpu":
                raise UnavailableError("FlexAttention has no gradients on a CPU")
            _check_size(setting)
        return Workload(call)

    return Contender(name, build)


def contenders(setting: Setting) -> tuple[Contender, ...]:
    """Dense attention with a mask first; if it is left out, nothing is compared."""
    methods = {"tiles": "tiles", "compiled": "compiled", "flex": "FlexAttention compiled"}
    return _dense(setting), _full(setting), *(_ours(setting, method, name) for method, name in methods.items())


def digest(run: Run) -> list[Table]:
    """Time and operations for each radius, as percentages of full attention."""
    here = [m for m in run.measurements if m.axis == "radius" and m.wall is not None]
    tables = []
    for mode, threads in dict.fromkeys((m.mode, m.threads) for m in here):
        rows = []
        for m in here:
            whole = next((x for x in here if x.contender == FULL and x.sizes == m.sizes and x.mode == mode), None)
            if (m.mode, m.threads) != (mode, threads) or whole is None or m is whole or m.contender == "dense masked":
                continue
            assert m.wall is not None and whole.wall is not None
            setting = Setting(m.sizes)
            circle = circle_of(setting)
            flops = circle.pairs / (circle.text + circle.image) ** 2
            time = m.wall.median / whole.wall.median
            shown = (f"{1e3 * m.wall.median:.4g}", f"{100 * time:.1f}", f"{100 * flops:.1f}", f"{time / flops:.2f}")
            rows.append((str(m.sizes["radius"]), m.contender, *shown))
        if rows:
            columns = ("radius", "contender", "ms", "% of full attention's time", "% of its FLOPs", "time / FLOPs")
            tables.append(Table(f"Time and operations by radius, {mode}, {threads} threads", columns, tuple(rows)))
    return tables


CLEAR = Suite(
    "clear",
    "CLEAR, attention to all text and a circle of image tokens: radii and sizes, compared with full attention",
    "(q, k, v), each (batch, heads, text + tokens, dim) -> (batch, heads, text + tokens, dim)",
    {"batch": 1, "tokens": 4096, "text": 512, "heads": 4, "dim": 64, "radius": 8},
    inputs,
    contenders,
    work,
    sweeps={"radius": (4, 8, 16, 32), "tokens": (1024, 4096, 16384, 65536)},
    growth=("tokens",),
    theory={"dense masked": 2.0, FULL: 2.0, "tiles": 1.0, "compiled": 1.0},
    digest=digest,
    quick={"tokens": 256, "text": 16, "heads": 2, "dim": 16, "radius": 4},
    quick_sweeps={"radius": (2, 8), "tokens": (256, 1024)},
)
