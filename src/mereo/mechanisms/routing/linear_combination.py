"""Linear combination of capsules: a large set becomes a small one by learned weights, the same for every image.

Source: Yang, Lee, Miao, Cai, Chen, Yao, Kotani, Chen, "RS-CapsNet: an advanced capsule network", IEEE Access 8,
2020, doi:10.1109/ACCESS.2020.2992655; specified here from its title and abstract.
Cost: 2 R S d FLOPs an image and R S weights, where a transform for each pair has R S d D of both.
"""

import torch
from torch import Tensor, nn

from mereo.core import Coupling, SameVotes, bounded, mechanism
from mereo.core.squash import accumulation_type
from mereo.errors import UsageError, check_choice, check_positive

NORMALISERS = ("none", "softmax")


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return LinearCombinationCaps(9, 4), (torch.randn(3, 9, 5),)


@mechanism(
    "linear_combination",
    family="routing",
    over="senders",
    steps=1,
    values="shared",
    update="weighted sum",
    source="doi:10.1109/ACCESS.2020.2992655",
    reconstruction="only title and abstract were available",
    promises=("masks", "any sender order", "any receiver order"),
    sender_axes={"0": 1, "weight": 1},
    receiver_axes={"weight": 0, "output": 1},
    interface="tokens",
    example=_example,
)
class LinearCombinationCaps(nn.Module):
    """Combine many capsules to few; the same factor for all numbers of a capsule.

    v_r = sum_s c_rs u_s,   c = L, or the softmax of L over s

    It commutes with any linear map that is applied to every capsule.

    Args:
        senders, receivers: how many capsules come in and go out.
        normalise: "none", or "softmax", for which every new capsule is a convex combination.

    Shapes: capsules (batch, senders, dim), mask (batch, senders) -> (batch, receivers, dim).

    Reads as: couplings[b, 0, r, s] is the factor of capsule s in the new capsule r; without masks it is the same for
        all images, and with "none" it may be negative.

    Deviates: neither the paper's text nor code was available; the softmax is ours.

    Reference: RS-CapsNet, IEEE Access 2020.
    """

    has_coupling_map = False
    """The factors are the same for all images."""

    def __init__(self, senders: int, receivers: int, *, normalise: str = "none") -> None:
        super().__init__()
        check_positive(senders=senders, receivers=receivers)
        check_choice("normalise", normalise, NORMALISERS)
        self.weight = nn.Parameter(torch.empty(receivers, senders))
        nn.init.normal_(self.weight, std=senders**-0.5)
        self.coupling = Coupling("senders", normalise)

    def votes(self, capsules: Tensor, mask: Tensor | None = None) -> SameVotes:
        """The contribution of each capsule, the same for every receiver."""
        return SameVotes(capsules.unsqueeze(1))

    def forward(self, capsules: Tensor, mask: Tensor | None = None) -> Tensor:
        if capsules.dim() != 3 or capsules.shape[1] != self.weight.shape[1]:
            raise UsageError(
                f"capsules are {tuple(capsules.shape)}; they must be (batch, {self.weight.shape[1]}, dim)."
            )
        wide = accumulation_type(capsules)
        scores = self.weight.to(wide)[None, None]
        if mask is not None or self.coupling.watched:
            # Only then do images have factors of their own.
            scores = scores.expand(len(capsules), -1, -1, -1)
        couplings = self.coupling(scores, None if mask is None else mask[:, None, None])
        combined = couplings.squeeze(1) @ bounded(capsules.to(wide))
        return combined.to(capsules.dtype)

    def extra_repr(self) -> str:
        receivers, senders = self.weight.shape
        return f"{senders} -> {receivers}, normalise={self.coupling.normaliser!r}"
