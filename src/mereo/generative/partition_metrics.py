"""How similar two partitions of the same points are: segmentation accuracy, adjusted Rand index, variation of
information. The names of groups do not matter to any of them.

The best assignment is computed here for a batch of tables at once; `scipy.optimize.linear_sum_assignment` takes one
table at a time, and SciPy is no dependency otherwise.
"""

import torch
from torch import Tensor

from mereo.errors import UsageError

MOST_LABELS = 12
"""Of segmentation accuracy, which looks at every set of labels."""


def contingency(predicted: Tensor, true: Tensor, mask: Tensor | None = None) -> Tensor:
    """n_ij: number of points in group i of one partition and in group j of the other.

    Args:
        predicted, true: the group of every point, a whole number of at least 0.
        mask: the points that take part; None: all.

    Shapes: predicted, true, mask (..., points) -> (..., groups, groups), float64.

    Raises: UsageError for labels that are not such numbers, and where an image has no point.
    """
    if predicted.shape != true.shape or predicted.dim() < 1:
        raise UsageError(f"predicted is {tuple(predicted.shape)} and true {tuple(true.shape)}; give one label a point.")
    mask = torch.ones_like(true, dtype=torch.bool) if mask is None else mask
    if mask.shape != true.shape:
        raise UsageError(f"mask is {tuple(mask.shape)}; it must be {tuple(true.shape)}, as the labels are.")
    if not mask.any(-1).all():
        raise UsageError("mask leaves an image without points; a partition needs one at least.")
    both = []
    for name, labels in (("predicted", predicted), ("true", true)):
        if labels.is_floating_point() or labels.masked_fill(~mask, 0).min() < 0:
            raise UsageError(
                f"{name} is {labels.dtype} with a least entry {labels.min()}; labels must be whole numbers of"
                f" at least 0."
            )
        both.append(labels.masked_fill(~mask, 0).long())
    groups = 1 + int(torch.stack(both).max())
    here, there = (torch.nn.functional.one_hot(labels, groups).double() for labels in both)
    return (here * mask.unsqueeze(-1)).transpose(-1, -2) @ there


def _best_matching(table: Tensor) -> Tensor:
    """max over permutations p of sum_i table[i, p(i)].

    Shapes: (..., groups, groups) -> (...).
    """
    # best[S] is the most that the first |S| rows reach with the columns S, a set written in bits.
    groups = table.shape[-1]
    best = [torch.zeros_like(table[..., 0, 0])]
    for chosen in range(1, 1 << groups):
        columns = [c for c in range(groups) if chosen >> c & 1]
        before = torch.stack([best[chosen ^ 1 << c] for c in columns], -1)
        best.append((before + table[..., len(columns) - 1, columns]).amax(-1))
    return best[-1]


def segmentation_accuracy(
    predicted: Tensor, true: Tensor, mask: Tensor | None = None, *, slots: int | None = None
) -> Tensor:
    """The share of points with the right label, under the best one-to-one renaming of the labels of each image.

    SA = (1 / n) max over permutations p of sum_i n_(i, p(i))

    Args:
        predicted, true, mask: see `contingency`; at most 12 labels.
        slots: the number of points to divide by in every image; absent points count as correct. This is how the
            constellations of stacked capsule autoencoders are evaluated. None: only the points that are there.

    Shapes: predicted, true, mask (..., points) -> (...), float64.

    Reference: arXiv:2103.06676, section 5; bipartite matching as in arXiv:1906.06818.
    """
    table = contingency(predicted, true, mask)
    if table.shape[-1] > MOST_LABELS:
        raise UsageError(f"labels go up to {table.shape[-1] - 1}; segmentation accuracy takes at most {MOST_LABELS}.")
    right, points = _best_matching(table), table.sum((-1, -2))
    if slots is None:
        return right / points
    if slots < points.max():
        raise UsageError(f"slots is {slots}, and an image has {int(points.max())} points; give at least that number.")
    return (right + slots - points) / slots


def adjusted_rand_index(predicted: Tensor, true: Tensor, mask: Tensor | None = None) -> Tensor:
    """The pairs of points on which two partitions agree, beyond what chance would give: 1 equal, about 0 by chance.

    ARI = (sum_ij C(n_ij) - E) / ((sum_i C(n_i) + sum_j C(n_j)) / 2 - E),   C(n) = n (n - 1) / 2,
    E   = sum_i C(n_i) sum_j C(n_j) / C(n)

    Two partitions that both have one group, or both only groups of one point, are equal: 1.

    Args:
        predicted, true, mask: see `contingency`.

    Shapes: predicted, true, mask (..., points) -> (...), float64.

    Reference: Hubert and Arabie 1985.
    """

    def pairs(count: Tensor) -> Tensor:
        return count * (count - 1) / 2

    table = contingency(predicted, true, mask)
    both, all_pairs = pairs(table).sum((-1, -2)), pairs(table.sum((-1, -2)))
    here, there = pairs(table.sum(-1)).sum(-1), pairs(table.sum(-2)).sum(-1)
    chance = here * there / all_pairs.clamp(min=1)
    most = (here + there) / 2
    trivial = most == chance
    return torch.where(trivial, 1.0, (both - chance) / torch.where(trivial, 1.0, most - chance))


def variation_of_information(predicted: Tensor, true: Tensor, mask: Tensor | None = None) -> Tensor:
    """Variation of information between two partitions, in nats: 0 if equal; a metric.

    VI = - sum_ij (n_ij / n) [log(n_ij / n_i) + log(n_ij / n_j)]

    Args:
        predicted, true, mask: see `contingency`.

    Shapes: predicted, true, mask (..., points) -> (...), float64.

    Reference: Meila 2003; arXiv:2103.06676, section 5.
    """
    table = contingency(predicted, true, mask)
    shares = [table / table.sum(dim, keepdim=True).clamp(min=1) for dim in (-1, -2)]
    return -torch.xlogy(table, shares[0] * shares[1]).sum((-1, -2)) / table.sum((-1, -2))
