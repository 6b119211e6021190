"""Tensor attention by its forms, compared with all triples as the equation has them."""

from typing import Any

import torch
from torch import Tensor

import mereo
from mereo.bench.counting import FLOAT
from mereo.bench.suite import Contender, Mode, Setting, Suite, Work, Workload


def inputs(setting: Setting, mode: Mode) -> tuple[Any, ...]:
    """Queries, and keys and values of two sets, (batch, heads, tokens, dim) each."""
    shape = tuple(setting.size(name) for name in ("batch", "heads", "tokens", "dim"))
    return tuple(torch.randn(shape, device=setting.device).requires_grad_(mode == "training") for _ in range(5))


def work(setting: Setting, mode: Mode) -> Work:
    """Scores and sums over triples, three times that backward; inputs and outputs are moved."""
    heads, tokens, dim = setting.size("batch") * setting.size("heads"), setting.size("tokens"), setting.size("dim")
    times, moved = (1, 6) if mode == "forward" else (4, 17)
    return Work(4 * heads * tokens**3 * dim * times, FLOAT * moved * heads * tokens * dim)


def naive(q: Tensor, k1: Tensor, v1: Tensor, k2: Tensor, v2: Tensor) -> Tensor:
    """All scores at once, (batch, heads, tokens, tokens, tokens)."""
    scores = torch.einsum("bhic,bhjc,bhkc->bhijk", q, k1, k2) / q.shape[-1]
    couplings = scores.flatten(-2).softmax(-1).view_as(scores)
    return torch.einsum("bhijk,bhjc,bhkc->bhic", couplings, v1, v2)


def contenders(setting: Setting) -> tuple[Contender, ...]:
    """The naive form first."""
    triples = FLOAT * setting.size("batch") * setting.size("heads") * setting.size("tokens") ** 3

    def ours(method: str) -> Contender:
        def call(q: Tensor, k1: Tensor, v1: Tensor, k2: Tensor, v2: Tensor) -> Tensor:
            return mereo.tensor_attention(q, k1, v1, k2, v2, method=method)

        return Contender(method, lambda mode: Workload(call), needs=lambda mode: 2 * triples * (method == "exact"))

    first = Contender("naive", lambda mode: Workload(naive), needs=lambda mode: 2 * triples)
    return first, ours("exact"), ours("streamed")


TENSOR_ATTENTION = Suite(
    "tensor_attention",
    "tensor attention to pairs of 64 to 256 tokens: exact and streamed, compared with all scores at once",
    "(q, k1, v1, k2, v2), each (batch, heads, tokens, dim) -> (batch, heads, tokens, dim)",
    {"batch": 1, "heads": 1, "tokens": 256, "dim": 16},
    inputs,
    contenders,
    work,
    sweeps={"tokens": (64, 256), "dim": (4, 64)},
    quick={"tokens": 32},
    quick_sweeps={"tokens": (16,)},
)
