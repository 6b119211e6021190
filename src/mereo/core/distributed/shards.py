"""A sequence cut into the shards of the processes, and put together again."""

import torch
from torch import Tensor

from mereo.core.distributed.collectives import gather
from mereo.core.distributed.layout import LAYOUTS, shard_lengths, shard_positions
from mereo.core.distributed.ranks import Group, agree, ranks_of
from mereo.errors import UsageError, check_choice


def shard(x: Tensor, group: Group, dim: int = 1, layout: str = "contiguous") -> Tensor:
    """This process's part of a sequence that it has all of, along axis `dim`; see `shard_positions`."""
    ranks = ranks_of(group)
    positions = shard_positions(x.shape[dim], ranks.size, ranks.rank, layout)
    return x.index_select(dim, positions.to(x.device))


def unshard(x: Tensor, group: Group, dim: int = 1, layout: str = "contiguous") -> Tensor:
    """The whole sequence, in every process, from the parts of all; differentiable.

    The gradient of a part is the sum over all processes: if each computes the same loss from the whole
    sequence, divide that by their number.
    """
    ranks = ranks_of(group)
    check_choice("layout", layout, LAYOUTS)
    if ranks.size == 1:
        return x
    axis = dim % x.dim()
    outer, inner = x.shape[:axis].numel(), x.shape[axis + 1 :].numel()
    facts = {"outer axes": outer, "inner axes": inner, "tokens": x.shape[axis]}
    lengths = agree(ranks, facts, None, ["tokens"])["tokens"]
    whole = gather(x.reshape(1, outer, x.shape[axis], inner), tuple(lengths), ranks)
    total = sum(lengths)
    if layout != "contiguous":
        if lengths != (needed := shard_lengths(total, ranks.size, layout)):
            raise UsageError(f"tokens of the processes are {lengths}; in the layout {layout!r} they must be {needed}.")
        order = torch.cat([shard_positions(total, ranks.size, rank, layout) for rank in range(ranks.size)])
        whole = whole[:, :, order.argsort().to(x.device)]
    return whole.view(*x.shape[:axis], total, *x.shape[axis + 1 :])
