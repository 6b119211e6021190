"""Projected gradient descent: signed gradient steps from a random point of the ball, large enough to cross it.

Source: Madry, Makelov, Schmidt, Tsipras, Vladu 2017, arXiv:1706.06083. Cost: one gradient a step.
"""

from torch import Tensor

from mereo.measure.attacks.bim import ascend
from mereo.measure.attacks.budget import Budget
from mereo.measure.attacks.target import Target


def pgd(target: Target, clean: Tensor, labels: Tensor, start: Tensor, budget: Budget) -> Tensor:
    """Signed gradient ascent from a random point in steps of 2.5 epsilon / steps.

    x_{k+1} = P(x_k + step_size sign grad L(x_k)),  x_0 uniform in the ball

    Args:
        target: the network and the loss to raise.
        clean: images in [0, 1].
        labels: the true classes.
        start: the first point, uniform in the ball.
        budget: epsilon, steps, and step_size where it is not 2.5 epsilon / steps.

    Shapes: clean, start (batch, channels, height, width), labels int64 (batch,) -> like clean.

    Reference: arXiv:1706.06083, section 2.1; the step size is that of the authors' code for CIFAR-10, made relative.
    """
    size = 2.5 * budget.epsilon / budget.steps if budget.step_size is None else budget.step_size
    return ascend(target, clean, labels, start, budget, size)
