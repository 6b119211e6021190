"""What is minimised: margins on the lengths of class capsules, and the squared error of what a decoder rebuilds."""

import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Capsules
from mereo.errors import UsageError
from mereo.models import CapsuleClassifier


def many_hot(labels: Tensor, num_classes: int) -> Tensor:
    """Labels (batch,) or (batch, objects) as a matrix of zeros and ones (batch, classes)."""
    columns = labels.unsqueeze(1) if labels.dim() == 1 else labels
    return F.one_hot(columns, num_classes).amax(1).float()


def margin_loss(
    lengths: Tensor, targets: Tensor, *, positive: float = 0.9, negative: float = 0.1, down_weight: float = 0.5
) -> Tensor:
    """Present classes long, absent ones short.

    L = mean_b sum_j  T_j max(0, m+ - |v_j|)^2 + lambda (1 - T_j) max(0, |v_j| - m-)^2

    Shapes: lengths (batch, classes), targets (batch, classes) of zeros and ones, several ones allowed -> ().

    Reference: arXiv:1710.09829, eq. 4.
    """
    present = (positive - lengths).clamp(min=0).square()
    absent = (lengths - negative).clamp(min=0).square()
    return (targets * present + down_weight * (1 - targets) * absent).sum(1).mean()


def reconstruction_loss(rebuilt: Tensor, targets: Tensor) -> Tensor:
    """Sum of squared errors over the pixels, mean over the batch: (batch, channels, height, width) twice -> ()."""
    return (rebuilt - targets).square().flatten(1).sum(1).mean()


def score_loss(scores: Tensor, labels: Tensor, kind: str) -> Tensor:
    """The loss of scores (batch, classes) for labels (batch,) or (batch, objects): "margin" or "cross_entropy"."""
    if kind == "margin":
        return margin_loss(scores, many_hot(labels, scores.shape[1]))
    if labels.dim() > 1:
        raise UsageError("loss is 'cross_entropy', which takes one label an image; use 'margin' for several.")
    return F.cross_entropy(scores, labels)


class Objective(nn.Module):
    """A model and its loss as one module, so that one forward pass is what gets distributed and compiled.

    Args:
        model: the classifier.
        loss: "margin" or "cross_entropy".
        reconstruction_weight: factor of the reconstruction loss; without a decoder it has no effect.

    Shapes:
        images (batch, channels, height, width), normalised; labels int64 (batch,) or (batch, objects);
        pixels (batch, channels, height, width) or (batch, objects, channels, height, width) in [0, 1]: what the decoder
        should rebuild -> loss (), scores (batch, classes).
    """

    def __init__(self, model: CapsuleClassifier, loss: str = "margin", reconstruction_weight: float = 0.0005) -> None:
        super().__init__()
        self.model, self.loss, self.reconstruction_weight = model, loss, reconstruction_weight

    def forward(self, images: Tensor, labels: Tensor, pixels: Tensor) -> tuple[Tensor, Tensor]:
        capsules = self.model.capsules(images)
        scores = capsules.activation.float()
        loss = score_loss(scores, labels, self.loss)
        if self.model.decoder is not None and self.reconstruction_weight > 0:
            loss = loss + self.reconstruction_weight * self._reconstruction(capsules, labels, pixels)
        return loss, scores

    def _reconstruction(self, capsules: Capsules, labels: Tensor, pixels: Tensor) -> Tensor:
        if labels.dim() == 1:
            return reconstruction_loss(self.model.reconstruct(capsules, labels).float(), pixels)
        # The same decoder, once for each object, in one call.
        objects = labels.shape[1]
        repeated = Capsules(capsules.pose.repeat_interleave(objects, 0), capsules.activation)
        rebuilt = self.model.reconstruct(repeated, labels.flatten())
        return objects * reconstruction_loss(rebuilt.float(), pixels.flatten(0, 1))
