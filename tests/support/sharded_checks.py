"""Computations of test processes: attention over shards compared with attention over the whole sequence."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import mereo
from mereo.core import Coupling
from mereo.core.distributed import (
    count_traffic,
    distributed_attention,
    expected_traffic,
    shard,
    shard_positions,
    unshard,
)
from mereo.errors import UsageError
from mereo.mechanisms.attention import MultiHeadAttention
from mereo.mechanisms.attention.dense import ShardedAttention

HEADS, DIM = 4, 8


def whole(length: int, causal: bool, wants_lse: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Queries, keys, values, weights of outputs and of lse; and outputs, lse, gradients from the definition."""
    torch.manual_seed(0)
    q, k, v, weights = (torch.randn(2, HEADS, length, DIM, dtype=torch.float64) for _ in range(4))
    lse_weights = torch.randn(2, HEADS, length, dtype=torch.float64)
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    scores = q @ k.mT * DIM**-0.5
    if causal:
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
    out, lse = scores.softmax(-1) @ v, scores.logsumexp(-1)
    loss = (out * weights).sum() + ((lse * lse_weights).sum() if wants_lse else 0)
    gradients = torch.autograd.grad(loss, (q, k, v))
    return [q, k, v, weights, lse_weights], [out, lse, *gradients]


def largest(found: Tensor, expected: Tensor) -> float:
    return (found.double() - expected).abs().max().item() if found.numel() else 0.0


def compare(
    length: int, mode: str, causal: bool, layout: str, wants_lse: bool = False, **options: Any
) -> tuple[float, int, int]:
    """Largest error of outputs and gradients, elements sent forward and backward."""
    group, dtype = dist.group.WORLD, options.pop("dtype", torch.float64)
    given, expected = whole(length, causal, wants_lse)
    mine = shard_positions(length, dist.get_world_size(), dist.get_rank(), layout)
    own = [x.detach()[:, :, mine] for x in given]
    q, k, v = (x.to(dtype).requires_grad_() for x in own[:3])
    with count_traffic() as traffic:
        result = distributed_attention(q, k, v, group, mode, causal, layout=layout, return_lse=wants_lse, **options)
        forward = traffic.elements
        out, lse = result if wants_lse else (result, None)
        loss = (out * own[3]).sum() + (0 if lse is None else (lse * own[4]).sum())
        gradients = torch.autograd.grad(loss, (q, k, v))
    pairs = [(out, expected[0]), *zip(gradients, expected[2:], strict=True)]
    pairs += [] if lse is None else [(lse, expected[1])]
    return max(largest(x, y[:, :, mine]) for x, y in pairs), forward, traffic.elements - forward


def every_way(length: int, modes: tuple[str, ...]) -> dict[str, tuple[float, int, int]]:
    """Every mode, layout and causality; log sum exp and its gradient too."""
    return {
        f"{mode} {layout} {causal} {lse}": compare(length, mode, causal, layout, lse)
        for mode in modes
        for layout in ("contiguous", "zigzag", "striped")
        for causal in (False, True)
        for lse in (False, True)
    }


def expected_counts(length: int, mode: str) -> tuple[int, int]:
    size = dist.get_world_size()
    return tuple(2 * expected_traffic(mode, length, HEADS * DIM, size, backward) for backward in (False, True))  # type: ignore[return-value]


def other_executions() -> dict[str, float]:
    """Blocks of a few queries; half precision."""
    found = {f"block {n}": compare(13, "ring", True, "zigzag", block=n)[0] for n in (1, 3)}
    found |= {f"float32 {m}": compare(16, m, True, "zigzag", dtype=torch.float32)[0] for m in ("ring", "alltoall")}
    found["bfloat16"] = compare(16, "ring", True, "striped", dtype=torch.bfloat16)[0]
    return found


def cross_attention() -> float:
    """Queries and keys of two sequences, both spread unevenly; one process has no keys and another no queries."""
    torch.manual_seed(0)
    rank, size = dist.get_rank(), dist.get_world_size()
    q, k = torch.randn(2, HEADS, 6, DIM, dtype=torch.float64), torch.randn(2, HEADS, 9, DIM, dtype=torch.float64)
    v = torch.randn(2, HEADS, 9, 5, dtype=torch.float64)
    expected = (q @ k.mT * 0.3).softmax(-1) @ v
    rows = [0, 2, 1, 3][:size] if size > 2 else [0, 6]
    columns = [4, 0, 2, 3] if size > 2 else [9, 0]
    at = sum(rows[:rank])
    key, value = (x.split(columns, 2)[rank] for x in (k, v))
    worst = 0.0
    for mode in ("ring", "allgather", "alltoall"):
        out = distributed_attention(q.split(rows, 2)[rank], key, value, dist.group.WORLD, mode, scale=0.3)
        worst = max(worst, largest(out, expected[:, :, at : at + rows[rank]]))
    return worst


