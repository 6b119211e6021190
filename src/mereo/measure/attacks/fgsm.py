"""Fast gradient sign method: one step of the full budget along the sign of the gradient.

Source: Goodfellow, Shlens, Szegedy 2014, arXiv:1412.6572. Cost: one gradient.
"""

from torch import Tensor

from mereo.measure.attacks.budget import Budget, project
from mereo.measure.attacks.target import Target


def fgsm(target: Target, clean: Tensor, labels: Tensor, start: Tensor, budget: Budget) -> Tensor:
    """One step to the face of the ball.

    x' = P(start + epsilon sign grad L(start))

    Args:
        target: the network and the loss to raise.
        clean: images in [0, 1].
        labels: the true classes.
        start: where the gradient is taken: the images themselves, or random points near them.
        budget: epsilon; steps are not used.

    Shapes: clean, start (batch, channels, height, width), labels int64 (batch,) -> like clean.

    Reference: arXiv:1412.6572, section 4.
    """
    found = target.slope(start, labels)
    if budget.watch is not None:
        budget.watch(found.loss)
    return project(start + budget.epsilon * found.gradient.sign(), clean, budget.epsilon)
