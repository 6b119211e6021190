"""Basic iterative method: small steps along the sign of the gradient, from the image itself.

Source: Kurakin, Goodfellow, Bengio 2016, arXiv:1607.02533. Cost: one gradient a step.
"""

from torch import Tensor

from mereo.measure.attacks.budget import Budget, project
from mereo.measure.attacks.target import Target


def ascend(target: Target, clean: Tensor, labels: Tensor, start: Tensor, budget: Budget, size: float) -> Tensor:
    """`budget.steps` steps of signed gradient ascent inside the ball; the last point is returned.

    x_{k+1} = P(x_k + size sign grad L(x_k)),  x_0 = start

    Args:
        target: the network and the loss to raise.
        clean: images in [0, 1].
        labels: the true classes.
        start: the first point, inside the ball.
        budget: epsilon and steps.
        size: change of a pixel in one step.

    Shapes: clean, start (batch, channels, height, width), labels int64 (batch,) -> like clean.
    """
    images = start
    for _ in range(budget.steps):
        found = target.slope(images, labels)
        if budget.watch is not None:
            budget.watch(found.loss)
        images = project(images + size * found.gradient.sign(), clean, budget.epsilon)
    return images


def bim(target: Target, clean: Tensor, labels: Tensor, start: Tensor, budget: Budget) -> Tensor:
    """Signed gradient ascent in steps of epsilon / steps, so that the last can just reach the face of the ball.

    x_{k+1} = P(x_k + step_size sign grad L(x_k)),  x_0 = start

    Args:
        target: the network and the loss to raise.
        clean: images in [0, 1].
        labels: the true classes.
        start: the first point: the images themselves, or random points near them.
        budget: epsilon, steps, and step_size where it is not epsilon / steps.

    Shapes: clean, start (batch, channels, height, width), labels int64 (batch,) -> like clean.

    Deviates: the paper steps by one grey level; a share of epsilon works for every epsilon alike.

    Reference: arXiv:1607.02533, section 2.2.
    """
    size = budget.epsilon / budget.steps if budget.step_size is None else budget.step_size
    return ascend(target, clean, labels, start, budget, size)
