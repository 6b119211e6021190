"""Auto-PGD: gradient ascent with momentum that halves its step size where progress stops.

Source: Croce, Hein 2020, arXiv:2003.01690, algorithm 1. With the loss "cross_entropy" it is APGD-CE, with "dlr"
APGD-DLR. Cost: one gradient a step, and one at the start.
"""

from math import ceil

import torch
from torch import Tensor

from mereo.measure.attacks.budget import Budget, project
from mereo.measure.attacks.target import Target

MOMENTUM = 0.75
"""Share of the new step; the rest is the one before."""
RISES = 0.75
"""A step size is kept if at least this share of its steps raised the loss."""


def checkpoints(steps: int) -> list[int]:
    """The steps after which the step size may be halved.

    w_j = ceil(p_j steps),  p_0 = 0,  p_1 = 0.22,  p_{j+1} = p_j + max(p_j - p_{j-1} - 0.03, 0.06)

    Args:
        steps: of the attack.
    """
    steps_of_checks, before, share = [], 0.0, 0.22
    while share <= 1:
        # A sum such as 0.22 + 0.19 + ... may be a rounding error above a whole number of steps.
        steps_of_checks.append(ceil(round(share * steps, 9)))
        before, share = share, share + max(share - before - 0.03, 0.06)
    return sorted(set(steps_of_checks))


def apgd(target: Target, clean: Tensor, labels: Tensor, start: Tensor, budget: Budget) -> Tensor:
    """Momentum ascent whose step size starts at 2 epsilon and is halved, image by image, at checkpoints.

    z       = P(x_k + eta sign grad L(x_k))
    x_{k+1} = P(x_k + 0.75 (z - x_k) + 0.25 (x_k - x_{k-1}))

    At a checkpoint eta is halved, and the ascent goes on from the best point, if fewer than 0.75 of the steps since the
    last checkpoint raised the loss, or if neither eta nor the best loss changed since then.

    Args:
        target: the network and the loss to raise.
        clean: images in [0, 1].
        labels: the true classes.
        start: the first point, inside the ball.
        budget: epsilon, steps, and step_size if the first one is not 2 epsilon.

    Shapes: clean, start (batch, channels, height, width), labels int64 (batch,) -> like clean.

    Deviates: returns the last point that was misclassified if there was one, as the authors' code does, and the
    point of the highest loss elsewhere.

    Reference: arXiv:2003.01690, algorithm 1.
    """
    size = clean.new_full((len(clean), 1, 1, 1), 2 * budget.epsilon if budget.step_size is None else budget.step_size)
    before, images = start, start
    slope = target.slope(images, labels)
    best, best_loss, best_gradient, gradient = images, slope.loss, slope.gradient, slope.gradient
    result, fooled = images, slope.scores.argmax(1) != labels
    loss, rises = slope.loss, torch.zeros_like(slope.loss)
    checked_loss, halved = best_loss, torch.ones_like(fooled)
    stops, last_stop = set(checkpoints(budget.steps)), 0
    for step in range(1, budget.steps + 1):
        share = MOMENTUM if step > 1 else 1.0
        ahead = project(images + size * gradient.sign(), clean, budget.epsilon)
        moved = images + share * (ahead - images) + (1 - share) * (images - before)
        before, images = images, project(moved, clean, budget.epsilon)
        slope = target.slope(images, labels)
        if budget.watch is not None:
            budget.watch(slope.loss)
        gradient, rises, loss = slope.gradient, rises + (slope.loss > loss), slope.loss
        better = loss > best_loss
        best, best_gradient = (
            torch.where(_wide(better), new, old) for new, old in ((images, best), (gradient, best_gradient))
        )
        best_loss = torch.where(better, loss, best_loss)
        wrong = slope.scores.argmax(1) != labels
        result, fooled = torch.where(_wide(wrong), images, result), fooled | wrong
        if step in stops:
            stuck = ~halved & (best_loss <= checked_loss)
            halved = (rises < RISES * (step - last_stop)) | stuck
            size = torch.where(_wide(halved), size / 2, size)
            images = torch.where(_wide(halved), best, images)
            gradient = torch.where(_wide(halved), best_gradient, gradient)
            loss = torch.where(halved, best_loss, loss)
            checked_loss, rises, last_stop = best_loss, torch.zeros_like(rises), step
    return torch.where(_wide(fooled), result, best)


def _wide(chosen: Tensor) -> Tensor:
    return chosen.view(-1, 1, 1, 1)
