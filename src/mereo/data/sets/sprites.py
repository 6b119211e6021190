"""Sprites: one shape on a dark ground, whose form, colour and size are independent attributes; its place is free.

Generated when they are needed, the same on every machine.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from mereo.data.registry import register_dataset
from mereo.data.sets.shape_masks import inside_shape

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mereo.data.raw import RawDataset

SIDE, SEED = 32, 0
ATTRIBUTES = {
    "shape": ("disc", "square", "triangle", "cross"),
    "colour": ("red", "green", "blue", "yellow"),
    "size": ("small", "large"),
}
"""The values of each attribute."""
COUNTS = {"train": 3000, "validation": 200, "test": 400}
_COLOURS = ((1.0, 0.25, 0.25), (0.25, 1.0, 0.25), (0.3, 0.4, 1.0), (1.0, 1.0, 0.25))
_RADII, _GROUND, _NOISE = (6.0, 10.5), 0.2, 0.15


def make_sprite(attributes: "npt.NDArray[np.int64]", generator: "np.random.Generator") -> "npt.NDArray[np.uint8]":
    """One image, uint8 (3, SIDE, SIDE), of the numbers of a shape, a colour and a size."""
    import numpy as np

    shape, colour, size = attributes.tolist()
    radius = _RADII[size]
    y, x = generator.uniform(radius, SIDE - radius, 2)
    down, across = np.mgrid[:SIDE, :SIDE] + 0.5
    inside = inside_shape(shape + 1, (across - x) / radius, (down - y) / radius)
    image = np.where(inside, np.array(_COLOURS[colour])[:, None, None], _GROUND)
    image = image + generator.normal(0, _NOISE, image.shape)
    return np.asarray((255 * image.clip(0, 1)).round().astype(np.uint8))


def read(root: Path, download: bool) -> "RawDataset":
    """Made in a second; nothing is read from the root."""
    import numpy as np
    import torch

    from mereo.data.made import made_dataset

    def make(generator: np.random.Generator, count: int) -> "tuple[npt.NDArray[np.uint8], dict[str, torch.Tensor]]":
        values = generator.integers(0, [len(names) for names in ATTRIBUTES.values()], (count, len(ATTRIBUTES)))
        images = np.stack([make_sprite(each, generator) for each in values])
        return images, {"attributes": torch.from_numpy(values)}

    return made_dataset(COUNTS, SEED, make, tuple(ATTRIBUTES))


register_dataset(
    "sprites",
    summary="a disc, square, triangle or cross of four colours and two sizes, each an attribute; generated when needed",
    source="ours",
    num_classes=len(ATTRIBUTES),
    in_chans=3,
    size=(SIDE, SIDE),
    splits=COUNTS,
    read=read,
    augment=(),
    fields=("images", "attributes"),
)
