"""Object pointer: heads of scaled dot products, mixed to one score, whose couplings are the prediction.

Source: Fang, Yu, Zhang, van der Lans, Shi 2024, arXiv:2407.13335; from the authors' code.
Cost: 2 H D^2 (S + R) + 2 H S R D FLOPs for S senders and R receivers of D numbers in H heads.
"""

import torch
from torch import Tensor, nn

from mereo.core import mechanism
from mereo.errors import check_positive
from mereo.mechanisms.attention.dense.pointer import PointingModule


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return ObjectPointer(6), (torch.randn(2, 5, 6), torch.randn(2, 3, 6))


@mechanism(
    "object_pointer",
    family="dense attention",
    over="senders",
    values="shared",
    update="the couplings themselves",
    source="arXiv:2407.13335",
    promises=("normalised", "masks", "any length", "any sender order", "any receiver order"),
    zero_gradients={"keys.bias": "it adds the same to every score of a receiver, and the softmax takes that out"},
    sender_axes={"0": 1, "output": 2},
    receiver_axes={"1": 1, "output": 1},
    largest_input=1e15,  # queries times keys must fit float32
    example=_example,
)
class ObjectPointer(PointingModule):
    """Point from each receiver to the senders by dot products of several heads, which a linear layer mixes.

    u_ti = m_0 + sum_h m_h <K_h e_i + b_h, Q_h d_t + c_h> / sqrt(dim),   output_ti = softmax_i(u_ti)

    Args:
        dim: of senders, receivers and of each head.
        num_heads: mixed scores.

    Shapes: senders e (batch, senders, dim), receivers d (batch, receivers, dim), mask bool (batch, senders) or (batch,
        receivers, senders) -> (batch, receivers, senders).

    Reads as: couplings[b, 0, t, i] is the probability that receiver t points to sender i; exactly 0 where the mask is
        False.

    Deviates: the authors' code has a further sender with a score of 0 for padding, which only acts in the softmax. The
        constant m_0 is there for their weights and is not trained: it changes no coupling.

    Reference: arXiv:2407.13335, object attention.
    """

    def __init__(self, dim: int, num_heads: int = 2) -> None:
        super().__init__()
        check_positive(dim=dim, num_heads=num_heads)
        self.dim, self.num_heads = dim, num_heads
        self.keys = nn.Linear(dim, num_heads * dim)
        self.queries = nn.Linear(dim, num_heads * dim)
        self.mix = nn.Linear(num_heads, 1)
        for part in (*self.keys.weight.split(dim), *self.queries.weight.split(dim), self.mix.weight):
            nn.init.xavier_uniform_(part)
        assert self.mix.bias is not None
        self.mix.bias.requires_grad_(False)

    def scores(self, keys: Tensor, receivers: Tensor) -> Tensor:
        """u: keys K e + b (batch, senders, heads * dim), receivers (batch, receivers, dim)."""
        q, k = (x.unflatten(2, (self.num_heads, self.dim)).transpose(1, 2) for x in (self.queries(receivers), keys))
        mixed: Tensor = self.mix((q * self.dim**-0.5 @ k.mT).movedim(1, 3))
        return mixed.squeeze(3)
