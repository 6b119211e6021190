"""Average precision of detections as COCO defines it: of ten overlaps, at 101 recalls, and over classes.

Source: Lin et al. 2014, arXiv:1405.0312, and the evaluation of its API, which gives the same figures where there are no
crowds. The API needs all images at once; here an image becomes one row, so that rows of batches and processes join.
"""

import torch
from torch import Tensor

OVERLAPS = torch.linspace(0.5, 0.95, 10, dtype=torch.float64)
_RECALLS = torch.linspace(0, 1, 101, dtype=torch.float64)
_LEAST = 1e-10


def match(boxes: Tensor, labels: Tensor, true_boxes: Tensor, true_labels: Tensor) -> Tensor:
    """Which detections are correct at each overlap, each taking the free object that it fits best, the surest first.

    Shapes: boxes (batch, detections, 4), the surest first, labels int64 (batch, detections), true_boxes (batch,
        objects, 4), true_labels int64 (batch, objects), -1 for none -> bool (batch, detections, 10).
    """
    from torchvision.ops import box_iou

    overlaps = torch.stack([box_iou(a, b) for a, b in zip(boxes, true_boxes, strict=True)]).double()
    fits = (labels.unsqueeze(2) == true_labels.unsqueeze(1)) & (labels >= 0).unsqueeze(2)
    overlaps = overlaps.masked_fill(~fits, -1)
    least = OVERLAPS.to(overlaps.device) - _LEAST
    taken = fits.new_zeros(len(boxes), len(OVERLAPS), true_labels.shape[1])
    correct = []
    for each in overlaps.unbind(1):
        best, place = each.unsqueeze(1).masked_fill(taken, -1).max(-1)
        correct.append(best >= least)
        taken = taken.scatter(2, place.unsqueeze(-1), correct[-1].unsqueeze(-1) | taken.gather(2, place.unsqueeze(-1)))
    return torch.stack(correct, 1)


def average_precision(scores: Tensor, correct: Tensor, objects: float, weights: Tensor | None = None) -> Tensor:
    """For one class, the mean over 101 recalls of the largest precision from that recall on, at each overlap.

    Args:
        scores: of all detections of the class.
        correct: whether each is.
        objects: their number.
        weights: how often the image of each detection counts; once by default.

    Shapes: scores (n,), correct bool (n, 10), weights (n,) -> (10,).
    """
    order = scores.argsort(descending=True, stable=True)
    counted = torch.ones(len(scores), dtype=torch.float64) if weights is None else weights[order].double()
    right = (correct[order].double() * counted.unsqueeze(1)).cumsum(0).T.contiguous()
    precision = right / counted.cumsum(0).clamp(min=_LEAST)
    envelope = torch.cat((precision.flip(1).cummax(1)[0].flip(1), right.new_zeros(len(right), 1)), 1)
    place = torch.searchsorted(right / objects, _RECALLS.expand(len(right), -1).contiguous())
    return envelope.gather(1, place).mean(1)


def summarise(
    scores: Tensor, labels: Tensor, correct: Tensor, counts: Tensor, weights: Tensor | None = None
) -> dict[str, float]:
    """AP, AP50 and AP75: means over the classes that have objects; 0 without any.

    Args:
        weights: how often each image counts; once by default.

    Shapes: scores and labels (images, detections), -1 for no detection, correct bool (images, detections, 10), counts
        of the objects of each class (images, classes), weights (images,).
    """
    each = torch.ones(len(counts), dtype=torch.float64) if weights is None else weights.double()
    totals = (counts.double() * each.unsqueeze(1)).sum(0)
    per_detection = each.unsqueeze(1).expand(-1, labels.shape[1])
    found = []
    for label in totals.nonzero().flatten().tolist():
        those = labels == label
        found.append(average_precision(scores[those], correct[those], float(totals[label]), per_detection[those]))
    table = torch.stack(found).mean(0) if found else torch.zeros(len(OVERLAPS))
    return {"ap": table.mean().item(), "ap50": table[0].item(), "ap75": table[5].item()}


def pack(correct: Tensor) -> Tensor:
    """Ten bits as one number, which float32 holds exactly: bool (..., 10) -> (...)."""
    return (correct.long() << torch.arange(len(OVERLAPS), device=correct.device)).sum(-1)


def unpack(numbers: Tensor) -> Tensor:
    """The inverse of `pack`."""
    return (numbers.long().unsqueeze(-1) >> torch.arange(len(OVERLAPS)) & 1).bool()
