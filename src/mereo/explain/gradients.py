"""Which pixels a prediction depends on: gradients of a class score, or another target, with respect to the image.

The two formulas are written out here: captum would be one more dependency for a few lines.
"""

import torch
from torch import Tensor

from mereo.errors import UsageError
from mereo.explain.observation import normalised, ready
from mereo.explain.target import Target, resolve_target, value_of
from mereo.inference.mode import evaluating
from mereo.models import VisionModel


def _gradients(model: VisionModel, images: Tensor, target: Target | None) -> tuple[Tensor, Target]:
    """The gradient, and what it is of: the classes, or the target function."""
    with evaluating(model), torch.enable_grad():
        inputs = images.detach().clone().requires_grad_()
        outputs = model(normalised(model, inputs))
        chosen = resolve_target(model, outputs, target)
        value = value_of(outputs, chosen)
        if not value.requires_grad:
            raise UsageError("target gives numbers that do not depend on the outputs; compute them from its argument.")
        (gradient,) = torch.autograd.grad(value.sum(), inputs)
    return gradient, chosen


def input_gradients(model: VisionModel, images: Tensor, target: Target | None = None) -> Tensor:
    """The derivative of a class score by each pixel; the score of a capsule classifier is a length.

    gradient = d score_class / d image,   or d target(outputs) / d image

    Args:
        model: any network of images; it runs in evaluation mode and is left as it was.
        images: in [0, 1], not normalised; the gradient is with respect to these values.
        target: the class to explain, one for all images or int64 (batch,); or a function from the outputs to (batch,).
            The predicted class when None.

    Shapes: (batch, channels, height, width) -> the same.

    Reference: arXiv:1312.6034, section 3.
    """
    model, images = ready(model, images)
    return _gradients(model, images, target)[0]


def integrated_gradients(
    model: VisionModel, images: Tensor, target: Target | None = None, *, steps: int = 32
) -> Tensor:
    """The contribution of each pixel to the score of a class, on the straight path from a black image.

    integrated = image / steps * sum_k gradient((k - 1/2) / steps * image),  k = 1 .. steps
    sum over pixels and channels -> score_class(image) - score_class(black)  as steps grow

    Args:
        model, images, target: as for `input_gradients`.
        steps: number of points at which the gradient is taken; each runs the whole batch.

    Shapes: (batch, channels, height, width) -> the same.

    Reference: arXiv:1703.01365, eq. 1, by the midpoint rule.
    """
    if not isinstance(steps, int) or steps < 1:
        raise UsageError(f"steps is {steps!r}; it must be a whole number of at least 1.")
    model, images = ready(model, images)
    # The class predicted for the image itself, not for the darker ones on the path.
    _, chosen = _gradients(model, images, target)
    total = torch.zeros_like(images)
    for step in range(steps):
        total += _gradients(model, (step + 0.5) / steps * images, chosen)[0]
    return images * total / steps
