"""Attention in clusters, compared with causal attention and the gathers and scatters as they are written."""

from typing import Any

import torch
from torch import Tensor

from mereo.bench.counting import FLOAT
from mereo.bench.suite import Contender, Mode, Setting, Suite, Work, Workload
from mereo.core.kernels.clustered import distances
from mereo.mechanisms.attention import routing_attention
from mereo.mechanisms.attention.sparse.clusters import normalised
from papers.common.long_sequences import LENGTHS, causal_sdpa


def _clusters(setting: Setting) -> int:
    """The number of clusters that equals the number of members of each: the cost is least there."""
    return round(setting.size("tokens") ** 0.5)


def inputs(setting: Setting, mode: Mode) -> tuple[Any, ...]:
    """Queries, which are the keys too, and values (batch, heads, tokens, dim); centroids (heads, clusters, dim)."""
    shape = tuple(setting.size(name) for name in ("batch", "heads", "tokens", "dim"))
    q, v = normalised(torch.randn(shape, device=setting.device)), torch.randn(shape, device=setting.device)
    centroids = normalised(torch.randn(shape[1], _clusters(setting), shape[3], device=setting.device))
    return q.requires_grad_(mode == "training"), v.requires_grad_(mode == "training"), centroids


def work(setting: Setting, mode: Mode) -> Work:
    """Distances from all centroids, two products inside clusters, and five for their gradients."""
    rows = setting.size("batch") * setting.size("heads") * setting.size("tokens") * setting.size("dim")
    products, tensors = (3, 3) if mode == "forward" else (8, 9)
    return Work(2 * products * rows * _clusters(setting), FLOAT * tensors * rows)


def as_written(q: Tensor, v: Tensor, centroids: Tensor) -> Tensor:
    """The steps of the paper one by one, with gathers of whole vectors and attention by products and a softmax."""
    batch, heads, tokens, dim = q.shape
    clusters = centroids.shape[1]
    window = round(tokens**0.5)
    with torch.no_grad():
        # Distances by the same product, or tokens at the border of a cluster would differ by rounding.
        lists = (
            distances(q, centroids).topk(window, -1, largest=False).indices.sort(-1).values.reshape(batch, heads, -1)
        )
    wide = lists.unsqueeze(-1).expand(-1, -1, -1, dim)
    Q, V = (x.gather(2, wide).view(batch, heads, clusters, window, dim) for x in (q, v))
    scores = torch.einsum("bhkid,bhkjd->bhkij", Q, Q) * dim**-0.5
    later = torch.ones(window, window, dtype=torch.bool, device=q.device).triu(1)
    mixed = torch.einsum("bhkij,bhkjd->bhkid", scores.masked_fill(later, -torch.inf).softmax(-1), V)
    summed = torch.zeros_like(v).scatter_add(2, wide, mixed.reshape(batch, heads, -1, dim))
    counts = torch.zeros_like(v).scatter_add(2, wide, torch.ones_like(wide, dtype=v.dtype))
    return summed / counts.clamp(min=1)


def ours(q: Tensor, v: Tensor, centroids: Tensor) -> Tensor:
    """The same by the library."""
    return routing_attention(q, None, v, centroids, round(q.shape[2] ** 0.5), causal=True)


def contenders(setting: Setting) -> tuple[Contender, ...]:
    """The steps as they are written are the reference; causal attention computes another function."""
    return (
        Contender("as written", lambda mode: Workload(as_written)),
        Contender("clusters", lambda mode: Workload(ours)),
        causal_sdpa(setting, lambda q, v, centroids: (q, q, v)),
    )


CLUSTERED = Suite(
    "clustered",
    "attention inside sqrt(tokens) clusters from 1k to 64k tokens: exponents, compared with causal attention",
    "(q, v, centroids): (batch, heads, tokens, dim) twice, (heads, clusters, dim) -> (batch, heads, tokens, dim)",
    {"batch": 1, "heads": 4, "tokens": 16384, "dim": 64},
    inputs,
    contenders,
    work,
    sweeps={"tokens": LENGTHS},
    growth=("tokens",),
    theory={"as written": 1.5, "clusters": 1.5, "causal SDPA": 2.0},
    quick={"heads": 2},
    quick_sweeps={"tokens": (256, 1024)},
)
