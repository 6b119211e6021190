"""One process of the suite `ring`: attention over its shard, forward and backward, with its time and memory."""

import time
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mereo.core.distributed import count_traffic, distributed_attention, shard_lengths
from mereo.runtime.memory import give_back, largest_so_far, reset_mark, status
from papers.common.processes import run_processes


def _inputs(sizes: dict[str, int], tokens: int) -> list[Tensor]:
    shape = (sizes["batch"], sizes["heads"], tokens, sizes["dim"])
    return [torch.randn(shape, requires_grad=True) for _ in range(3)]


def _step(inputs: list[Tensor], group: Any, causal: bool, layout: str) -> tuple[float, float]:
    """Seconds of a forward and of a backward pass."""
    if group is not None:
        dist.barrier(group)
    start = time.perf_counter()
    q, k, v = inputs
    out = distributed_attention(q, k, v, group, causal=causal, layout=layout)
    assert isinstance(out, Tensor)
    middle = time.perf_counter()
    out.backward(torch.ones_like(out))
    end = time.perf_counter()
    return middle - start, end - middle


def measure(sizes: dict[str, int], causal: bool, layout: str, repeats: int) -> dict[str, float]:
    """Seconds forward and backward, bytes at the peak above what there was before the inputs, elements sent."""
    ranks = dist.get_world_size()
    group = dist.group.WORLD if ranks > 1 else None
    # Libraries load on first use.
    _step(_inputs(sizes, 64), group, causal, "contiguous" if ranks == 1 else layout)
    give_back()
    reset_mark()
    before = status("VmRSS") or 0
    inputs = _inputs(sizes, shard_lengths(sizes["tokens"], ranks, layout)[dist.get_rank()])
    with count_traffic() as traffic:
        _step(inputs, group, causal, layout)
    peak = (largest_so_far() or 0) - before
    times = []
    for _ in range(repeats):
        for x in inputs:
            x.grad = None
        times.append(_step(inputs, group, causal, layout))
    forward, backward = (median(each) for each in zip(*times, strict=True))
    return {"forward": forward, "backward": backward, "bytes": peak, "elements": traffic.elements}


def slowest(
    ranks: int, threads: int, sizes: dict[str, int], causal: bool, layout: str, repeats: int
) -> dict[str, float]:
    """The largest value of each kind over the processes."""
    results = run_processes(ranks, measure, sizes, causal, layout, repeats, threads=threads)
    return {name: max(result[name] for result in results) for name in results[0]}
