"""Augmentation: a list of operations over whole batches, written as text like ["rotate=15", "crop=4", "flip"]."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mereo.data.batch import Batch
from mereo.data.efficient_mnist import EfficientMnist
from mereo.data.erase import Erase
from mereo.data.moving import Crop, Flip, Rotate, Shift, Zoom
from mereo.data.operation import Operation
from mereo.data.photometric import Brightness, Contrast, Hue, Noise, Saturation
from mereo.data.rand_augment import RandAugment
from mereo.data.skeleton_motion import JointNoise, Mirror, Speed, Turn
from mereo.errors import UsageError, unknown

OPERATIONS: dict[str, type[Operation]] = {
    operation.name: operation
    for operation in (
        Rotate,
        Shift,
        Crop,
        Flip,
        Zoom,
        Brightness,
        Contrast,
        Saturation,
        Hue,
        Noise,
        Erase,
        RandAugment,
        EfficientMnist,
        Speed,
        Turn,
        Mirror,
        JointNoise,
    )
}


@dataclass(frozen=True)
class Augmentation:
    """Operations applied one after the other. They keep the size of the images, and the range [0, 1]."""

    operations: tuple[Operation, ...] = ()

    @classmethod
    def parse(cls, texts: Iterable[str]) -> "Augmentation":
        """Read operations from their written forms; the inverse of `texts`."""
        if isinstance(texts, str):
            raise UsageError(f"augmentation is {texts!r}; it must be a list of operations, such as ['crop=4', 'flip'].")
        operations, texts = list[Operation](), list(texts)
        for text in texts:
            name, equals, value = text.strip().partition("=")
            if name in ("auto", "none", "help") and not equals:
                raise UsageError(f"augment is {' '.join(texts)!r}; give {name!r} by itself, or leave it out.")
            if name not in OPERATIONS:
                raise unknown("augmentation", name, OPERATIONS)
            operations.append(OPERATIONS[name].from_text(value if equals else None))
        return cls(tuple(operations))

    @property
    def texts(self) -> list[str]:
        """The written forms of the operations."""
        return [str(operation) for operation in self.operations]

    def draw(self, count: int, height: int, width: int, generator: torch.Generator | None) -> list[Tensor]:
        """The parameters of `count` images, a tensor (count, p) for every operation, on the CPU."""
        return [operation.draw(count, height, width, generator) for operation in self.operations]

    def apply(self, images: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """Apply all operations on the device of the images.

        Shapes: images float32 (n, c, h, w) in [0, 1], parameters as drawn -> (n, c, h, w).
        """
        for operation, drawn in zip(self.operations, parameters, strict=True):
            images = operation.apply(images, drawn)
        return images

    def apply_batch(self, batch: Batch, parameters: Sequence[Tensor]) -> Batch:
        """Apply all operations to the images and to their masks, boxes and targets."""
        for operation, drawn in zip(self.operations, parameters, strict=True):
            batch = operation.apply_batch(batch, drawn)
        return batch

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw parameters and apply the operations."""
        return self.apply(images, self.draw(len(images), images.shape[-2], images.shape[-1], generator))
