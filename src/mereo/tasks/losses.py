"""Losses of classifiers on scores, and the squared error of a reconstruction."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.core.kernels.transforms import transformed
from mereo.errors import UsageError, check_choice, type_of

SPREAD_MARGINS = (0.2, 0.9)
"""Margin of the spread loss at the first step and at the last."""

SPREAD_LOSSES = {"spread": "linear", "spread_sigmoid": "sigmoid"}
"""Names of the spread loss, each with the schedule of its margin."""

MARGIN_LOSSES = {"margin": (0.9, 0.1, 0.5), "hard_margin": (0.95, 0.05, 0.8)}
"""Names of the margin loss, each with its m+, m- and lambda: of CapsNet, and of the second run of DeepCaps."""

LOSSES = (*MARGIN_LOSSES, "cross_entropy", *SPREAD_LOSSES)
"""Names of the losses of scores."""


def check_labels(scores: Tensor, labels: Tensor) -> None:
    """UsageError unless labels are tensors of classes, or of soft labels, for these scores.

    Shapes: scores (batch, classes); labels whole numbers (batch,) or (batch, objects), or float (batch, classes).
    """
    for name, value in (("scores", scores), ("labels", labels)):
        if not isinstance(value, Tensor):
            raise UsageError(f"{name} is {type_of(value)}; give a tensor, class numbers as torch.tensor(...).")
    if scores.dim() != 2 or labels.dim() not in (1, 2) or len(labels) != len(scores):
        raise UsageError(
            f"scores are {tuple(scores.shape)} and labels {tuple(labels.shape)}; they must be (batch, classes), and"
            " (batch,) or (batch, objects) class numbers or (batch, classes) shares."
        )
    if labels.is_floating_point():
        if labels.shape != scores.shape:
            raise UsageError(
                f"labels are {labels.dtype} {tuple(labels.shape)}; class numbers must be whole, as with .long(), and"
                f" soft labels {tuple(scores.shape)}."
            )
        return
    # Reading the values would synchronise an accelerator.
    if labels.device.type == "cpu" and labels.numel() and not torch.compiler.is_compiling() and not transformed():
        low, high = (int(end) for end in labels.aminmax())
        if low < 0 or high >= scores.shape[1]:
            raise UsageError(f"labels are between {low} and {high}; they must be 0 to {scores.shape[1] - 1}.")


def many_hot(labels: Tensor, num_classes: int) -> Tensor:
    """Labels (batch,) or (batch, objects) as a matrix of zeros and ones (batch, classes); soft labels as they are."""
    if labels.is_floating_point():
        return labels
    columns = labels.unsqueeze(1) if labels.dim() == 1 else labels
    return F.one_hot(columns.long(), num_classes).amax(1).float()


def margin_loss(
    lengths: Tensor, targets: Tensor, *, positive: float = 0.9, negative: float = 0.1, down_weight: float = 0.5
) -> Tensor:
    """Margin loss: capsules of present classes should be long, capsules of absent classes short.

    L = mean_b sum_j  T_j max(0, m+ - |v_j|)^2 + lambda (1 - T_j) max(0, |v_j| - m-)^2

    Shapes: lengths (batch, classes); targets class numbers (batch,) or (batch, objects), or (batch, classes) in [0, 1],
        several ones allowed -> ().

    Reference: arXiv:1710.09829, eq. 4.
    """
    if isinstance(targets, Tensor) and targets.shape == lengths.shape:
        targets = targets.to(lengths.dtype)  # zeros and ones, maybe as whole numbers
    check_labels(lengths, targets)
    targets = many_hot(targets, lengths.shape[1]).to(lengths.dtype)
    present = (positive - lengths).clamp(min=0).square()
    absent = (lengths - negative).clamp(min=0).square()
    return (targets * present + down_weight * (1 - targets) * absent).sum(1).mean()


def spread_loss(scores: Tensor, labels: Tensor, margin: float | Tensor) -> Tensor:
    """Spread loss: the score of the true class should exceed every other one by a margin.

    L = mean_b sum_{j != t} max(0, m - (a_t - a_j))^2

    Args:
        scores: activations of the classes.
        labels: the true class t.
        margin: m; training raises it from 0.2 to 0.9, see `spread_margin`.

    Shapes: scores (batch, classes), labels int64 (batch,) -> ().

    Reference: Hinton, Sabour, Frosst, Matrix capsules with EM routing, ICLR 2018, eq. 3.
    """
    check_labels(scores, labels)
    if labels.dim() != 1:
        raise UsageError(f"labels are {tuple(labels.shape)}; this loss takes one class number an image, (batch,).")
    labels = labels.long()
    ahead = scores.gather(1, labels.unsqueeze(1)) - scores
    others = 1 - F.one_hot(labels, scores.shape[1]).to(scores.dtype)
    return (others * (margin - ahead).clamp(min=0).square()).sum(1).mean()


def spread_margin(step: int, steps: int, schedule: str = "linear") -> float:
    """The margin of the spread loss at a step, counted from 0.

    linear: from 0.2 at the first step to 0.9 at the last;   sigmoid: 0.2 + 0.79 sigmoid(min(10, step / 50000 - 4))

    The second is the authors' schedule (https://openreview.net/forum?id=HJWLfGWRb, discussion), whatever the number of
    steps.
    """
    first, last = SPREAD_MARGINS
    if schedule == "sigmoid":
        return first + 0.79 / (1 + math.exp(-min(10.0, step / 50_000 - 4)))
    return first + (last - first) * min(step / max(steps - 1, 1), 1.0)


def reconstruction_loss(rebuilt: Tensor, targets: Tensor) -> Tensor:
    """Sum of squared errors over the pixels, mean over the batch: (batch, channels, height, width) twice -> ()."""
    return (rebuilt - targets).square().flatten(1).sum(1).mean()


def score_loss(
    scores: Tensor,
    labels: Tensor,
    kind: str,
    *,
    label_smoothing: float = 0.0,
    margin: float | Tensor = SPREAD_MARGINS[1],
) -> Tensor:
    """The loss of scores.

    Args:
        scores: lengths of class capsules, activations or logits.
        labels: classes, or soft labels that sum to one.
        kind: "margin", "hard_margin", "cross_entropy", "spread" or "spread_sigmoid".
        label_smoothing: of the cross-entropy: the share of the target that is spread evenly over all classes.
        margin: of the spread loss.

    Shapes: scores (batch, classes); labels int64 (batch,) or (batch, objects), or float (batch, classes) -> ().
    """
    check_choice("kind", kind, LOSSES)
    check_labels(scores, labels)
    if kind in MARGIN_LOSSES:
        positive, negative, weight = MARGIN_LOSSES[kind]
        targets = many_hot(labels, scores.shape[1])
        return margin_loss(scores, targets, positive=positive, negative=negative, down_weight=weight)
    soft = labels.is_floating_point()
    if labels.dim() > 1 and not soft:
        raise UsageError(f"loss is {kind!r}, which takes one label per image; use 'margin' for several.")
    if kind in SPREAD_LOSSES:
        if soft:
            raise UsageError(f"loss is {kind!r}, which takes no soft labels; leave mixup and cutmix out.")
        return spread_loss(scores, labels, margin)
    return F.cross_entropy(scores, labels if soft else labels.long(), label_smoothing=label_smoothing)
