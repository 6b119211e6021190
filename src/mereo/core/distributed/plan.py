"""One call of distributed attention: the arguments that processes agreed on, and attention to parts of a sequence."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mereo.core.coupling import Coupling
from mereo.core.distributed.layout import Piece, pieces, shard_positions
from mereo.core.distributed.partial import Kernel, empty_sums, merge
from mereo.core.distributed.ranks import ALONE, Ranks
from mereo.core.kernels.attention import attend
from mereo.core.kernels.exchange import log_sums
from mereo.core.topology import Causal

Result = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class Plan:
    """One call without its tensors: the processes, how many queries and keys each has, and which pairs take part.

    Attributes:
        rows, columns: number of queries and of keys of each process; known once the processes have compared them.
        kernel: computes attention to a part of the keys.
        coupling: makes the couplings if they are watched or not a softmax; None for a softmax.
        watched: whether a process needs the couplings themselves, for which all gather keys and values.
    """

    ranks: Ranks
    mode: str
    layout: str
    causal: bool
    kernel: Kernel
    coupling: Coupling | None
    return_lse: bool
    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    watched: bool = False

    @property
    def needs_couplings(self) -> bool:
        """Whether the couplings themselves must be made."""
        return self.coupling is not None and (self.coupling.watched or not self.coupling.is_plain_softmax)

    def pieces(self, sender: int) -> list[Piece]:
        """The pairs of this process's queries and the keys of another."""
        return pieces(self.layout, self.causal, self.ranks.rank, sender, self.rows, self.columns)

    @cached_property
    def order(self) -> Tensor | None:
        """Place of each token of the whole sequence in the list of tokens of process 0, process 1, ...

        None if the list has the order of the sequence.
        """
        if self.layout == "contiguous":
            return None
        total, size = sum(self.columns), self.ranks.size
        return torch.cat([shard_positions(total, size, rank, self.layout) for rank in range(size)]).argsort()

    def attend(self, sender: int, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> None:
        """Attend to the keys of one process, and merge that into `out` and `lse`."""
        for piece in self.pieces(sender):
            rows, columns = slice(*piece.rows), slice(*piece.columns)
            part, part_lse = self.kernel.forward(q[:, :, rows], k[:, :, columns], v[:, :, columns], piece.causal)
            merge(out[:, :, rows], lse[:, :, rows], part, part_lse)

    def gradients(
        self,
        sender: int,
        given: Sequence[Tensor | None],
        k: Tensor,
        v: Tensor,
        into: tuple[Tensor, Tensor, Tensor],
    ) -> None:
        """Add the gradients through the keys of one process.

        Args:
            given: gradient of the output, gradient of lse or None, queries, output, lse.
            into: the sums of dq, dk, dv.
        """
        for piece in self.pieces(sender):
            rows, columns = slice(*piece.rows), slice(*piece.columns)
            grad, grad_lse, q, out, lse = (None if x is None else x[:, :, rows] for x in given)
            assert grad is not None and q is not None and out is not None and lse is not None
            key, value = k[:, :, columns], v[:, :, columns]
            found = self.kernel.backward(grad, grad_lse, q, key, value, out, lse, piece.causal)
            for total, part, where in zip(into, found, (rows, columns, columns), strict=True):
                total[:, :, where] += part

    def alone(self, q: Tensor, k: Tensor, v: Tensor) -> Result:
        """Attention over tokens that this process has all of, in their order."""
        if self.needs_couplings or (self.coupling is not None and self.coupling.dropout):
            return self.coupled(q, k, v, torch.arange(k.shape[2], device=q.device) if self.causal else None)
        if self.return_lse or self.kernel.block is not None:
            own = Plan(ALONE, "ring", "contiguous", self.causal, self.kernel, None, True, (q.shape[2],), (k.shape[2],))
            out, lse = Parts.apply(q, k, v, own)
            return out, lse
        coupling = Coupling("senders", topology=Causal() if self.causal else None)
        return attend(q, k, v, coupling, scale=self.kernel.scale), None

    def coupled(self, q: Tensor, k: Tensor, v: Tensor, mine: Tensor | None) -> Result:
        """Attention to all keys by the couplings themselves; `mine` are the positions of the queries, if causal."""
        coupling = Coupling("senders") if self.coupling is None else self.coupling
        mask = None if mine is None else mine.unsqueeze(1) >= torch.arange(k.shape[2], device=q.device)
        out = attend(q, k, v, coupling, mask=mask, scale=self.kernel.scale)
        if not self.return_lse:
            return out, None
        return out, log_sums(q, k, mask, None, self.kernel.scale)


def keep(ctx: Any, plan: Plan, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Keep the tensors that the backward pass of a scheme needs; its results, `out` in the type of the queries."""
    out = out.to(q.dtype)
    ctx.plan = plan
    ctx.save_for_backward(q, k, v, out, lse)
    ctx.set_materialize_grads(False)
    return out, lse


class Parts(torch.autograd.Function):
    """(q, k, v, plan) -> (out, lse) over keys that are here, one process's keys after the other's."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        out, lse = empty_sums(q, v)
        parts = zip(k.split(plan.columns, 2), v.split(plan.columns, 2), strict=True)
        for sender, (key, value) in enumerate(parts):
            plan.attend(sender, q, key, value, out, lse)
        return keep(ctx, plan, q, k, v, out, lse)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        columns = ctx.plan.columns
        grad = torch.zeros_like(out) if grads[0] is None else grads[0]
        sums = [torch.zeros_like(x, dtype=lse.dtype) for x in (q, k, v)]
        parts = zip(*(x.split(columns, 2) for x in (k, v, *sums[1:])), strict=True)
        for sender, (key, value, dk, dv) in enumerate(parts):
            ctx.plan.gradients(sender, (grad, grads[1], q, out, lse), key, value, (sums[0], dk, dv))
        return *(x.to(q.dtype) for x in sums), None
