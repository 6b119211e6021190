"""The processes of a group, what they send each other, and the check that they agree before any of them waits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mereo.core.distributed.traffic import sent
from mereo.errors import UsageError

Group = Any
"""`torch.distributed.ProcessGroup`, which does not exist if PyTorch was built without it."""


@dataclass(frozen=True)
class Ranks:
    """This process in its group: number `rank` of `size`."""

    group: Group
    rank: int
    size: int

    def _peer(self, step: int) -> int:
        return dist.get_global_rank(self.group, (self.rank + step) % self.size)

    def start_shift(self, out: Tensor, into: Tensor) -> list[Any]:
        """Start to send to the next process and to receive from the one before; empty tensors are not sent."""
        operations = []
        if out.numel():
            sent("ring", out.numel())
            operations.append(dist.P2POp(dist.isend, out, self._peer(1), self.group))
        if into.numel():
            operations.append(dist.P2POp(dist.irecv, into, self._peer(-1), self.group))
        return list(dist.batch_isend_irecv(operations)) if operations else []

    def shift(self, out: Tensor, into: Tensor) -> None:
        """Send to the next process and receive from the one before."""
        for request in self.start_shift(out, into):
            request.wait()

    def gather(self, x: Tensor) -> Tensor:
        """Tensors of one shape of all processes: (...) -> (ranks, ...)."""
        sent("gather", (self.size - 1) * x.numel())
        out = x.new_empty(self.size * x.numel())
        dist.all_gather_into_tensor(out, x.reshape(-1), group=self.group)
        return out.view(self.size, *x.shape)

    def exchange(self, out: Sequence[Tensor], into: Sequence[Tensor], kind: str = "exchange") -> list[Tensor]:
        """Send one tensor to each process and receive one from each, of the shapes of `into`."""
        sent(kind, sum(x.numel() for rank, x in enumerate(out) if rank != self.rank))
        flat = torch.cat([x.reshape(-1) for x in out])
        sizes = [x.numel() for x in into]
        received = flat.new_empty(sum(sizes))
        dist.all_to_all_single(received, flat, sizes, [x.numel() for x in out], group=self.group)
        return [part.view(x.shape) for part, x in zip(received.split(sizes), into, strict=True)]

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all processes, of a new tensor; counted as an all-reduce along a ring."""
        sent("sum", 2 * x.numel() * (self.size - 1) // self.size)
        x = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(x, group=self.group)
        return x


ALONE = Ranks(None, 0, 1)
"""One process without a group."""


def ranks_of(group: Group) -> Ranks:
    """This process in a group; without a group it is the only one."""
    if group is None:
        return ALONE
    if not dist.is_available() or not isinstance(group, dist.ProcessGroup):
        raise UsageError(
            f"group is a {type(group).__name__}; give a process group that this process belongs to, such as"
            " torch.distributed.group.WORLD after init_process_group, or None for one process."
        )
    return Ranks(group, dist.get_rank(group), dist.get_world_size(group))


def agree(
    ranks: Ranks, facts: Mapping[str, object], problem: str | None, free: Sequence[str] = ()
) -> dict[str, list[Any]]:
    """Compare arguments over all processes, so that all of them raise if one would fail or wait for ever.

    Args:
        facts: name -> plain value, the same names in every process.
        problem: what is wrong with this process's own arguments; None if nothing is.
        free: names that may differ between processes.

    Returns: name -> the values of all processes.

    Raises:
        UsageError: in every process, if one has a problem or a value differs.
    """
    table: list[Any] = [(problem is not None, facts)] * ranks.size
    if ranks.size > 1:
        sent("agreement", len(facts) * (ranks.size - 1))
        dist.all_gather_object(table, table[0], ranks.group)
    if problem is not None:
        raise UsageError(problem)
    wrong = [rank for rank, (fails, _) in enumerate(table) if fails]
    if wrong:
        raise UsageError(f"process {wrong[0]} of {ranks.size} was given wrong arguments; its own error has the reason.")
    values = {name: [theirs[name] for _, theirs in table] for name in facts}
    for name, column in values.items():
        if name not in free and len(set(column)) > 1:
            raise UsageError(
                f"{name} differs between the processes of the group: {', '.join(map(str, column))}; it must be the same"
                " in all of them."
            )
    return values
