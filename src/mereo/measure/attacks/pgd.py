"""Projected gradient descent and its special cases: steps along the sign of the gradient inside the ball.

    fgsm    one step of epsilon, from the image                     arXiv:1412.6572
    bim     steps of epsilon / steps, from the image                arXiv:1607.02533
    pgd     steps of 2.5 epsilon / steps, from a random point       arXiv:1706.06083

Cost: one gradient a step.
"""

from torch import Tensor

from mereo.measure.attacks.budget import Budget, project
from mereo.measure.attacks.target import Target


def ascend(
    target: Target, clean: Tensor, labels: Tensor, start: Tensor, budget: Budget, steps: int, size: float
) -> Tensor:
    """Signed gradient ascent inside the ball; the last point is returned.

    x_{k+1} = P(x_k + size sign grad L(x_k)),  x_0 = start

    Args:
        target: the network and the loss to raise.
        clean: images in [0, 1].
        labels: the true classes.
        start: the first point, inside the ball: the images themselves, or random points near them.
        budget: epsilon.
        steps: how many.
        size: change of a pixel in one step.

    Shapes: clean, start (batch, channels, height, width), labels int64 (batch,) -> like clean.
    """
    images = start
    for _ in range(steps):
        slope = target.slope(images, labels)
        if budget.watch is not None:
            budget.watch(slope.loss)
        images = project(images + size * slope.gradient.sign(), clean, budget.epsilon)
    return images


def fgsm(target: Target, clean: Tensor, labels: Tensor, start: Tensor, budget: Budget) -> Tensor:
    """`ascend` by one step of epsilon; the steps and the step size of the budget are not used.

    Reference: Goodfellow, Shlens, Szegedy 2014, arXiv:1412.6572, section 4.
    """
    return ascend(target, clean, labels, start, budget, 1, budget.epsilon)


def bim(target: Target, clean: Tensor, labels: Tensor, start: Tensor, budget: Budget) -> Tensor:
    """`ascend` in steps of epsilon / steps, so that the last can just reach the face of the ball.

    Deviates: the paper steps by one grey level; a share of epsilon works for every epsilon alike.

    Reference: Kurakin, Goodfellow, Bengio 2016, arXiv:1607.02533, section 2.2.
    """
    size = budget.epsilon / budget.steps if budget.step_size is None else budget.step_size
    return ascend(target, clean, labels, start, budget, budget.steps, size)


def pgd(target: Target, clean: Tensor, labels: Tensor, start: Tensor, budget: Budget) -> Tensor:
    """`ascend` in steps of 2.5 epsilon / steps, large enough to cross the ball.

    Reference: Madry, Makelov, Schmidt, Tsipras, Vladu 2017, arXiv:1706.06083, section 2.1; the step size is
    taken from the authors' code for CIFAR-10, made relative.
    """
    size = 2.5 * budget.epsilon / budget.steps if budget.step_size is None else budget.step_size
    return ascend(target, clean, labels, start, budget, budget.steps, size)
