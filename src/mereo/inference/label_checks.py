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

    suspects = {n : k_n != label_n} among the `confident_answers`

    Args:
        probabilities: of the classes. A network that was trained with these labels contradicts fewer of them.
        labels: that the images have.

    Deviates: the suggested class is also the most probable of all, which the paper does not ask for; others were
    suggestions that the network itself does not make.

    Shapes: probabilities (n, classes), labels int64 (n,).

    Reference: arXiv:1911.00068, section 3.1, eqs. 1 and 2: the off-diagonal entries of the confident joint.
    """
    confident = confident_answers(probabilities, labels)
    wide = probabilities.double()
    places = (confident & (wide.argmax(1) != labels)).nonzero()[:, 0]
    counted = wide.argmax(1)[places]
    leads = wide[places, counted] - wide[places, labels[places]]
    order = leads.argsort(descending=True, stable=True)
    return [
        Suspect(n, int(labels[n]), k, lead)
        for n, k, lead in zip(places[order].tolist(), counted[order].tolist(), leads[order].tolist(), strict=True)
    ]


def confident_answers(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Which images the network classifies as confidently as it does images of that class on average, bool (n,).

    confident = {n : p_nk >= t_k},   k = argmax_j p_nj,   t_j = mean of p_nj over the images n with label j

    Args:
        probabilities: of the classes.
        labels: that the images have.

    Shapes: probabilities (n, classes), labels int64 (n,).

    Reference: arXiv:1911.00068, section 3.1, eqs. 1 and 2.
    """
    if probabilities.dim() != 2 or labels.shape != probabilities.shape[:1]:
        raise UsageError(
            f"probabilities are {tuple(probabilities.shape)} for labels {tuple(labels.shape)}; give (n, classes), (n,)."
        )
    if not len(labels):
        return torch.zeros(0, dtype=torch.bool)
    wide, classes = probabilities.double(), probabilities.shape[1]
    own = wide.gather(1, labels[:, None])[:, 0]
    sums = torch.zeros(classes, dtype=torch.float64).index_add_(0, labels, own)
    counts = torch.bincount(labels, minlength=classes)
    # A class without images is not suggested.
    thresholds = torch.where(counts > 0, sums / counts.clamp(min=1), torch.inf)
    best, counted = wide.max(1)
    return best >= thresholds[counted]


def expected_errors(probabilities: Tensor, labels: Tensor) -> float:
    """How many of the `confident_answers` the network itself gets wrong, by its own probabilities.

    sum of (1 - p_nk) over the confident n,   k = argmax_j p_nj

    Where there are not clearly more suspects than that, most of them are errors of the network. Probabilities that are
    too high make it too low.

    Args:
        probabilities: of the classes, calibrated.
        labels: that the images have.

    Shapes: probabilities (n, classes), labels int64 (n,).
    """
    best = probabilities.double().amax(1) if len(labels) else probabilities.new_zeros(0)
    return float((1 - best)[confident_answers(probabilities, labels)].sum())
