"""Neighbourhood attention by each of its executions, compared with dense attention with a mask and FlexAttention."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.bench.counting import FLOAT
from mereo.bench.suite import Contender, Mode, Setting, Suite, UnavailableError, Work, Workload
from mereo.core import Neighborhood
from mereo.mechanisms.attention import neighborhood_attention

MOST_DENSE = 2**28
"""Pairs of tokens above which the dense contenders are left out."""


def topology_of(setting: Setting) -> Neighborhood:
    """A grid of about `tokens` tokens, with axes of equal length."""
    axes = setting.size("axes")
    side = round(setting.size("tokens") ** (1 / axes))
    return Neighborhood((side,) * axes, setting.size("window"), dilation=setting.size("dilation"))


def inputs(setting: Setting, mode: Mode) -> tuple[Any, ...]:
    """Queries, keys and values (batch, *grid, heads, dim)."""
    shape = (setting.size("batch"), *topology_of(setting).grid, setting.size("heads"), setting.size("dim"))
    return tuple(torch.randn(shape, device=setting.device).requires_grad_(mode == "training") for _ in range(3))


def work(setting: Setting, mode: Mode) -> Work:
    """Two products forward and five backward, where the scores are made anew, only for the pairs of the windows."""
    topology = topology_of(setting)
    entries = setting.size("batch") * topology.tokens * setting.size("heads") * setting.size("dim")
    products, tensors = (2, 4) if mode == "forward" else (7, 12)
    return Work(2 * products * entries * topology.size, FLOAT * tensors * entries)


def _heads_first(x: Tensor) -> Tensor:
    return x.flatten(1, -3).transpose(1, 2)


def _heads_last(x: Tensor, grid: tuple[int, ...]) -> Tensor:
    return x.transpose(1, 2).unflatten(1, grid)


def _dense(setting: Setting) -> Contender:
    topology = topology_of(setting)

    def build(mode: Mode) -> Workload:
        if topology.tokens**2 > MOST_DENSE:
            raise UnavailableError(f"{topology.tokens:,} tokens have too many pairs")
        mask = topology.allowed(topology.tokens, topology.tokens, torch.device(setting.device))

        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = map(_heads_first, (q, k, v))
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            return _heads_last(out, topology.grid)

        return Workload(call)

    return Contender("dense masked", build)


def _flex(setting: Setting) -> Contender:
    """PyTorch's FlexAttention, compiled, with a mask of blocks."""
    topology = topology_of(setting)

    def build(mode: Mode) -> Workload:
        if mode == "training" and setting.device == "cpu":
            raise UnavailableError("FlexAttention has no gradients on a CPU")
        if topology.tokens**2 > MOST_DENSE:
            raise UnavailableError(f"{topology.tokens:,} tokens: making its mask has too many pairs")
        try:
            from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        except ImportError as error:
            raise UnavailableError("this PyTorch has no FlexAttention") from error
        allowed = topology.allowed(topology.tokens, topology.tokens, torch.device(setting.device))

        def is_allowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return allowed[query, key]

        mask = create_block_mask(is_allowed, None, None, topology.tokens, topology.tokens, device=setting.device)
        compiled = torch.compile(flex_attention, dynamic=False)

        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = (_heads_first(x).contiguous() for x in (q, k, v))
            out: Tensor = compiled(q, k, v, block_mask=mask)
            return _heads_last(out, topology.grid)

        return Workload(call)

    return Contender("FlexAttention compiled", build)


def _ours(setting: Setting, method: str) -> Contender:
    def call(q: Tensor, k: Tensor, v: Tensor) -> Any:
        window, dilation = setting.size("window"), setting.size("dilation")
        return neighborhood_attention(q, k, v, window, dilation=dilation, method=method)

    topology = topology_of(setting)
    entries = setting.size("batch") * topology.tokens * setting.size("heads") * setting.size("dim")
    copies = {"gathered": 2 * topology.size, "tiles": 12}.get(method, 0)
    return Contender(
        method,
        lambda mode: Workload(call),
        needs=lambda mode: FLOAT * entries * copies * (3 if mode == "training" else 1),
    )


def contenders(setting: Setting) -> tuple[Contender, ...]:
    """Dense attention first; if it is left out, nothing is compared."""
    return _dense(setting), _flex(setting), *(_ours(setting, method) for method in ("gathered", "tiles", "compiled"))


NEIGHBORHOOD = Suite(
    "neighborhood",
    "neighbourhood attention: windows, dilation, axes and growth, compared with dense attention and FlexAttention",
    "(q, k, v), each (batch, *grid, heads, dim) -> (batch, *grid, heads, dim)",
    {"batch": 4, "tokens": 3136, "heads": 4, "dim": 32, "window": 7, "dilation": 1, "axes": 2},
    inputs,
    contenders,
    work,
    sweeps={
        "window": (3, 5, 7, 9, 11, 13), "dilation": (1, 2, 4, 8), "axes": (1, 2, 3),
        "tokens": (784, 3136, 12544, 50176),
    },
    growth=("tokens",),
    theory={"dense masked": 2.0, "gathered": 1.0, "tiles": 1.0, "compiled": 1.0},
    quick={"batch": 1, "tokens": 400, "heads": 2, "window": 5},
    quick_sweeps={"window": (3, 7), "dilation": (1, 2), "axes": (1, 2), "tokens": (400, 1600)},
)  # fmt: skip
