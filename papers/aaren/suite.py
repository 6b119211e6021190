"""Attention of one query to every prefix, by its forms."""

from typing import Any

import torch
from torch import Tensor

import mereo
from mereo.bench.counting import FLOAT
from mereo.bench.suite import Contender, Mode, Setting, Suite, Work, Workload
from papers.common.long_sequences import LENGTHS


def inputs(setting: Setting, mode: Mode) -> tuple[Any, ...]:
    """Scores (batch, heads, tokens), and values (batch, heads, tokens, dim)."""
    shape = tuple(setting.size(name) for name in ("batch", "heads", "tokens"))
    made = torch.randn(shape, device=setting.device), torch.randn(*shape, setting.size("dim"), device=setting.device)
    return tuple(x.requires_grad_(mode == "training") for x in made)


def work(setting: Setting, mode: Mode) -> Work:
    """A multiply-add for each value and a product for each output; values and outputs are moved once."""
    tokens, dim = setting.size("batch") * setting.size("heads") * setting.size("tokens"), setting.size("dim")
    operations, tensors = (3, 2) if mode == "forward" else (11, 6)
    return Work(operations * tokens * dim, FLOAT * tokens * (tensors * dim + 1))


def contenders(setting: Setting) -> tuple[Contender, ...]:
    """The form of products in blocks first."""

    def ours(method: str) -> Contender:
        def call(scores: Tensor, values: Tensor) -> Tensor:
            return mereo.prefix_attention(scores, values, method=method)

        return Contender(method, lambda mode: Workload(call))

    return tuple(ours(method) for method in ("block", "scan", "compiled"))


PREFIX_ATTENTION = Suite(
    "prefix_attention",
    "attention of one query to every prefix, from 1k to 64k tokens: compiled, compared with products in blocks",
    "scores (batch, heads, tokens), values (batch, heads, tokens, dim) -> (batch, heads, tokens, dim)",
    {"batch": 1, "heads": 4, "tokens": 16384, "dim": 64},
    inputs,
    contenders,
    work,
    sweeps={"tokens": LENGTHS},
    growth=("tokens",),
    theory={"block": 1.0, "scan": 1.0, "compiled": 1.0},
    quick={"heads": 2},
    quick_sweeps={"tokens": (512, 2048)},
)
