"""Attention: the verbs as they are written, compared with PyTorch's fused call."""

from typing import Any

import torch
from torch import Tensor

from mereo.bench.counting import FLOAT, attention_work
from mereo.bench.suite import Contender, Mode, Setting, Suite, Workload
from mereo.core import Coupling
from mereo.core.kernels.attention import attend


def inputs(setting: Setting, mode: Mode) -> tuple[Any, ...]:
    """Queries, keys and values (batch, heads, tokens, dim)."""
    shape = tuple(setting.size(name) for name in ("batch", "heads", "tokens", "dim"))
    return tuple(torch.randn(shape, device=setting.device).requires_grad_(mode == "training") for _ in range(3))


def contenders(setting: Setting) -> tuple[Contender, ...]:
    """The exchange of `MultiHeadAttention`, by each of its methods."""
    scores = setting.size("batch") * setting.size("heads") * setting.size("tokens") ** 2

    def contender(method: str, copies: int) -> Contender:
        coupling = Coupling("senders")

        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attend(q, k, v, coupling, method=method)

        return Contender(method, lambda mode: Workload(call), needs=lambda mode: copies * FLOAT * scores)

    return contender("plain", 4), contender("sdpa", 0)


ATTENTION = Suite(
    "attention",
    "multi-head attention, plain and by PyTorch's fused call, from 64 to 1024 tokens",
    "(q, k, v), each (batch, heads, tokens, dim) -> (batch, heads, tokens, dim)",
    {"batch": 8, "heads": 4, "tokens": 256, "dim": 64},
    inputs,
    contenders,
    attention_work,
    sweeps={"tokens": (64, 128, 256, 512, 1024)},
    growth=("tokens",),
    quick={"batch": 2, "heads": 2},
    quick_sweeps={"tokens": (64, 256)},
)
