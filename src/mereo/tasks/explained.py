"""What an explanation of images is about, where a task has no scores of classes: one number for each image."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.errors import UsageError


class Others(NamedTuple):
    """Images that the explained ones are compared with.

    Attributes:
        names: of the images.
        vectors: what the task makes of the outputs for them, (images, ...).
        own: the place of each explained image among them, int64 (batch,); -1 for an image that is not among them.
    """

    names: Sequence[str]
    vectors: Tensor
    own: Tensor


@dataclass(frozen=True)
class Explained:
    """One number for each image of a batch, as a function of the outputs for these images, changed or not.

    Attributes:
        value: outputs of the network -> (batch,). What it chose, such as a box, stays the same for changed images.
        kind: of the number, one of `mereo.explain.wording.WORDINGS`.
        words: for each image, such as "triangle 0.93".
        boxes: that it is about, corners in shares of the image, (batch, 4).
        masks: pixels that it is about, bool (batch, height, width).
        nearest: place of the most similar of the other images, int64 (batch,).
        beside: images that are drawn beside, (batch, channels, height, width).
    """

    value: Callable[[Tensor], Tensor]
    kind: str
    words: Sequence[str]
    boxes: Tensor | None = None
    masks: Tensor | None = None
    nearest: Tensor | None = None
    beside: Tensor | None = None

    def __call__(self, outputs: Tensor) -> Tensor:
        return self.value(outputs)


def most_similar(outputs: Tensor, vectors_of: Callable[[Tensor], Tensor], others: Others | None) -> Explained:
    """The similarity of each image to the most similar of other images, without itself.

    Args:
        outputs: of the network for the images that are explained.
        vectors_of: outputs -> vectors of length one, (batch, dim).
        others: with vectors (images, dim) of length one; by default the images of the batch.

    Raises:
        UsageError: for an image without another one.
    """
    vectors = vectors_of(outputs.detach())
    if others is None:
        names = [f"image {number}" for number in range(1, len(outputs) + 1)]
        others = Others(names, vectors, torch.arange(len(vectors)))
    against, own = others.vectors.to(vectors), others.own.to(vectors.device)
    similar = vectors @ against.T
    similar[own >= 0, own[own >= 0]] = -float("inf")
    best, place = F.pad(similar, (0, 1), value=-float("inf")).max(1)
    if not bool(best.isfinite().all()):
        raise UsageError(
            "target is None, and an embedding is explained by its similarity to another image; give several images, or"
            " --target image:FILE with a file or folder."
        )
    nearest = against[place]
    words = [f"{others.names[n]} {value:.2f}" for n, value in zip(place.tolist(), best.tolist(), strict=True)]
    return Explained(lambda outputs: (vectors_of(outputs) * nearest).sum(1), "similarities", words, nearest=place)
