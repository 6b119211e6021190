"""The margin loss of pairs: images of a class within a distance of each other, of different classes beyond it.

Source: Wu, Manmatha, Smola, Krähenbühl 2017, arXiv:1706.07567; the selection of negatives as in the code of
arXiv:2206.09068, github.com/adigasu/Dynamic_subspace_learners.
"""

import torch
from torch import Tensor

FAR = 1e6
"""Added to the distance of negatives that are too near, so that others come first."""
_NEAR = 1e-8
"""Least square of a distance."""


def pair_margin_loss(
    embeddings: Tensor, labels: Tensor, *, beta: float = 1.2, alpha: float = 0.2, cutoff: float = 0.5
) -> Tensor:
    """Margin loss of triples of an anchor, a positive and a negative.

    L = sum (max(0, d_ap - beta + alpha) + max(0, beta - d_an + alpha)) / number of triples with one of them above 0

    Every image is an anchor with all others of its class in the batch, and with as many negatives: the nearest ones at
    a distance of `cutoff` or more, and if there are too few, the nearest of the rest. Positives and negatives are
    paired in the order of the batch.

    Args:
        embeddings: of length one.
        labels: classes.
        beta: the distance between both sides.
        alpha: the margin on each side of it.
        cutoff: least distance of negatives.

    Shapes: embeddings (batch, dim), labels int64 (batch,) -> ().

    Deviates: in the authors' code a positive may serve as negative where a batch has too few others.

    Reference: arXiv:1706.07567, eq. 6; arXiv:2206.09068, section III.
    """
    squares = (embeddings.unsqueeze(1) - embeddings.unsqueeze(0)).square().sum(-1)
    distances = (squares + _NEAR).sqrt()
    same = labels.unsqueeze(0) == labels.unsqueeze(1)
    positive = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    count = torch.minimum(positive.sum(1), (~same).sum(1))
    preference = (distances.detach() + FAR * (distances < cutoff)).masked_fill(same, torch.inf)
    negative = preference.argsort(1).argsort(1) < count.unsqueeze(1)
    # Places of positives and of negatives come first in each row, in the order of the batch.
    first = [(~chosen).to(torch.int8).argsort(dim=1, stable=True) for chosen in (positive, negative)]
    there = torch.arange(len(labels), device=labels.device) < count.unsqueeze(1)
    to_positive, to_negative = (distances.gather(1, places) for places in first)
    near, far = (to_positive - beta + alpha).relu() * there, (beta - to_negative + alpha).relu() * there
    return (near + far).sum() / ((near > 0) | (far > 0)).sum().clamp(min=1)
