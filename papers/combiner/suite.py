"""Combiner by each of its plans, compared with causal attention and fixed blocks as they are usually written."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.bench.counting import FLOAT
from mereo.bench.suite import Contender, Mode, Setting, Suite, Work, Workload
from mereo.bench.suites.attention import inputs
from mereo.mechanisms.attention import combiner_attention
from papers.common.long_sequences import LENGTHS, causal_sdpa

OTHERS = ("logsparse", "axial_vertical", "axial_rowmajor", "axial_mixture")


def work(setting: Setting, mode: Mode) -> Work:
    """Operations of fixed blocks of sqrt(tokens): two products with its block and all regions, five for gradients."""
    rows = setting.size("batch") * setting.size("heads") * setting.size("tokens") * setting.size("dim")
    products, tensors = (2, 4) if mode == "forward" else (7, 11)
    return Work(4 * products * rows * setting.size("tokens") ** 0.5, FLOAT * tensors * rows)


def as_written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Fixed blocks: scores of the own block and of earlier blocks, joined for one softmax."""
    tokens, dim = q.shape[2:]
    size = round(tokens**0.5)
    missing = -tokens % size
    Q, K, V = (F.pad(x, (0, 0, 0, missing)).unflatten(2, (-1, size)) for x in (q, k, v))
    blocks = Q.shape[2]
    of_q, of_k = Q.amax(3), K.amax(3)
    shares = (torch.einsum("bhnd,bhnjd->bhnj", of_q, K) * dim**-0.5).softmax(-1)
    of_v = torch.einsum("bhnj,bhnje->bhne", shares, V)
    near = torch.einsum("bhnid,bhnjd->bhnij", Q, K) * dim**-0.5
    far = torch.einsum("bhnid,bhmd->bhnim", Q, of_k) * dim**-0.5
    later = torch.ones(size, size, dtype=torch.bool, device=q.device).triu(1)
    hidden = torch.ones(blocks, blocks, dtype=torch.bool, device=q.device).triu().unsqueeze(1)
    near, far = near.masked_fill(later, -torch.inf), far.masked_fill(hidden, -torch.inf)
    near, far = torch.cat((near, far), -1).softmax(-1).split([size, blocks], -1)
    out = torch.einsum("bhnij,bhnje->bhnie", near, V) + torch.einsum("bhnim,bhme->bhnie", far, of_v)
    return out.flatten(2, 3)[:, :, :tokens]


def _plan(name: str) -> Contender:
    def call(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return combiner_attention(q, k, v, name, causal=True)

    return Contender(name, lambda mode: Workload(call), "contender" if name == "fixed" else "unchecked")


def contenders(setting: Setting) -> tuple[Contender, ...]:
    """Fixed blocks as they are written are the reference; the other plans and causal attention differ from them."""

    reference = Contender("as written", lambda mode: Workload(as_written))
    return reference, _plan("fixed"), *map(_plan, OTHERS), causal_sdpa(setting, lambda q, k, v: (q, k, v))


COMBINER = Suite(
    "combiner",
    "Combiner by its plans from 1k to 64k tokens: exponents, compared with causal attention",
    "(q, k, v), each (batch, heads, tokens, dim) -> (batch, heads, tokens, dim)",
    {"batch": 1, "heads": 4, "tokens": 16384, "dim": 64},
    inputs,
    contenders,
    work,
    sweeps={"tokens": LENGTHS},
    growth=("tokens",),
    # N log N between 1k and 64k tokens fits a power of 1.1.
    theory={"as written": 1.5, "fixed": 1.5, "logsparse": 1.1, **dict.fromkeys(OTHERS[1:], 1.5), "causal SDPA": 2.0},
    quick={"heads": 2},
    quick_sweeps={"tokens": (256, 1024)},
)
