"""Square attack: random search over squares of the largest allowed change. It needs no gradient.

Source: Andriushchenko, Croce, Flammarion, Hein 2019, arXiv:1912.00049. Cost: one forward pass a query. A network that
resists gradient attacks but not this one masks its gradients rather than being robust.
"""

import torch
from torch import Tensor

from mereo.measure.attacks.budget import Budget, project
from mereo.measure.attacks.losses import rival
from mereo.measure.attacks.target import Target

FIRST_SHARE = 0.8
HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""Queries of 10,000 after which the share of the pixels in a square is halved."""


def square_side(query: int, queries: int, height: int, width: int) -> int:
    """Side of the square of one query: its share of the pixels starts at 0.8 and is halved on a fixed plan.

    s = round(sqrt(0.8 / 2^k height width)), k the halvings so far

    Args:
        query: from 0.
        queries: in all; the plan is stretched to them.
        height, width: of the images.
    """
    place = int(query / queries * 10000)
    share = FIRST_SHARE / 2 ** sum(place > limit for limit in HALVINGS)
    return min(max(round((share * height * width) ** 0.5), 1), height, width)


def square(target: Target, clean: Tensor, labels: Tensor, start: Tensor, budget: Budget) -> Tensor:
    """Random search for a negative margin s_y - max_{j != y} s_j of the scores.

    x_0     = clip(clean + epsilon stripes), a random sign for each column and channel
    x_{k+1} = the better of x_k and P(x_k + 2 epsilon signs inside a random square), a random sign for each channel

    Args:
        target: the network; its loss is not used.
        clean: images in [0, 1].
        labels: the true classes.
        start: not used.
        budget: epsilon and queries (`steps`).

    Shapes: clean (batch, channels, height, width), labels int64 (batch,) -> like clean.

    Deviates: every image has squares of its own, where the authors' code shares one among the batch.

    Reference: arXiv:1912.00049, algorithms 1 and 2.
    """
    count, channels, height, width = clean.shape
    images = project(clean + budget.epsilon * _signs(clean, (count, channels, 1, width), budget), clean, budget.epsilon)
    margins = _margin(target, images, labels)
    for query in range(budget.steps):
        # Random numbers are drawn for all images, so that the result of an image does not depend on its batch.
        side = square_side(query, budget.steps, height, width)
        corners = [
            torch.randint(0, room - side + 1, (count, 1), generator=budget.generator) for room in (height, width)
        ]
        signs = _signs(clean, (count, channels, 1, 1), budget)
        if budget.watch is not None:
            budget.watch(-margins)
        left = margins > 0
        if not bool(left.any()):
            break
        rows, columns = (
            (torch.arange(room) >= corner) & (torch.arange(room) < corner + side)
            for room, corner in zip((height, width), corners, strict=True)
        )
        inside = (rows[:, None, :, None] & columns[:, None, None, :]).to(clean.device)[left]
        tried = project(images[left] + 2 * budget.epsilon * signs[left] * inside, clean[left], budget.epsilon)
        new_margins = _margin(target, tried, labels[left])
        better = new_margins < margins[left]
        images[left] = torch.where(better.view(-1, 1, 1, 1), tried, images[left])
        margins[left] = torch.where(better, new_margins, margins[left])
    return images


def _signs(clean: Tensor, shape: tuple[int, ...], budget: Budget) -> Tensor:
    return (2 * torch.randint(0, 2, shape, generator=budget.generator) - 1).to(clean)


def _margin(target: Target, images: Tensor, labels: Tensor) -> Tensor:
    """Above 0 for a correctly classified image, at most 0 for a misclassified one."""
    scores = target.scores(images)
    own = scores.gather(1, labels[:, None]).squeeze(1)
    margin = own - rival(scores, labels)
    # Of equal scores the first is the prediction.
    tied = (margin == 0) & (scores.argmax(1) == labels)
    return margin.masked_fill(tied, torch.finfo(margin.dtype).tiny)
