"""The network under attack: from images in [0, 1] to lengths and to the gradient of a loss."""

from typing import NamedTuple

import torch
from torch import Tensor

from mereo.errors import MereoError
from mereo.inference.evaluate import normalise
from mereo.measure.attacks.losses import LOSSES
from mereo.models import CapsuleClassifier


class Slope(NamedTuple):
    """The loss of each image at a point, the lengths there, and the gradient by the pixels.

    Shapes: gradient (batch, channels, height, width), loss (batch,), lengths (batch, classes).
    """

    gradient: Tensor
    loss: Tensor
    lengths: Tensor


class Target:
    """A network, its normalisation and the loss that an attack raises.

    Images do not influence each other, so the gradient of the sum of the losses holds the gradient of each.

    Args:
        model: any capsule classifier, in eval mode and without gradients to its parameters (`judged`).
        loss: "margin", "cross_entropy" or "dlr".
    """

    def __init__(self, model: CapsuleClassifier, loss: str = "cross_entropy") -> None:
        self.model, self.loss_of = model, LOSSES[loss]
        self.mean, self.std = model.pretrained_cfg["mean"], model.pretrained_cfg["std"]
        self.dtype = next(model.parameters()).dtype

    def _lengths(self, images: Tensor) -> Tensor:
        lengths = self.model(normalise(images, self.mean, self.std).to(self.dtype))
        return lengths.float() if lengths.dtype in (torch.float16, torch.bfloat16) else lengths

    def lengths(self, images: Tensor) -> Tensor:
        """Lengths of the class capsules of images in [0, 1]: (batch, classes)."""
        with torch.no_grad():
            return self._lengths(images)

    def slope(self, images: Tensor, labels: Tensor) -> Slope:
        """Loss, lengths and gradient at images in [0, 1]; MereoError if they are not finite."""
        images = images.detach().requires_grad_()
        with torch.enable_grad():
            lengths = self._lengths(images)
            loss = self.loss_of(lengths, labels)
            (gradient,) = torch.autograd.grad(loss.sum(), images)
        # The sign of NaN is 0: an attack on a broken network would look like a failed attack.
        if not bool(gradient.isfinite().all() & lengths.isfinite().all()):
            raise MereoError("the network's lengths or their gradients are not finite; check its weights.")
        return Slope(gradient, loss.detach(), lengths.detach())
