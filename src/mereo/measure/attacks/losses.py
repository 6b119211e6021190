"""Losses that attacks raise: functions of the lengths of the class capsules, one number an image."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.errors import UsageError
from mereo.training.losses import many_hot


def rival(lengths: Tensor, labels: Tensor) -> Tensor:
    """The longest capsule of another class: (batch, classes), (batch,) -> (batch,)."""
    own = F.one_hot(labels, lengths.shape[1]).bool()
    return lengths.masked_fill(own, -torch.inf).amax(1)


def margin(lengths: Tensor, labels: Tensor) -> Tensor:
    """The loss that capsule networks are trained with.

    L = max(0, 0.9 - |v_y|)^2 + 0.5 sum_{j != y} max(0, |v_j| - 0.1)^2

    It is flat, with no gradient at all, where the true capsule is longer than 0.9 and the others shorter than 0.1.

    Args:
        lengths: of the class capsules.
        labels: the true class.

    Shapes: (batch, classes), int64 (batch,) -> (batch,).

    Reference: arXiv:1710.09829, eq. 4.
    """
    targets = many_hot(labels, lengths.shape[1]).to(lengths)
    present, absent = (0.9 - lengths).clamp(min=0).square(), (lengths - 0.1).clamp(min=0).square()
    return (targets * present + 0.5 * (1 - targets) * absent).sum(1)


def cross_entropy(lengths: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy with the lengths as logits. They lie in [0, 1), so that it never saturates.

    L = log sum_j exp |v_j| - |v_y|

    Args:
        lengths: of the class capsules.
        labels: the true class.

    Shapes: (batch, classes), int64 (batch,) -> (batch,).
    """
    return F.cross_entropy(lengths, labels, reduction="none")


def dlr(lengths: Tensor, labels: Tensor) -> Tensor:
    """Difference of logits ratio: no monotone rescaling of the lengths changes it by much.

    L = -(|v_y| - max_{j != y} |v_j|) / (|v_(1)| - |v_(3)|),  v_(k) the k-th longest

    Args:
        lengths: of the class capsules, three or more.
        labels: the true class.

    Shapes: (batch, classes), int64 (batch,) -> (batch,).

    Reference: arXiv:2003.01690, eq. 6.
    """
    if lengths.shape[1] < 3:
        raise UsageError(f"loss is 'dlr', which needs three classes; there are {lengths.shape[1]}. Use cross_entropy.")
    first, _, third = lengths.topk(3, 1).values.unbind(1)
    own = lengths.gather(1, labels[:, None]).squeeze(1)
    return (rival(lengths, labels) - own) / (first - third + 1e-12)


Loss = Callable[[Tensor, Tensor], Tensor]
LOSSES: dict[str, Loss] = {"margin": margin, "cross_entropy": cross_entropy, "dlr": dlr}
"""The losses an attack can raise, by name."""
