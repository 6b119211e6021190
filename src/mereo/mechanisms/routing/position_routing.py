"""Position routing: every number of a class capsule is a function of that number of the capsules at all positions.

Source: Geng, Wang, Xu 2024, arXiv:2411.01564, the authors' code, https://github.com/ornamentt/Parsecaps
Cost: for P positions, C classes and D numbers: 2 P (P + C) D multiply-adds an image, couplings 2 P (P + 1) C D more
while they are watched.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Coupling, mechanism
from mereo.core.votes import GivenVotes
from mereo.errors import UsageError, check_positive


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return PositionRouting(4, 3), (torch.randn(5, 4, 6),)


@mechanism(
    "position_routing",
    family="routing",
    over="none",
    steps=1,
    values="shared",
    update="sigmoid, GELU",
    source="arXiv:2411.01564",
    promises=("any receiver order",),
    receiver_axes={"second.weight": 0, "second.bias": 0, "output": 1},
    interface="tokens",
    example=_example,
)
class PositionRouting(nn.Module):
    """Make the class capsules number by number, by the same two layers over the positions for every number.

    x = ReLU(norm(children)),   y_jd = GELU(sigmoid(sum_h V_jh ReLU(sum_p W_hp x_pd + a_h) + b_j))

    The norm has no parameters; it is over the images and numbers of each position. With the units g_dh in {0, 1} that
    are above zero the sums are linear in x:

    sum_p c_djp x_pd + c_dj0,   c_djp = sum_h V_jh g_dh W_hp,   c_dj0 = sum_h V_jh g_dh a_h + b_j

    Args:
        positions: their number; the units h are twice that.
        receivers: class capsules.
        batch_stats: normalise by the statistics of the batch in evaluation too, as the authors' code does; the output
            for an image then depends on the others.
        public_view: read y without moving the axis of receivers before the axis of numbers, as the authors' code
            does: capsule r is the piece of `dim` entries from r dim on of y_11, y_21, ..., y_12, y_22, ... Then each
            receiver has numbers of its own; otherwise permuting the numbers changes no length.

    Shapes: children (batch, positions, dim) -> (batch, receivers, dim); couplings (batch, dim, receivers, 1 +
        positions).

    Reads as: couplings[b, d, r, 0] is the constant term of number d of receiver r, and couplings[b, d, r, 1 + p] the
        factor of number d of position p, before sigmoid and GELU. They depend on the image by the units that are on.
        They follow from the weights of both layers; changes by a forward hook on a layer are not in them.

    Deviates: running statistics in evaluation, unless `batch_stats`; every receiver reads all numbers, unless
        `public_view`.

    Reference: arXiv:2411.01564, the authors' code.
    """

    def __init__(self, positions: int, receivers: int, *, batch_stats: bool = False, public_view: bool = False) -> None:
        super().__init__()
        check_positive(positions=positions, receivers=receivers)
        self.norm = nn.BatchNorm1d(positions, affine=False, track_running_stats=not batch_stats)
        self.first = nn.Linear(positions, 2 * positions)
        self.second = nn.Linear(2 * positions, receivers)
        self.coupling, self.public_view = Coupling("none", "none"), public_view

    def normalised(self, children: Tensor) -> Tensor:
        """ReLU(norm(children)), number by number: (batch, positions, dim) -> (batch, dim, positions)."""
        positions = self.first.in_features
        if children.dim() != 3 or children.shape[1] != positions:
            raise UsageError(f"children are {tuple(children.shape)}; they must be (batch, {positions}, dim).")
        rows = children.transpose(1, 2)
        return self.norm(rows.flatten(0, 1)).relu().unflatten(0, rows.shape[:2])

    def scores(self, x: Tensor) -> Tensor:
        """The factors c: x (batch, dim, positions) -> (batch, dim, receivers, 1 + positions)."""
        on = (self.first(x) > 0).to(x.dtype)
        weight, bias = self.first.weight, self.first.bias
        factors = (self.second.weight * on.unsqueeze(2)) @ torch.cat((bias.unsqueeze(1), weight), 1)
        return self._viewed(torch.cat((factors[..., :1] + self.second.bias.unsqueeze(1), factors[..., 1:]), 3))

    def _viewed(self, y: Tensor) -> Tensor:
        """The inputs of each number of each receiver: (batch, dim, receivers, any) -> the same shape."""
        return y.flatten(1, 2).unflatten(1, (y.shape[2], y.shape[1])).transpose(1, 2) if self.public_view else y

    def _children(self, x: Tensor) -> Tensor:
        """1 and the positions that each number of each receiver reads: (batch, dim, receivers, 1 + positions)."""
        x = F.pad(x, (1, 0), value=1.0)
        return self._viewed(x.unsqueeze(2).expand(-1, -1, self.second.out_features, -1))

    def votes(self, children: Tensor) -> GivenVotes:
        """Contributions of the constant and every position to a receiver; each head has a single number of the pose.

        A vote is multiplied by the number of heads, because contributions are means over the heads.
        """
        x = self._children(self.normalised(children))
        dim = x.shape[1]
        own = torch.eye(dim, dtype=x.dtype, device=x.device)[:, None, None]
        return GivenVotes(dim * x.unsqueeze(4) * own)

    def forward(self, children: Tensor) -> Tensor:
        x = self.normalised(children)
        sums = self._viewed(self.second(self.first(x).relu()).unsqueeze(3)).squeeze(3)
        if self.coupling.watched:
            factors = self.scores(x)
            # The layers are called in any case, so that hooks on them act; an intervention adds what it changes.
            sums = sums + ((self.coupling(factors) - factors) * self._children(x)).sum(3)
        return F.gelu(sums.sigmoid()).transpose(1, 2)

    def extra_repr(self) -> str:
        return f"{self.first.in_features} -> {self.second.out_features}"
