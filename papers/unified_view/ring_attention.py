"""Attention over a sequence on several processes: exactness, elements sent, balance of causal work, time.

The processes are started here, on CPUs with gloo.
"""

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mereo.core.distributed import (
    MODES,
    count_traffic,
    distributed_attention,
    expected_traffic,
    shard_lengths,
    shard_positions,
)
from mereo.core.distributed.layout import LAYOUTS, pieces
from mereo.runtime.turns import median_seconds
from papers.common.processes import run_processes
from papers.common.settings import Settings

PROCESSES = (2, 4)
LENGTH, HEADS, DIM = 1024, 8, 64
LENGTHS = (1024, 2048, 4096)


def _whole(length: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, HEADS, length, DIM, dtype=dtype, generator=generator) for _ in range(4)]


def _materialised(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    scores = q @ k.transpose(-1, -2) * DIM**-0.5
    if causal:
        length = q.shape[2]
        scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), float("-inf"))
    return scores.softmax(-1) @ v


def check(length: int) -> list[dict[str, Any]]:
    """In each process: errors in float64 and elements sent, of every mode."""
    ranks, rank, group = dist.get_world_size(), dist.get_rank(), dist.group.WORLD
    q, k, v, weights = _whole(length, torch.float64)
    rows = []
    for causal in (False, True):
        whole = [x.clone().requires_grad_() for x in (q, k, v)]
        expected = _materialised(whole[0], whole[1], whole[2], causal)
        gradients = torch.autograd.grad((expected * weights).sum(), whole)
        for mode in MODES[:3]:
            layout = "zigzag" if causal else "contiguous"
            mine = shard_positions(length, ranks, rank, layout)
            a, b, c = own = [x[:, :, mine].clone().requires_grad_() for x in (q, k, v)]
            with count_traffic() as traffic:
                out = distributed_attention(a, b, c, group, mode, causal, layout=layout)
                assert isinstance(out, Tensor)
                forward = traffic.elements
                shares = torch.autograd.grad((out * weights[:, :, mine]).sum(), own)
            worst = max(float((x - y[:, :, mine]).abs().max()) for x, y in zip(shares, gradients, strict=True))
            error = float((out.detach() - expected.detach()[:, :, mine]).abs().max())
            rows.append({"mode": mode, "causal": causal, "output": error, "gradient": worst, "sent": forward})
    return rows


def seconds(length: int, repeats: int) -> list[float]:
    """In each process: times of a causal forward pass over its shard, in float32."""
    ranks = dist.get_world_size()
    group = dist.group.WORLD if ranks > 1 else None
    mine = shard_positions(length, ranks, dist.get_rank(), "zigzag")
    q, k, v = (x[:, :, mine].contiguous() for x in _whole(length, torch.float32)[:3])
    times = []
    for _ in range(repeats + 1):
        dist.barrier()
        start = time.perf_counter()
        distributed_attention(q, k, v, group, causal=True, layout="zigzag")
        times.append(time.perf_counter() - start)
    return times[1:]


def _materialised_seconds(length: int, repeats: int) -> float:
    q, k, v, _ = _whole(length, torch.float32)
    return median_seconds({"": lambda: _materialised(q, k, v, True)}, repeats)[""]


def balance(length: int, ranks: int, layout: str) -> float:
    """Causal pairs that the slowest process computes, step by step, as multiples of an equal share of all."""
    lengths = shard_lengths(length, ranks, layout)
    steps = (
        max(sum(p.pairs for p in pieces(layout, True, r, (r - s) % ranks, lengths, lengths)) for r in range(ranks))
        for s in range(ranks)
    )
    return sum(steps) * ranks / (length * (length + 1) / 2)


def run(settings: Settings) -> dict[str, Any]:
    """Three tables."""
    exact: list[dict[str, Any]] = []
    for ranks in PROCESSES:
        results = run_processes(ranks, check, 256, preload=["papers.unified_view.ring_attention"])
        for number, row in enumerate(results[0]):
            every = [result[number] for result in results]
            exact.append(
                {
                    "processes": ranks,
                    "mode": row["mode"],
                    "causal": "yes" if row["causal"] else "no",
                    "error of outputs": f"{max(each['output'] for each in every):.0e}",
                    "error of gradients": f"{max(each['gradient'] for each in every):.0e}",
                    "elements sent": row["sent"],
                    "by the formula": expected_traffic(row["mode"], 256, HEADS * DIM, ranks),
                }
            )
    work = [
        {"processes": ranks, **{layout: balance(LENGTH, ranks, layout) for layout in LAYOUTS}}
        for ranks in (2, 4, 8, 64)
    ]
    repeats = 3
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        plain = {length: _materialised_seconds(length, repeats) for length in LENGTHS}
    finally:
        torch.set_num_threads(threads)
    times: list[dict[str, Any]] = []
    for ranks in (1, *PROCESSES):
        line: dict[str, Any] = {"processes": ranks}
        for length, reference in plain.items():
            results = run_processes(ranks, seconds, length, repeats)
            slowest = sorted(max(each) for each in zip(*results, strict=True))[repeats // 2]
            line[f"{length} tokens, s"] = slowest
            line[f"{length}: times as fast"] = reference / slowest
        times.append(line)
    return {
        "tables": {
            "exact attention over processes, float64, 256 tokens of 8 heads of 64": exact,
            "causal pairs of the slowest process, as multiples of an equal share": work,
            "causal forward pass, one thread a process, compared with one process that stores the scores": times,
        },
        "notes": [
            "Storing the scores takes " + ", ".join(f"{t:.3f} s for {n}" for n, t in plain.items()) + " tokens.",
            "More processes than cores share them. A gain above the number of processes comes from not storing scores.",
        ],
        "pictures": [],
    }