def refusals() -> dict[str, str]:
    """What each process raises where arguments are wrong somewhere, and whether the group works afterwards."""
    rank, group = dist.get_rank(), dist.group.WORLD
    found = {}

    def attempt(name: str, shape: tuple[int, ...] = (1, 4, 4, 8), grad: bool = False, **options: Any) -> None:
        x = torch.zeros(shape, requires_grad=grad)
        try:
            distributed_attention(x, x, x, group, **options)
            found[name] = "nothing"
        except UsageError as error:
            found[name] = str(error)

    attempt("heads", (1, 4 + 4 * rank, 4, 8))
    attempt("axes of one", (1, 4, 4, 8) if rank else (4, 4, 8))
    attempt("mode", mode="ring" if rank else "allgather")
    attempt("unknown mode", mode="ring" if rank else "rung")
    attempt("causal", causal=rank == 0)
    attempt("scale", scale=0.5 + rank)
    attempt("gradients", grad=rank == 0)
    attempt("zigzag", (1, 4, 3 + 2 * rank, 8), causal=True, layout="zigzag")
    attempt("no tokens", (1, 4, 0, 8))
    attempt("too few heads", (1, 3, 4, 8), mode="alltoall")
    attempt("tokens of heads", (1, 4, 4 + rank, 8), mode="heads")
    dropping = Coupling("senders", dropout=0.5)
    attempt("dropout", coupling=dropping if rank == 0 else None)
    try:
        unshard(torch.zeros(1, 2, 3 + rank), group)
    except UsageError as error:
        found["unshard"] = str(error)
    attempt("afterwards")
    return found


def nothing_is_nan() -> bool:
    """Huge scores, and queries whose senders are all in other processes."""
    big = torch.full((1, 4, 3, 8), 1e15, requires_grad=True)
    fine = True
    for layout in ("contiguous", "zigzag", "striped"):
        x = shard(big.repeat(1, 1, 2, 1), dist.group.WORLD, 2, layout)
        out = distributed_attention(x, x, x, dist.group.WORLD, causal=True, layout=layout)
        (gradient,) = torch.autograd.grad(out.sum(), big)
        fine = fine and bool(out.isfinite().all()) and not bool(gradient.isnan().any())
    return fine


def module(mode: str, layout: str, causal: bool) -> tuple[float, float]:
    """Errors of the outputs and summed gradients of a module, compared with one process's."""
    torch.manual_seed(0)
    group, length = dist.group.WORLD, 11
    dense = MultiHeadAttention(16, 4, causal=causal).double()
    mine = ShardedAttention(16, 4, group=group, mode=mode, layout=layout, causal=causal).double()
    with torch.no_grad():
        for parameter in dense.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    mine.load_state_dict(dense.state_dict())
    tokens, weights = (torch.randn(2, length, 16, dtype=torch.float64) for _ in range(2))
    dense_tokens, own = tokens.clone().requires_grad_(), tokens.clone().requires_grad_()
    expected = dense(dense_tokens)
    (expected * weights).sum().backward()
    if mode == "heads":
        out = mine(own)
        (out * weights).sum().backward()
        error = largest(out, expected)
        gradient = largest(own.grad, dense_tokens.grad)
    else:
        out = unshard(mine(shard(own, group, 1, layout)), group, 1, layout)
        (out * weights).sum().div(dist.get_world_size()).backward()
        error = largest(out, expected)
        dist.all_reduce(own.grad)
        gradient = largest(own.grad, dense_tokens.grad)
    for ours, theirs in zip(mine.parameters(), dense.parameters(), strict=True):
        total = torch.zeros_like(ours) if ours.grad is None else ours.grad
        dist.all_reduce(total)
        gradient = max(gradient, largest(total, theirs.grad))
    return error, gradient


def traffic_of_heads() -> int:
    attention = ShardedAttention(32, 4, group=dist.group.WORLD, mode="heads")
    with count_traffic() as traffic:
        attention(torch.zeros(2, 16, 32))
    return traffic.elements


def recorded(mode: str, layout: str) -> tuple[float, float, tuple[int, ...]]:
    """Couplings of this process's tokens, watched in one process only."""
    torch.manual_seed(0)
    group, rank = dist.group.WORLD, dist.get_rank()
    dense = MultiHeadAttention(16, 4, causal=True).double()
    mine = ShardedAttention(16, 4, group=group, mode=mode, layout=layout, causal=True).double()
    mine.load_state_dict(dense.state_dict())
    tokens = torch.randn(2, 11, 16, dtype=torch.float64)
    with mereo.record(dense) as full:
        expected = shard(dense(tokens), group, 1, layout)
    x = shard(tokens, group, 1, layout)
    if rank != 0:
        return 0.0, largest(mine(x), expected), ()
    with mereo.record(mine) as trace:
        out = mine(x)
    couplings = trace["coupling"]
    return largest(couplings, shard(full["coupling"], group, 2, layout)), largest(out, expected), tuple(couplings.shape)


def modules(causal: bool) -> dict[str, tuple[float, float]]:
    """`module` in every mode, each with one of the layouts."""
    ways = (("ring", "zigzag"), ("allgather", "striped"), ("alltoall", "contiguous"), ("heads", "zigzag"))
    return {mode: module(mode, layout, causal) for mode, layout in ways}


def sums_and_couplings() -> tuple[int, list[tuple[float, float, tuple[int, ...]]]]:
    return traffic_of_heads(), [recorded(mode, "zigzag") for mode in ("ring", "alltoall")]
