"""What learners of an embedding need: groups of images, batches of a group, and the choice of outputs to keep.

Source: Adiga, Dolz, Lombaert 2022, arXiv:2206.09068, section III; it extends Sanakoyeu et al. 2019, arXiv:1906.05990.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.errors import UsageError, check_fraction


def importance(sums: Tensor) -> Tensor:
    """How much each output of a learner matters to the loss, from 0 to 1.

    s_j = | sum over samples of e_j dL/de_j | / |s|, then stretched from the least to the largest

    The absolute value is taken after the sum, so contributions of opposite sign cancel. Outputs that all matter alike
    have 0.

    Args:
        sums: of the products of output and gradient over an epoch.

    Shapes: (outputs,) -> the same.
    """
    scores = F.normalize(sums.abs(), dim=0)
    span = scores.max() - scores.min()
    return (scores - scores.min()) / torch.where(span > 0, span, 1)


def kept_outputs(sums: Tensor, threshold: float = 0.5) -> Tensor:
    """The outputs that a learner keeps when it is split, bool: those whose importance is above a threshold."""
    check_fraction(threshold=threshold)
    return importance(sums) > threshold


def costs(new: Tensor, old: Tensor, count: int) -> Tensor:
    """How many images are in exactly one of a new group and an old one: int64 (count, count).

    Shapes: new, old int64 (images,), numbers of groups, -1 for an image in none.
    """
    mine, theirs = (F.one_hot(groups + 1, count + 1)[:, 1:] for groups in (new, old))
    return mine.sum(0).unsqueeze(1) + theirs.sum(0) - 2 * mine.T @ theirs


def match(new: Tensor, old: Tensor, count: int) -> Tensor:
    """New groups with the numbers of the old ones that they resemble, by the assignment of the least cost.

    Shapes: new, old int64 (images,) -> int64 (images,); see `costs`.

    Deviates: the authors' code renames by the inverse of the assignment, which costs more unless both are the same.
    """
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(costs(new, old, count).cpu().numpy())
    names = torch.full((count + 1,), -1)  # the last one is for -1
    names[torch.from_numpy(rows)] = torch.from_numpy(columns)
    return names[new]


def group(features: Tensor, count: int, labels: Tensor, old: Tensor | None = None, seed: int = 0) -> Tensor:
    """The group of each image by k-means of its features, -1 where it is the only one of its class in a group.

    Args:
        features: of length one; (images, dim).
        count: number of groups.
        labels: classes of the images, int64 (images,).
        old: earlier groups, whose numbers are kept as far as possible.
        seed: of k-means: 5 starts, up to 100 iterations each.

    Shapes: -> int64 (images,).
    """
    from sklearn.cluster import KMeans

    if count > len(features):
        raise UsageError(f"count is {count} for {len(features)} images; give fewer learners or more images.")
    found = KMeans(count, n_init=5, max_iter=100, random_state=seed).fit_predict(features.double().cpu().numpy())
    groups = torch.from_numpy(found.astype(np.int64))
    if old is not None:
        groups = match(groups, old, count)
    pairs = groups * (int(labels.max()) + 1) + labels
    _, place, size = pairs.unique(return_inverse=True, return_counts=True)
    return groups.masked_fill(size[place] < 2, -1)


def batches(
    groups: Tensor, labels: Tensor, *, first: int, steps: int, batch_size: int, each: int, generator: torch.Generator
) -> Tensor:
    """The images of an epoch: in each step those of one group, the groups in turn, with equally many of some classes.

    Args:
        groups: of the images, -1 for images that are left out.
        labels: their classes.
        first: number of the first step, which decides on its group.
        steps: of the epoch.
        batch_size: images of a step.
        each: images of a class in a step; more where a group has too few classes. Images repeat in a class with fewer.
        generator: draws them.

    Shapes: int64 (images,) twice -> int64 (steps * batch_size,).
    """
    names = [number for number in groups.unique().tolist() if number >= 0]
    members = {
        name: [((groups == name) & (labels == label)).nonzero().flatten() for label in labels[groups == name].unique()]
        for name in names
    }
    order = []
    for step in range(first, first + steps):
        classes = members[names[step % len(names)]]
        wanted = min(len(classes), max(1, batch_size // each))
        size = -(-batch_size // wanted)
        drawn = []
        for chosen in torch.randperm(len(classes), generator=generator)[:wanted].tolist():
            images = classes[chosen]
            rounds = -(-size // len(images))
            drawn += [
                torch.cat([images[torch.randperm(len(images), generator=generator)] for _ in range(rounds)])[:size]
            ]
        order.append(torch.stack(drawn, 1).flatten()[:batch_size])
    return torch.cat(order)
