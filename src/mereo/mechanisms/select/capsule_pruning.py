"""Capsule pruning: capsules with the direction of a more important one are set to zero.

Source: arXiv:2403.13351.
Cost: 2 N^2 D FLOPs an image for N capsules of D numbers, once.
"""

import math

import torch
from torch import Tensor, nn

from mereo.core import Signal, mechanism
from mereo.core.squash import accumulation_type
from mereo.errors import UsageError


def kept_capsules(capsules: Tensor, theta: float = 0.7, *, greedy: bool = False) -> Tensor:
    """Which capsules stay; see `CapsulePruning`.

    Shapes: capsules (batch, capsules, dim) -> bool (batch, capsules).
    """
    if capsules.dim() != 3:
        raise UsageError(f"capsules are {tuple(capsules.shape)}; they must be (batch, capsules, dim).")
    with torch.no_grad():
        wide = capsules.detach().to(accumulation_type(capsules))
        # Divided by their largest entry first: squares of huge or tiny ones would lose the direction.
        largest = wide.abs().amax(2, keepdim=True).clamp(min=torch.finfo(wide.dtype).tiny)
        units = wide / largest
        norms = units.norm(dim=2, keepdim=True)
        units, importance = units / norms.clamp(min=0.5), (largest * norms).squeeze(2)
        alike = (units @ units.transpose(1, 2)).clamp(max=1) > theta
        number = torch.arange(capsules.shape[1], device=capsules.device)
        theirs, own = importance.unsqueeze(1), importance.unsqueeze(2)
        first = (theirs > own) | ((theirs == own) & (number < number.unsqueeze(1)))
        rivals = alike & first  # (batch, capsule, more important capsule in a similar direction)
        kept = ~rivals.any(2)
        if greedy:
            # A capsule is decided once all more important ones are: the number of capsules bounds the passes.
            for _ in range(capsules.shape[1] - 1):
                kept = ~(rivals & kept.unsqueeze(1)).any(2)
        return kept


def prune(capsules: Tensor, theta: float = 0.7, *, greedy: bool = False) -> tuple[Tensor, Tensor]:
    """Capsules with the redundant ones set to zero, and which were kept; see `CapsulePruning`.

    Shapes: capsules (batch, capsules, dim) -> the same, and bool (batch, capsules).
    """
    kept = kept_capsules(capsules, theta, greedy=greedy)
    return capsules.masked_fill(~kept.unsqueeze(-1), 0), kept


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return CapsulePruning(0.1), (torch.randn(3, 8, 6),)


@mechanism(
    "capsule_pruning",
    family="token selection",
    source="arXiv:2403.13351",
    records="kept tokens",
    promises=("any sender order", "any receiver order", "any length"),
    sender_axes={"0": 1, "output": 1},
    receiver_axes={"0": 1, "output": 1},
    interface="tokens",
    example=_example,
)
class CapsulePruning(nn.Module):
    """Set capsules to zero that resemble a more important one.

    removed_i = any over j with |u_j| > |u_i| of cos(u_i, u_j) > theta

    Of equally important capsules the first counts as more important. The choice has no gradient.

    Args:
        theta: cosine above which two capsules are redundant; 1 and more removes none.
        greedy: compare only with capsules that were kept, from the most important down, which keeps more.

    Shapes: capsules (batch, capsules, dim) -> the same; kept tokens bool (batch, capsules). `select` gives both.

    Deviates: follows the text. The authors' later code sets theta to 1, and would drop the more important of a pair.

    Reference: arXiv:2403.13351.
    """

    def __init__(self, theta: float = 0.7, *, greedy: bool = False) -> None:
        super().__init__()
        if not isinstance(theta, int | float) or math.isnan(theta):
            raise UsageError(f"theta is {theta!r}; it must be a cosine, such as 0.7.")
        self.theta, self.greedy = theta, greedy
        self.kept = Signal("kept tokens")

    def select(self, capsules: Tensor) -> tuple[Tensor, Tensor]:
        """The capsules, zero where they are removed, and which were kept, bool (batch, capsules)."""
        kept = self.kept(kept_capsules(capsules, self.theta, greedy=self.greedy))
        return capsules.masked_fill(~kept.unsqueeze(-1), 0), kept

    def forward(self, capsules: Tensor) -> Tensor:
        return self.select(capsules)[0]

    def extra_repr(self) -> str:
        return f"theta={self.theta}" + (", greedy" if self.greedy else "")
