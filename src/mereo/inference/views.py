"""Test-time augmentation: the scores of an image as the mean over several views of it.

    s(x) = (1 / (K + 1)) (f(x) + sum_k f(a_k(x)))

The changes a_k are drawn from the augmentation that the network was trained with, because those are the changes that it
has learned to ignore. They are the same for every image, so that the answer for an image depends on nothing else.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mereo.data.augmentation import Augmentation
from mereo.data.registry import find_dataset
from mereo.errors import UsageError
from mereo.models import VisionModel

Views = Callable[[Tensor], list[Tensor]]
"""Images (batch, channels, height, width) in [0, 1] -> several of that shape, the images themselves first."""
KEY = "augment"
"""Key in the metadata of weights."""
NUM_VIEWS = 8
LEFT_OUT = ("erase", "noise")
"""Operations that remove information, which no mean over views brings back."""


def trained_augmentation(model: VisionModel) -> tuple[str, ...]:
    """The augmentation that a model was trained with, from its weights or else from the data set that they name."""
    texts = model.metadata.get(KEY)
    if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
        return tuple(texts)
    data = model.metadata.get("data")
    info = find_dataset(data) if isinstance(data, str) else None
    return () if info is None else tuple(info.augment)


def augmented_views(augment: Sequence[str], count: int = NUM_VIEWS, seed: int = 0) -> Views:
    """A function that gives images and `count` changed versions of them, by an augmentation as in training.

    Args:
        augment: the operations as text, such as ("crop=4", "flip").
        count: of the changed versions.
        seed: of the changes.
    """
    operations = Augmentation.parse(text for text in augment if text.partition("=")[0] not in (*LEFT_OUT, "none"))
    if not operations.operations:
        raise UsageError(
            "tta is set, and these weights were trained without augmentation, so that no change is known which keeps"
            " the class of an image; leave it out."
        )

    def views(images: Tensor) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        drawn = operations.draw(count, images.shape[-2], images.shape[-1], generator)
        changed = [
            operations.apply(images, [p[k : k + 1].expand(len(images), *p.shape[1:]) for p in drawn])
            for k in range(count)
        ]
        return [images, *changed]

    return views
