"""Shape boxes: discs, squares, triangles and crosses on a textured ground, with the box of each shape.

Generated when it is needed, the same on every machine. Shapes are those of `shape_masks`, up to four in an image; a box
is the smallest around the whole shape, also where another hides a part of it. None is hidden by more than 40 %.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from mereo.data.registry import register_dataset
from mereo.data.sets.shape_masks import turned_shape, waves

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mereo.data.raw import RawDataset

SIDE, SEED, MOST = 64, 0, 4
CLASSES = ("disc", "square", "triangle", "cross")
COUNTS = {"train": 600, "validation": 100, "test": 200}
_SMALLEST, _LARGEST, _TURNED, _NOISE, _VISIBLE = 5.0, 16.0, 0.4, 0.04, 0.6


def make_sample(
    generator: "np.random.Generator", side: int = SIDE
) -> "tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32], npt.NDArray[np.int64]]":
    """One image, uint8 (3, side, side), its boxes in pixels (shapes, 4), and their classes (shapes,)."""
    import numpy as np
    import numpy.typing as npt

    across, down, ground = waves(generator, side, 0.3)
    image = generator.uniform(0.2, 0.7, 3)[:, None, None] + ground
    owner, kinds, wholes = np.full((side, side), -1), list[int](), list[npt.NDArray[np.bool_]]()
    for _ in range(generator.integers(1, MOST + 1)):
        kind, radius = int(generator.integers(len(CLASSES))), side / SIDE * generator.uniform(_SMALLEST, _LARGEST)
        turned, (y, x) = generator.uniform(-_TURNED, _TURNED), generator.uniform(radius, side - radius, 2)
        colour = generator.uniform(0, 1, 3)[:, None]
        inside = turned_shape(kind + 1, across - x, down - y, radius, turned)
        after = np.where(inside, len(kinds), owner)
        if any((after == n).sum() < _VISIBLE * whole.sum() for n, whole in enumerate(wholes)):
            continue
        owner = after
        kinds.append(kind)
        wholes.append(inside)
        image[:, inside] = colour + 0.3 * (image[:, inside] - image[:, inside].mean(1, keepdims=True))
    boxes = [
        (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1) for rows, columns in map(np.nonzero, wholes)
    ]
    image = image + generator.normal(0, _NOISE, image.shape)
    pixels = (255 * image.clip(0, 1)).round().astype(np.uint8)
    return pixels, np.array(boxes, np.float32).reshape(-1, 4), np.array(kinds, np.int64)


def read(root: Path, download: bool) -> "RawDataset":
    """Made in a second; nothing is read from the root."""
    import numpy as np
    import torch

    from mereo.data.box_folder import padded
    from mereo.data.made import made_dataset

    def make(generator: np.random.Generator, count: int) -> "tuple[npt.NDArray[np.uint8], dict[str, torch.Tensor]]":
        images, boxes, kinds = zip(*(make_sample(generator) for _ in range(count)), strict=True)
        return np.stack(images), padded(
            [torch.from_numpy(x) for x in boxes], [torch.from_numpy(x) for x in kinds], MOST
        )

    return made_dataset(COUNTS, SEED, make, CLASSES)


register_dataset(
    "shape_boxes",
    summary="discs, squares, triangles and crosses with the box of each; generated when needed",
    source="ours",
    num_classes=len(CLASSES),
    in_chans=3,
    size=(SIDE, SIDE),
    splits=COUNTS,
    read=read,
    augment=("flip",),
    fields=("images", "boxes", "box_labels"),
)
