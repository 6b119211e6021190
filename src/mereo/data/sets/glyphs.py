"""Glyphs: signs of a few strokes, each an identity, under shifts, turns and changes of scale.

Generated when they are needed, the same on every machine. Identities of the validation and test images are not among
the training glyphs, so that a network has to compare signs it has never seen.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from mereo.data.registry import register_dataset

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mereo.data.raw import RawDataset

SIDE, SEED = 32, 0
IDENTITIES = {"train": 80, "validation": 20, "test": 40}
EACH = {"train": 25, "validation": 10, "test": 10}
_POINTS, _STROKES = 3, (2, 4)
_TURN, _STRETCH, _SHIFT, _BEND, _WIDTH, _NOISE = 0.25, 0.2, 3.0, 0.05, 1.1, 0.06


def make_sign(generator: "np.random.Generator") -> "npt.NDArray[np.float64]":
    """The strokes of one identity: (strokes, points, 2) in [-1, 1]."""
    import numpy as np

    strokes = int(generator.integers(*_STROKES, endpoint=True))
    return np.asarray(generator.uniform(-1, 1, (strokes, _POINTS, 2)))


def draw_sign(
    sign: "npt.NDArray[np.float64]", generator: "np.random.Generator", side: int = SIDE
) -> "npt.NDArray[np.uint8]":
    """One image of an identity, moved and bent a little at random: uint8 (1, side, side)."""
    import numpy as np

    turn, stretch = generator.normal(0, _TURN), 1 + generator.uniform(-_STRETCH, _STRETCH, 2)
    matrix = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]) * stretch
    bent = sign + generator.normal(0, _BEND, sign.shape)
    points = bent @ matrix.T * 0.36 * side + side / 2 + generator.uniform(-_SHIFT, _SHIFT, 2)
    grid = np.moveaxis(np.mgrid[:side, :side][::-1], 0, -1).reshape(-1, 1, 2) + 0.5
    starts, ends = points[:, :-1].reshape(-1, 2), points[:, 1:].reshape(-1, 2)
    along = ends - starts
    share = (((grid - starts) * along).sum(-1) / (along**2).sum(-1).clip(1e-9)).clip(0, 1)
    distance = np.linalg.norm(grid - starts - share[..., None] * along, axis=-1).min(1).reshape(side, side)
    image = (0.5 + _WIDTH - distance).clip(0, 1) + generator.normal(0, _NOISE, (side, side))
    return np.asarray((255 * image.clip(0, 1)).round().astype(np.uint8)[None])


def read(root: Path, download: bool) -> "RawDataset":
    """Made in two seconds; nothing is read from the root."""
    import numpy as np

    from mereo.data.published import array_split
    from mereo.data.raw import RawDataset

    splits, first = {}, 0
    for number, (split, identities) in enumerate(IDENTITIES.items()):
        generator = np.random.default_rng([SEED, number])
        signs = [make_sign(generator) for _ in range(identities)]
        images = [draw_sign(sign, generator) for sign in signs for _ in range(EACH[split])]
        splits[split] = array_split(np.stack(images), np.repeat(np.arange(first, first + identities), EACH[split]))
        first += identities
    return RawDataset(splits, tuple(f"glyph {number}" for number in range(first)), 1)


register_dataset(
    "glyphs",
    summary="signs of a few strokes, each an identity; test images show new identities; generated when needed",
    source="ours",
    num_classes=sum(IDENTITIES.values()),
    in_chans=1,
    size=(SIDE, SIDE),
    splits={split: count * EACH[split] for split, count in IDENTITIES.items()},
    read=read,
    augment=("shift=2",),
)
