"""Adversarial training: part of each batch is replaced by images that are changed to raise the loss.

Source: Madry, Makelov, Schmidt, Tsipras, Vladu 2017, arXiv:1706.06083, section 2.1; Kurakin, Goodfellow, Bengio 2016,
arXiv:1611.01236, section 3, for batches of clean and adversarial images.
Cost: one forward and backward pass without gradients of the weights for each step, of the replaced images.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.data import Batch
from mereo.data.counter import uniform
from mereo.errors import UsageError
from mereo.inference.mode import evaluating
from mereo.training.config import TrainConfig

STEP = 2.5
"""Steps times the size of a step, in units of epsilon: far enough to cross the ball."""


def places_of(first: int, count: int, share: float) -> Tensor:
    """Which images of a part of a batch are replaced: every (1 / share)-th of the global batch, as int64 (chosen,).

    Args:
        first: place of the first image of the part in the global batch.
        count: images of the part.
        share: of the images that are replaced.
    """
    places = torch.arange(first, first + count, dtype=torch.float64)
    return (((places + 1) * share).floor() > (places * share).floor()).nonzero()[:, 0]


def adversarial_images(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    start: Tensor,
    *,
    epsilon: float,
    steps: int,
    prepare: Callable[[Tensor], Tensor],
    arithmetic: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Tensor:
    """Images near the given ones with a high loss, found by projected gradient ascent.

    x_0 = P(start),   x_{k+1} = P(x_k + 2.5 epsilon / steps sign grad L(x_k))

    P clips to the ball of epsilon around the image and to [0, 1].

    Args:
        model: a classifier; it runs in eval mode and is left as it was.
        images: clean.
        labels: the true class, or soft labels.
        start: the first point, random in the ball; from the image itself a network learns to hide its gradient there.
        epsilon: largest change of a pixel.
        steps: how many.
        prepare: normalises images for the model.
        arithmetic: makes the precision in which the model runs.

    Deviates: L is the cross-entropy of the scores whatever the training loss is. The margin loss of capsules is flat
    where it is 0, and would leave well-classified images unchanged. Batch norm uses its running statistics, so that
    images of the attack do not count as training images.

    Shapes: images, start (batch, channels, height, width) in [0, 1], labels int64 (batch,) or float (batch, classes)
    -> like images.

    Reference: arXiv:1706.06083, section 2.1.
    """
    low, high = (images - epsilon).clamp(min=0), (images + epsilon).clamp(max=1)
    attacked = start.clamp(low, high)
    with evaluating(model):
        for _ in range(steps):
            attacked.requires_grad_()
            with torch.enable_grad(), arithmetic():
                scores = model(prepare(attacked)).float()
                (slope,) = torch.autograd.grad(F.cross_entropy(scores, labels, reduction="sum"), attacked)
            attacked = (attacked.detach() + STEP * epsilon / steps * slope.sign()).clamp(low, high)
    return attacked


class AdversarialTraining:
    """Replaces part of each batch by adversarial images.

    The decoder of a network still reconstructs the clean images.

    Args:
        epsilon: largest change of a pixel, in [0, 1].
        steps: of the attack.
        share: of the images that are replaced.
        prepare: normalises images for the model.
        arithmetic: makes the precision in which the model runs.
    """

    def __init__(
        self,
        epsilon: float,
        steps: int,
        share: float,
        prepare: Callable[[Tensor], Tensor],
        arithmetic: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.epsilon, self.steps, self.share = epsilon, steps, share
        self.prepare, self.arithmetic = prepare, arithmetic

    def __call__(self, model: nn.Module, batch: Batch, first: int, seed: int) -> Batch:
        """The batch with adversarial images, before normalisation.

        Args:
            model: the classifier that is trained.
            batch: a part of a batch with one label an image, hard or soft.
            first: place of its first image in the global batch.
            seed: of this step; the same for all parts.
        """
        if batch.labels.dim() != 1 and not batch.labels.is_floating_point():
            raise UsageError("adversarial needs data of one label per image; set it to 0.")
        chosen = places_of(first, len(batch.images), self.share)
        if not len(chosen):
            return batch
        # The same numbers for an image whatever the number of processes.
        noise = uniform(seed, chosen + first, batch.images[0].numel()).to(batch.images)
        chosen = chosen.to(batch.images.device)
        clean = batch.images[chosen]
        start = clean + self.epsilon * (2 * noise.view_as(clean) - 1)
        changed = adversarial_images(
            model, clean, batch.labels[chosen], start,
            epsilon=self.epsilon, steps=self.steps, prepare=self.prepare, arithmetic=self.arithmetic,
        )  # fmt: skip
        targets = batch.images if batch.targets is None else batch.targets
        return batch._replace(images=batch.images.index_copy(0, chosen, changed), targets=targets)


def adversarial_training(
    config: TrainConfig,
    prepare: Callable[[Tensor], Tensor],
    arithmetic: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> AdversarialTraining | None:
    """The adversarial training of a configuration; None without one. See `AdversarialTraining`."""
    if config.adversarial == 0:
        return None
    return AdversarialTraining(
        config.adversarial, config.adversarial_steps, config.adversarial_share, prepare, arithmetic
    )
