"""Coloured shapes: a shape in a colour on a textured ground among grey ones; each pair of shape and colour is a class.

Generated when it is needed, the same on every machine. Every pair of shape and colour occurs equally
often.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from mereo.data.registry import register_dataset
from mereo.data.sets.shape_masks import CLASSES, turned_shape, waves

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mereo.data.raw import RawDataset

SIDE, SEED = 32, 1
SHAPES = CLASSES[1:]
COLOURS = {"red": (1.0, 0.2, 0.2), "green": (0.2, 0.8, 0.2), "blue": (0.25, 0.35, 1.0), "yellow": (0.9, 0.8, 0.2)}
NAMES = tuple(f"{colour} {shape}" for shape in SHAPES for colour in COLOURS)
EACH = {"train": 40, "validation": 12, "test": 25}
_RADIUS, _TURNED, _NOISE, _SHADE, _GREY = (6.5, 9.0), 0.5, 0.04, 0.15, 2


def make_sample(number: int, generator: "np.random.Generator") -> "tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]":
    """One image of a class, uint8 (3, side, side), and where the shape is, uint8 (side, side)."""
    import numpy as np

    across, down, ground = waves(generator, SIDE, 0.6)
    image = np.repeat((generator.uniform(0.3, 0.6) + ground)[None], 3, 0)
    colours = [*generator.uniform(0.1, 0.9, (_GREY, 1)).repeat(3, 1), list(COLOURS.values())[number % len(COLOURS)]]
    for place, colour in enumerate(colours):
        wanted = place == _GREY
        kind = 1 + (number // len(COLOURS) if wanted else int(generator.integers(len(SHAPES))))
        radius, turned = generator.uniform(*_RADIUS) / (1 if wanted else 1.6), generator.uniform(-_TURNED, _TURNED)
        y, x = generator.uniform(radius, SIDE - radius, 2)
        inside = turned_shape(kind, across - x, down - y, radius, turned)
        shade = generator.normal(0, _SHADE, 3) + generator.uniform(-_SHADE, _SHADE) if wanted else np.zeros(3)
        image[:, inside] = (np.asarray(colour) + shade)[:, None]
    image = image + generator.normal(0, _NOISE, image.shape)
    return (255 * image.clip(0, 1)).round().astype(np.uint8), inside.astype(np.uint8)


def make_split(
    split: str,
) -> "tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.uint8]]":
    """The images of a split, their classes, and where the shapes are: (n, 3, side, side), (n,), (n, side, side)."""
    import numpy as np

    generator = np.random.default_rng([SEED, list(EACH).index(split)])
    labels = np.repeat(np.arange(len(NAMES)), EACH[split])
    images, masks = zip(*(make_sample(number, generator) for number in labels.tolist()), strict=True)
    return np.stack(images), labels, np.stack(masks)


def read(root: Path, download: bool) -> "RawDataset":
    """Made in half a second; nothing is read from the root."""
    from mereo.data.published import array_split
    from mereo.data.raw import RawDataset

    return RawDataset({split: array_split(*make_split(split)[:2]) for split in EACH}, NAMES, 3)


register_dataset(
    "coloured_shapes",
    summary="a shape in a colour among grey ones, each pair of both a class; generated when needed",
    source="ours",
    num_classes=len(NAMES),
    in_chans=3,
    size=(SIDE, SIDE),
    splits={split: count * len(NAMES) for split, count in EACH.items()},
    read=read,
    augment=("shift=2",),
)
