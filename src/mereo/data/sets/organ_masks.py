"""Organ masks: grey slices of a body with a liver, two kidneys and a spleen, with the class of each pixel.

Generated when it is needed, the same on every machine. Liver and spleen are as bright as each other, and so are the two
kidneys: the liver is the large one, and which kidney is the right one follows from the side of the liver, which is the
left or the right of the image. The brightness drifts across the image, which is noisy; there are bright distractors.
"""

from typing import TYPE_CHECKING

from mereo.data.registry import later, register_dataset

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

SIDE, SEED = 64, 0
CLASSES = ("ground", "liver", "right kidney", "left kidney", "spleen")
COUNTS = {"train": 400, "validation": 60, "test": 100}
ORGANS = {
    "liver": (-0.42, -0.2, 0.36, 0.3, 0.6),
    "right kidney": (-0.3, 0.42, 0.13, 0.17, 0.75),
    "left kidney": (0.3, 0.4, 0.13, 0.17, 0.75),
    "spleen": (0.52, -0.08, 0.17, 0.24, 0.6),
}
"""Across, down, half width, half height and brightness; the body is the disc of radius one, the liver on the left."""
_BODY, _DISTRACTORS, _NOISE = 0.35, 3, 0.08


def _blob(
    across: "npt.NDArray[np.float64]", down: "npt.NDArray[np.float64]", generator: "np.random.Generator"
) -> "npt.NDArray[np.bool_]":
    """The points of a disc of radius one with a wavy edge, in its own coordinates."""
    import numpy as np

    inside = np.hypot(across, down) < 1.5
    x, y = across[inside], down[inside]
    angle, edge = np.arctan2(y, x), np.ones(len(x))
    for waves in (2, 3, 4):
        edge = edge + generator.normal(0, 0.07) * np.sin(waves * angle + generator.uniform(0, 6.3))
    inside[inside] = np.hypot(x, y) < edge
    return inside


def make_sample(generator: "np.random.Generator") -> "tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]":
    """One image, uint8 (1, 64, 64), and its mask, uint8 (64, 64)."""
    import numpy as np

    down, across = (np.mgrid[:SIDE, :SIDE] + 0.5) / (SIDE / 2) - 1
    size, turned, mirrored = generator.uniform(0.75, 0.95), generator.uniform(-0.25, 0.25), generator.choice((-1, 1))
    x0, y0 = generator.uniform(-0.08, 0.08, 2)
    x, y = (across - x0) / size, (down - y0) / (0.85 * size)
    x, y = mirrored * (np.cos(turned) * x + np.sin(turned) * y), np.cos(turned) * y - np.sin(turned) * x
    body, mask = _blob(x, y, generator), np.zeros((SIDE, SIDE), np.uint8)
    image = np.where(body, _BODY, 0.05)
    for _ in range(_DISTRACTORS):
        place, radius = generator.uniform(-0.6, 0.6, 2), generator.uniform(0.05, 0.1)
        image[body & _blob((x - place[0]) / radius, (y - place[1]) / radius, generator)] = generator.uniform(0.5, 0.9)
    for kind, name in enumerate(CLASSES[1:], 1):
        column, row, width, height, brightness = ORGANS[name]
        column, row = generator.normal((column, row), 0.04)
        width, height = np.array((width, height)) * generator.uniform(0.8, 1.15, 2)
        inside = body & _blob((x - column) / width, (y - row) / height, generator)
        image[inside], mask[inside] = brightness * generator.uniform(0.9, 1.1), kind
    drift = generator.uniform(-0.25, 0.25, 2)
    image = image * (1 + drift[0] * across + drift[1] * down) + generator.normal(0, _NOISE, image.shape)
    return (255 * image.clip(0, 1)).round().astype(np.uint8)[None], mask


register_dataset(
    "organ_masks",
    summary="grey slices of a body with liver, kidneys and spleen, the class of each pixel; generated when needed",
    source="ours",
    num_classes=len(CLASSES),
    in_chans=1,
    size=(SIDE, SIDE),
    splits=COUNTS,
    read=later("mereo.data.made:made_masks", counts=COUNTS, seed=SEED, sample=make_sample, names=CLASSES),
    augment=("flip",),
    fields=("images", "masks"),
)
