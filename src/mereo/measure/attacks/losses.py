"""Losses that attacks raise: functions of the scores of the classes, one number an image."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.errors import UsageError, check_choice
from mereo.models import VisionModel
from mereo.tasks.losses import many_hot


def rival(scores: Tensor, labels: Tensor) -> Tensor:
    """The highest score of another class: (batch, classes), (batch,) -> (batch,)."""
    own = F.one_hot(labels, scores.shape[1]).bool()
    return scores.masked_fill(own, -torch.inf).amax(1)


def margin(scores: Tensor, labels: Tensor) -> Tensor:
    """The loss that capsule networks are trained with; for scores in [0, 1], such as lengths.

    L = max(0, 0.9 - |v_y|)^2 + 0.5 sum_{j != y} max(0, |v_j| - 0.1)^2

    It is flat, with no gradient at all, where the true capsule is longer than 0.9 and the others shorter than 0.1.

    Args:
        scores: of the classes, in [0, 1].
        labels: the true class.

    Shapes: (batch, classes), int64 (batch,) -> (batch,).

    Reference: arXiv:1710.09829, eq. 4.
    """
    targets = many_hot(labels, scores.shape[1]).to(scores)
    present, absent = (0.9 - scores).clamp(min=0).square(), (scores - 0.1).clamp(min=0).square()
    return (targets * present + 0.5 * (1 - targets) * absent).sum(1)


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy with the scores as logits. With lengths, which are in [0, 1), it never saturates.

    L = log sum_j exp s_j - s_y

    Args:
        scores: of the classes.
        labels: the true class.

    Shapes: (batch, classes), int64 (batch,) -> (batch,).
    """
    return F.cross_entropy(scores, labels, reduction="none")


def dlr(scores: Tensor, labels: Tensor) -> Tensor:
    """Difference of logits ratio: no linear rescaling of the scores changes it by much.

    L = -(s_y - max_{j != y} s_j) / (s_(1) - s_(3)),  s_(k) the k-th highest

    Args:
        scores: of the classes, three or more.
        labels: the true class.

    Shapes: (batch, classes), int64 (batch,) -> (batch,).

    Reference: arXiv:2003.01690, eq. 6.
    """
    if scores.shape[1] < 3:
        raise UsageError(f"loss is 'dlr', which needs three classes; there are {scores.shape[1]}. Use cross_entropy.")
    first, _, third = scores.topk(3, 1).values.unbind(1)
    own = scores.gather(1, labels[:, None]).squeeze(1)
    return (rival(scores, labels) - own) / (first - third + 1e-12)


Loss = Callable[[Tensor, Tensor], Tensor]
LOSSES: dict[str, Loss] = {"margin": margin, "cross_entropy": cross_entropy, "dlr": dlr}
"""The losses an attack can raise, by name."""


def check_loss(loss: str, model: VisionModel) -> None:
    """UsageError for a loss that is unknown, or not defined for the scores of a model."""
    check_choice("loss", loss, LOSSES)
    if loss not in losses_of(model):
        reason = "three classes" if loss == "dlr" else "scores between 0 and 1"
        has = f"{model.num_classes} classes" if loss == "dlr" else "logits"
        raise UsageError(f"loss is {loss!r}, which needs {reason}; the model has {has}. Use cross_entropy.")


def losses_of(model: VisionModel) -> tuple[str, ...]:
    """The losses that are defined for the scores of a model."""
    left_out = {"dlr"} if model.num_classes < 3 else set()
    if model.score_kind == "logits":
        left_out.add("margin")
    return tuple(name for name in LOSSES if name not in left_out)
