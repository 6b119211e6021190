"""Shape masks: discs, squares, triangles and crosses on a textured ground, with the class of each pixel.

Generated when it is needed, the same on every machine. Shapes differ in place, size, angle and brightness, and hide
each other; colour is independent of the class.
"""

from typing import TYPE_CHECKING

from mereo.data.registry import later, register_dataset

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

SIDE, SEED, MOST_SHAPES = 32, 0, 3
CLASSES = ("ground", "disc", "square", "triangle", "cross")
COUNTS = {"train": 800, "validation": 100, "test": 200}
_SMALLEST, _LARGEST, _TURNED, _NOISE = 5.0, 9.0, 0.4, 0.04


def inside_shape(
    kind: int, across: "npt.NDArray[np.float64]", down: "npt.NDArray[np.float64]"
) -> "npt.NDArray[np.bool_]":
    """The points of a shape of radius one, in its own coordinates."""
    import numpy as np

    if kind == 1:
        inside = across**2 + down**2 < 1
    elif kind == 2:
        inside = np.maximum(abs(across), abs(down)) < 0.8
    elif kind == 3:
        inside = (down < 0.6) & (down > 2 * abs(across) - 1.1)
    else:
        inside = np.minimum(abs(across), abs(down)) < 0.28
        inside &= np.maximum(abs(across), abs(down)) < 1
    return np.asarray(inside)


def turned_shape(
    kind: int, across: "npt.NDArray[np.float64]", down: "npt.NDArray[np.float64]", radius: float, angle: float
) -> "npt.NDArray[np.bool_]":
    """The points of a turned shape, from their distances to its middle."""
    import numpy as np

    cosine, sine = np.cos(angle) / radius, np.sin(angle) / radius
    return inside_shape(kind, cosine * across + sine * down, cosine * down - sine * across)


def waves(generator: "np.random.Generator", side: int, steepest: float) -> "tuple[npt.NDArray[np.float64], ...]":
    """Columns and rows of the middles of all pixels, and the brightness of a ground with waves: (side, side) each."""
    import numpy as np

    down, across = np.mgrid[:side, :side] + 0.5
    slopes = generator.uniform(-steepest, steepest, 2)
    return across, down, 0.15 * np.sin(slopes[0] * down + slopes[1] * across + generator.uniform(0, 6.3))


def make_sample(
    generator: "np.random.Generator", side: int = SIDE
) -> "tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]":
    """One image, uint8 (3, side, side), and its mask, uint8 (side, side)."""
    import numpy as np

    across, down, ground = waves(generator, side, 0.5)
    mask = np.zeros((side, side), np.uint8)
    image = generator.uniform(0.2, 0.7, 3)[:, None, None] + ground
    for _ in range(generator.integers(1, MOST_SHAPES + 1)):
        kind, scale = int(generator.integers(1, len(CLASSES))), side / SIDE
        radius, turned = scale * generator.uniform(_SMALLEST, _LARGEST), generator.uniform(-_TURNED, _TURNED)
        y, x = generator.uniform(radius / 2, side - radius / 2, 2)
        inside = turned_shape(kind, across - x, down - y, radius, turned)
        colour = generator.uniform(0, 1, 3)[:, None]
        image[:, inside] = colour + 0.3 * (image[:, inside] - image[:, inside].mean(1, keepdims=True))
        mask[inside] = kind
    image = image + generator.normal(0, _NOISE, image.shape)
    return (255 * image.clip(0, 1)).round().astype(np.uint8), mask


read = later("mereo.data.made:made_masks", counts=COUNTS, seed=SEED, sample=make_sample, names=CLASSES)
register_dataset(
    "shape_masks",
    summary="discs, squares, triangles and crosses with the class of each pixel; generated when needed",
    source="ours",
    num_classes=len(CLASSES),
    in_chans=3,
    size=(SIDE, SIDE),
    splits=COUNTS,
    read=read,
    augment=("flip",),
    fields=("images", "masks"),
)
