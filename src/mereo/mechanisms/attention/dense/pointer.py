"""Pointer: the couplings of a receiver to its senders are the output, a distribution over the positions of the input.

Source: Vinyals, Fortunato, Jaitly 2015, arXiv:1506.03134, section 2.3.
Cost: 2 D^2 (S + R) + 3 S R D FLOPs and S R D numbers for S senders and R receivers of D numbers; above 2^25 numbers
receivers are scored in parts, which a backward pass computes again.
"""

import torch
from torch import Tensor, nn

from mereo.core import Coupling, mechanism
from mereo.core.recompute import recomputed
from mereo.errors import UsageError, check_positive

LARGEST = 2**25
"""Numbers of the sum of keys and queries that are kept at once."""


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Pointer(6), (torch.randn(2, 5, 6), torch.randn(2, 3, 6))


class PointingModule(nn.Module):
    """The base of pointers: the couplings of receivers to senders are the output. A subclass sets `keys`, a module, and
    defines `scores`."""

    keys: nn.Module

    def __init__(self) -> None:
        super().__init__()
        self.coupling = Coupling("senders")

    def scores(self, keys: Tensor, receivers: Tensor) -> Tensor:
        """Keys (batch, senders, ...), receivers (batch, receivers, dim) -> scores (batch, receivers, senders)."""
        raise NotImplementedError(f"{type(self).__name__} must define scores")

    def point(self, keys: Tensor, receivers: Tensor, mask: Tensor | None = None) -> Tensor:
        """The couplings from keys that are known already: they are the same for all receivers."""
        if mask is not None:
            if mask.dtype != torch.bool:
                raise UsageError(f"mask is {mask.dtype}; it must be bool, True for senders that take part.")
            mask = mask[:, None, None] if mask.dim() == 2 else mask.unsqueeze(1)
        return self.coupling(self.scores(keys, receivers).unsqueeze(1), mask).squeeze(1)

    def forward(self, senders: Tensor, receivers: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.point(self.keys(senders), receivers, mask)


@mechanism(
    "pointer",
    family="dense attention",
    over="senders",
    values="shared",
    update="the couplings themselves",
    source="arXiv:1506.03134",
    promises=("normalised", "masks", "any length", "any sender order", "any receiver order"),
    sender_axes={"0": 1, "output": 2},
    receiver_axes={"1": 1, "output": 1},
    example=_example,
)
class Pointer(PointingModule):
    """Point from each receiver to the senders: additive scores, whose couplings are the prediction.

    u_ij = v . tanh(W1 e_j + W2 d_i),   output_ij = softmax_j(u_ij)

    Args:
        dim: of senders and receivers.

    Shapes: senders e (batch, senders, dim), receivers d (batch, receivers, dim), mask bool (batch, senders) or (batch,
        receivers, senders) -> (batch, receivers, senders).

    Reads as: couplings[b, 0, i, j] is the probability that receiver i points to sender j; exactly 0 where the mask is
        False.

    Reference: arXiv:1506.03134, equation 3; weights uniform in -0.08 .. 0.08.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        check_positive(dim=dim)
        self.keys = nn.Linear(dim, dim, bias=False)
        self.queries = nn.Linear(dim, dim, bias=False)
        self.vector = nn.Parameter(torch.empty(dim))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.08, 0.08)

    def _fit(self, keys: Tensor, queries: Tensor) -> Tensor:
        return (keys.unsqueeze(1) + queries.unsqueeze(2)).tanh() @ self.vector

    def scores(self, keys: Tensor, receivers: Tensor) -> Tensor:
        """u: keys W1 e (batch, senders, dim), receivers (batch, receivers, dim) -> (batch, receivers, senders)."""
        queries = self.queries(receivers)
        if torch.compiler.is_compiling() or keys.numel() * queries.shape[1] <= LARGEST:
            return self._fit(keys, queries)
        parts = queries.split(max(LARGEST // keys.numel(), 1), 1)
        return torch.cat([recomputed(self._fit, keys, part) for part in parts], 1)
