"""The network under attack: from images in [0, 1] to scores and to the gradient of a loss."""

from typing import NamedTuple

import torch
from torch import Tensor

from mereo.errors import MereoError
from mereo.inference.evaluate import normalise
from mereo.measure.attacks.losses import LOSSES
from mereo.models import VisionModel


class Slope(NamedTuple):
    """The loss of each image at a point, the scores there, and the gradient by the pixels.

    Shapes: gradient (batch, channels, height, width), loss (batch,), scores (batch, classes).
    """

    gradient: Tensor
    loss: Tensor
    scores: Tensor


class Target:
    """A network, its normalisation and the loss that an attack raises.

    Images do not influence each other, so the gradient of the sum of the losses holds the gradient of each.

    Args:
        model: any classifier, in eval mode and without gradients to its parameters (`evaluating`).
        loss: "margin", "cross_entropy" or "dlr".
    """

    def __init__(self, model: VisionModel, loss: str = "cross_entropy") -> None:
        self.model, self.loss_of = model, LOSSES[loss]
        self.mean, self.std = model.pretrained_cfg["mean"], model.pretrained_cfg["std"]
        self.dtype = next(model.parameters()).dtype

    def _scores(self, images: Tensor) -> Tensor:
        scores = self.model(normalise(images, self.mean, self.std).to(self.dtype))
        return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores

    def scores(self, images: Tensor) -> Tensor:
        """Scores of the classes of images in [0, 1]: (batch, classes)."""
        with torch.no_grad():
            return self._scores(images)

    def slope(self, images: Tensor, labels: Tensor) -> Slope:
        """Loss, scores and gradient at images in [0, 1]; MereoError if they are not finite."""
        images = images.detach().requires_grad_()
        with torch.enable_grad():
            scores = self._scores(images)
            loss = self.loss_of(scores, labels)
            (gradient,) = torch.autograd.grad(loss.sum(), images)
        # The sign of NaN is 0: an attack on a broken network would look like a failed attack.
        if not bool(gradient.isfinite().all() & scores.isfinite().all()):
            raise MereoError("the network's scores or their gradients are not finite; check its weights.")
        return Slope(gradient, loss.detach(), scores.detach())
