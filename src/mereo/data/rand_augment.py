"""RandAugment (arXiv 1909.13719) over whole batches, each image with its own operations."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from mereo.data.batch import Batch
from mereo.data.geometric import rotation
from mereo.data.motion import Affine
from mereo.data.operation import Operation
from mereo.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

MOVES = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
CHANGES = (
    "brightness", "colour", "contrast", "sharpness", "posterize", "solarize", "autocontrast", "equalize",
)  # fmt: skip
KINDS = ("identity", *MOVES, *CHANGES)
STRONGEST = 30
_SHEAR, _SHIFT, _DEGREES, _FACTOR, _BITS = 0.3, 150 / 331, 30.0, 0.9, 4


@dataclass(frozen=True)
class RandAugment(Operation):
    """Apply `operations` changes one after the other, each drawn from fourteen kinds, all with one magnitude in 0 ..
    30.

    The changes and their ranges are torchvision's, and so is the arithmetic of changes that do not move pixels.

    Deviates: shears, shifts and rotations interpolate, and act about the centre.
    """

    operations: int
    magnitude: int
    name: ClassVar[str] = "rand_augment"
    usage: ClassVar[str] = "rand_augment=2:9"

    def __post_init__(self) -> None:
        if not 0 <= self.operations <= 16:
            raise UsageError(f"rand_augment has {self.operations} operations; it must be between 0 and 16.")
        if not 0 <= self.magnitude <= STRONGEST:
            raise UsageError(f"rand_augment has the magnitude {self.magnitude}; it must be between 0 and {STRONGEST}.")

    def draw(self, count: int, height: int, width: int, generator: torch.Generator | None) -> Tensor:
        """-> int64 (count, 2 operations): the number of a kind and a sign 0 or 1, for each operation."""
        kinds = torch.randint(0, len(KINDS), (count, self.operations), generator=generator)
        signs = torch.randint(0, 2, (count, self.operations), generator=generator)
        return torch.stack([kinds, signs], dim=2).flatten(1)

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        return self.apply_batch(Batch(images), parameters).images

    def apply_batch(self, batch: Batch, parameters: Tensor) -> Batch:
        if batch.images.shape[1] not in (1, 3):
            raise UsageError(f"rand_augment is for images of 1 or 3 channels, and these have {batch.images.shape[1]}.")
        for column in range(self.operations):
            kinds, signs = parameters[:, 2 * column], parameters[:, 2 * column + 1]
            for kind, name in enumerate(KINDS[1:], start=1):
                for sign in (0, 1):
                    # Parameters are on the CPU, so that there is no waiting for a device.
                    places = ((kinds == kind) & (signs == sign)).nonzero()[:, 0].to(batch.images.device)
                    if len(places):
                        batch = _put(batch, places, self._change(batch.pick(places), name, 1 - 2 * sign))
        return batch

    def _change(self, part: Batch, name: str, sign: int) -> Batch:
        strength = self.magnitude / STRONGEST
        if name in MOVES:
            return _move(name, sign * strength, part.images).batch(part)
        return part._replace(images=_changes(strength, sign)[name](part.images).clamp(0, 1))


def _put(batch: Batch, places: Tensor, part: Batch) -> Batch:
    """The batch with the samples at `places` replaced by the samples of `part`."""
    fields: list[Any] = [
        whole if whole is None or new is None else whole.index_copy(0, places, new)
        for whole, new in zip(batch, part, strict=True)
    ]
    return Batch(*fields)


def _move(name: str, strength: float, images: Tensor) -> Affine:
    """The motion of a strength in [-1, 1], the same for all images."""
    count, (height, width) = len(images), images.shape[-2:]
    matrix, offset = torch.eye(2), torch.zeros(2)
    if name == "rotate":
        matrix = rotation(torch.tensor([strength * _DEGREES * math.pi / 180]))[0]
    elif name == "shear_x":
        matrix[0, 1] = strength * _SHEAR
    elif name == "shear_y":
        matrix[1, 0] = strength * _SHEAR
    elif name == "translate_x":
        offset[0] = round(strength * _SHIFT * width)
    else:
        offset[1] = round(strength * _SHIFT * height)
    return Affine(matrix.to(images.device).expand(count, 2, 2), offset.to(images.device).expand(count, 2))


def _changes(strength: float, sign: int) -> "dict[str, Callable[[Tensor], Tensor]]":
    # Not at the top: torchvision takes a second to import, and most augmentations do not need it.
    from torchvision.transforms.v2 import functional

    factor = 1 + sign * strength * _FACTOR
    return {
        "brightness": lambda images: functional.adjust_brightness(images, factor),
        "colour": lambda images: functional.adjust_saturation(images, factor),
        "contrast": lambda images: functional.adjust_contrast(images, factor),
        "sharpness": lambda images: functional.adjust_sharpness(images, factor),
        "posterize": lambda images: functional.posterize(images, 8 - round(strength * _BITS)),
        "solarize": lambda images: functional.solarize(images, 1 - strength),
        "autocontrast": functional.autocontrast,
        "equalize": functional.equalize,
    }
