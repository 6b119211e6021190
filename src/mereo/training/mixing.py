"""Mixup and CutMix of whole batches, as a function of (seed, epoch, step).

Image i is mixed with image i - 1 of the global batch, with one share for the whole step, so that processes and parts
of an accumulated batch compute what one process with the whole batch computes.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from mereo.data import Batch
from mereo.errors import UsageError
from mereo.training.order import derived_seed

Take = Callable[[slice], Batch]
"""A share of the global batch of a step."""


def neighbours(take: Take, share: slice, count: int) -> Batch:
    """The images of a share, with the one before its first in front of them; cyclic in the global batch of `count`."""
    if share.start > 0:
        return take(slice(share.start - 1, share.stop))
    last, own = take(slice(count - 1, count)), take(share)
    joined: Batch = tree_map(lambda a, b: None if a is None else torch.cat((a, b)), last, own)
    return joined


def mix(batch: Batch, num_classes: int, mixup: float, cutmix: float, seed: int) -> Batch:
    """All images but the first, each mixed with the one before it.

    mixup    x = lambda x_i + (1 - lambda) x_(i-1),  lambda from Beta(mixup, mixup)
    cutmix   x = x_i outside a rectangle, x_(i-1) inside it; its area is 1 - lambda, lambda from Beta(cutmix, cutmix)

    Args:
        batch: from `neighbours`.
        num_classes: of the soft labels.
        mixup, cutmix: parameters of the Beta distributions; 0 for none. With both, each step draws one of them.
        seed: of this step.

    Shapes: images (batch + 1, channels, height, width), labels int64 (batch + 1,) -> images (batch, ...), labels
    float (batch, classes) that sum to one.

    Reference: arXiv:1710.09412, arXiv:1905.04899.
    """
    if batch.labels is None or batch.labels.dim() != 1 or batch.labels.is_floating_point():
        raise UsageError("mixup and cutmix need data of one label per image; set both to 0.")
    from torchvision.transforms import v2

    # The transforms draw from the global generator of the CPU.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        use_mixup = mixup > 0 and (cutmix == 0 or bool(torch.rand(()) < 0.5))
        transform = (
            v2.MixUp(alpha=mixup, num_classes=num_classes)
            if use_mixup
            else v2.CutMix(alpha=cutmix, num_classes=num_classes)
        )
        images, labels = transform(batch.images, batch.labels)
    rest = {name: value[1:] for name, value in batch._asdict().items() if isinstance(value, Tensor)}
    return batch._replace(**{**rest, "images": images[1:], "labels": labels[1:]})


def mix_step(
    take: Take, share: slice, count: int, *, num_classes: int, mixup: float, cutmix: float, seed: int, step: int
) -> Batch:
    """A mixed share of the global batch of step number `step`, counted over all epochs."""
    return mix(neighbours(take, share, count), num_classes, mixup, cutmix, derived_seed(seed, "mix", step))
