"""Likely wrong labels, by confident learning.

Source: Northcutt, Jiang, Chuang 2021, arXiv:1911.00068.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mereo.errors import UsageError


class Suspect(NamedTuple):
    """An image whose label is likely wrong.

    Attributes:
        place: of the image in the list.
        label: that it has.
        suggested: the class that it counts as.
        lead: probability of the suggested class minus that of the label.
    """

    place: int
    label: int
    suggested: int
    lead: float


def likely_wrong_labels(probabilities: Tensor, labels: Tensor) -> list[Suspect]:
    """The images that count confidently as another class than their label, the largest lead first.

    t_j = mean of p_nj over the images n with label j
    suspects = {n : k_n != label_n},   k_n = argmax_j p_nj,   where p_nk >= t_k

    An image whose most probable class is below its threshold is no suspect.

    Args:
        probabilities: of the classes, by a network that was not trained on these images.
        labels: that the images have.

    Deviates: the suggested class is also the most probable of all, which the paper does not ask for; others were
    suggestions that the network itself does not make.

    Shapes: probabilities (n, classes), labels int64 (n,).

    Reference: arXiv:1911.00068, section 3.1, eqs. 1 and 2: the off-diagonal entries of the confident joint.
    """
    if probabilities.dim() != 2 or labels.shape != probabilities.shape[:1]:
        raise UsageError(
            f"probabilities are {tuple(probabilities.shape)} for labels {tuple(labels.shape)}; give (n, classes), (n,)."
        )
    if not len(labels):
        return []
    wide, classes = probabilities.double(), probabilities.shape[1]
    own = wide.gather(1, labels[:, None])[:, 0]
    sums = torch.zeros(classes, dtype=torch.float64).index_add_(0, labels, own)
    counts = torch.bincount(labels, minlength=classes)
    # A class without images is not suggested.
    thresholds = torch.where(counts > 0, sums / counts.clamp(min=1), torch.inf)
    best, counted = wide.max(1)
    places = ((best >= thresholds[counted]) & (counted != labels)).nonzero()[:, 0]
    leads = wide[places, counted[places]] - own[places]
    order = leads.argsort(descending=True, stable=True)
    return [
        Suspect(n, int(labels[n]), int(counted[n]), lead)
        for n, lead in zip(places[order].tolist(), leads[order].tolist(), strict=True)
    ]
