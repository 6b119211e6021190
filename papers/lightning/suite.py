"""Lightning attention by its forms, compared with causal attention and a loop over blocks as it is usually written."""

from typing import Any

import torch
from torch import Tensor

from mereo.bench.counting import FLOAT
from mereo.bench.suite import Contender, Mode, Setting, Suite, Work, Workload
from mereo.bench.suites import attention
from mereo.mechanisms.scan import decay_slopes, lightning_attention
from papers.common.long_sequences import LENGTHS, causal_sdpa, pairs

BLOCK = 64


def inputs(setting: Setting, mode: Mode) -> tuple[Any, ...]:
    """Queries, keys, values (batch, heads, tokens, dim), and slopes (heads,)."""
    return *attention.inputs(setting, mode), torch.tensor(decay_slopes(setting.size("heads")), device=setting.device)


def work(setting: Setting, mode: Mode) -> Work:
    """The recurrence itself: a state is made and read, 4 D^2 a token; backward three times that."""
    rows = setting.size("batch") * setting.size("heads") * setting.size("tokens")
    dim, times, tensors = setting.size("dim"), *((1, 4) if mode == "forward" else (4, 11))
    return Work(4 * rows * dim**2 * times, FLOAT * tensors * rows * dim)


def loop_over_blocks(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
    """One block after the other, with the state between them."""
    t = torch.arange(BLOCK, device=q.device)
    slope = slopes.view(-1, 1, 1)
    within = (-slope * (t.unsqueeze(1) - t).clamp(min=0)).exp().tril()
    read, write = (-slope * (t + 1).unsqueeze(1)).exp(), (-slope * (BLOCK - 1 - t).unsqueeze(1)).exp()
    held, state, parts = (-slope * BLOCK).exp(), q.new_zeros(*q.shape[:2], q.shape[3], v.shape[3]), []
    for Q, K, V in zip(*(x.split(BLOCK, 2) for x in (q, k, v)), strict=True):
        m = Q.shape[2]
        scores = (Q @ K.transpose(-1, -2)) * within[:, :m, :m]
        parts.append(scores @ V + (Q * read[:, :m]) @ state)
        state = held * state + (K * write[:, -m:]).transpose(-1, -2) @ V  # a shorter block is the last one
    return torch.cat(parts, 2)


def _ours(setting: Setting, method: str) -> Contender:
    def call(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Any:
        return lightning_attention(q, k, v, slopes, method=method)

    copies = 4 if method == "parallel" else 0
    return Contender(method, lambda mode: Workload(call), needs=lambda mode: copies * FLOAT * pairs(setting))


def contenders(setting: Setting) -> tuple[Contender, ...]:
    """The loop as the reference; causal attention computes another function."""
    loop = Contender("loop over blocks", lambda mode: Workload(loop_over_blocks))
    return (
        loop,
        causal_sdpa(setting, lambda q, k, v, slopes: (q, k, v)),
        *(_ours(setting, method) for method in ("parallel", "chunked", "compiled")),
    )


LIGHTNING = Suite(
    "lightning",
    "lightning attention from 1k to 64k tokens: time a token, exponents, compared with causal attention",
    "(q, k, v, slopes), each (batch, heads, tokens, dim) and (heads,) -> (batch, heads, tokens, dim)",
    {"batch": 1, "heads": 4, "tokens": 16384, "dim": 64},
    inputs,
    contenders,
    work,
    sweeps={"tokens": LENGTHS},
    growth=("tokens",),
    theory={"loop over blocks": 1.0, "causal SDPA": 2.0, "parallel": 2.0, "chunked": 1.0, "compiled": 1.0},
    quick={"heads": 2},
    quick_sweeps={"tokens": (512, 2048)},
)
