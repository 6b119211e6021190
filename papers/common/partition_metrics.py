"""How similar two partitions of the same points are, image by image: segmentation accuracy, adjusted Rand index,
variation of information. The names of groups do not matter to any of them.

Shapes of all three: predicted, true (images, points), mask bool of the same shape, True = takes part -> (images,).
"""

from collections.abc import Callable
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from scipy.stats import entropy
from sklearn.metrics import adjusted_rand_score
from sklearn.metrics.cluster import contingency_matrix
from torch import Tensor

from mereo.errors import UsageError


def _each(metric: Callable[[Any, Any], float], predicted: Tensor, true: Tensor, mask: Tensor) -> Tensor:
    """The metric of each image, of the points that are there."""
    rows = zip(true.cpu().numpy(), predicted.cpu().numpy(), mask.cpu().numpy(), strict=True)
    return torch.tensor([metric(t[there], p[there]) for t, p, there in rows], dtype=torch.float64)


def segmentation_accuracy(predicted: Tensor, true: Tensor, mask: Tensor, *, slots: int | None = None) -> Tensor:
    """The share of points with the right label, under the best one-to-one renaming of the labels of each image.

    SA = (1 / n) max over permutations p of sum_i n_(i, p(i))

    Args:
        slots: the number of points to divide by in every image; absent points count as correct. This is how the
            constellations of stacked capsule autoencoders are evaluated. None: only the points that are there.

    Reference: arXiv:2103.06676, section 5; bipartite matching as in arXiv:1906.06818.
    """

    def correct(true: Any, predicted: Any) -> float:
        table = contingency_matrix(true, predicted)
        return float(table[linear_sum_assignment(table, maximize=True)].sum())

    right, points = _each(correct, predicted, true, mask), mask.sum(-1).cpu()
    if slots is None:
        return right / points
    if slots < points.max():
        raise UsageError(f"slots is {slots}, and an image has {int(points.max())} points; give at least that number.")
    return (right + slots - points) / slots


def adjusted_rand_index(predicted: Tensor, true: Tensor, mask: Tensor) -> Tensor:
    """The pairs of points on which two partitions agree, beyond chance: 1 equal, about 0 by chance."""
    return _each(adjusted_rand_score, predicted, true, mask)


def variation_of_information(predicted: Tensor, true: Tensor, mask: Tensor) -> Tensor:
    """Variation of information between two partitions, in nats: 0 if equal; a metric.

    VI = 2 H(predicted, true) - H(predicted) - H(true)

    Reference: Meila 2003; arXiv:2103.06676, section 5.
    """

    def information(true: Any, predicted: Any) -> float:
        table = contingency_matrix(true, predicted)
        return float(2 * entropy(table.ravel()) - entropy(table.sum(0)) - entropy(table.sum(1)))

    return _each(information, predicted, true, mask)
