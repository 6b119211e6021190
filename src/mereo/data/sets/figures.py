"""Figures: people of a few strokes, each an identity by clothes, skin, hair and bag, walking at any place and size.

Generated when they are needed, the same on every machine. Identities of the validation and test images are not among
the training images, so that a network has to compare people it has never seen.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from mereo.data.registry import register_dataset

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mereo.data.raw import RawDataset

SIZE, SEED = (64, 32), 0
IDENTITIES = {"train": 80, "validation": 20, "test": 40}
EACH = {"train": 16, "validation": 8, "test": 8}
_PALETTE = (
    (0.8, 0.2, 0.2),
    (0.2, 0.3, 0.8),
    (0.2, 0.6, 0.25),
    (0.85, 0.75, 0.2),
    (0.15, 0.15, 0.15),
    (0.85, 0.85, 0.85),
)
_SKINS = ((0.95, 0.8, 0.68), (0.6, 0.42, 0.3))
_NOISE = 0.06


def draw_figure(identity: "npt.NDArray[np.int64]", generator: "np.random.Generator") -> "npt.NDArray[np.uint8]":
    """One image, uint8 (3, *SIZE), of the numbers of shirt, trousers, hair, skin, bag, its side, and stripes."""
    import numpy as np

    shirt, trousers, hair, skin, bag, side, stripes = identity.tolist()
    light, swing, facing = generator.uniform(0.7, 1.1), generator.uniform(-0.6, 0.6), generator.choice([-1, 1])
    unit = generator.uniform(0.75, 1.0) * SIZE[0]
    foot = (SIZE[0] - generator.uniform(1, 1 + 0.2 * (SIZE[0] - unit)), SIZE[1] / 2 + generator.uniform(-4, 4))
    down, across = np.mgrid[: SIZE[0], : SIZE[1]] + 0.5
    x, y = (across - foot[1]) / unit * facing, (foot[0] - down) / unit  # y from 0 at the feet to 1
    ground = generator.uniform(0.35, 0.65) + generator.uniform(-0.08, 0.08, (3, 1, 1))
    image = ground + 0.1 * generator.uniform(-1, 1) * y

    def stroke(start: tuple[float, float], end: tuple[float, float], width: float) -> "npt.NDArray[np.bool_]":
        along = np.subtract(end, start)
        share = ((x - start[0]) * along[0] + (y - start[1]) * along[1]) / max(float(along @ along), 1e-9)
        share = share.clip(0, 1)
        return np.asarray(np.hypot(x - start[0] - share * along[0], y - start[1] - share * along[1]) < width)

    reach = 0.45 * np.sin(swing)
    shirts = np.array(_PALETTE[shirt])[:, None, None] * np.where((np.floor(y * 16) % 2 == 0) & bool(stripes), 0.45, 1)
    parts = [
        (stroke((0, 0.72), (-0.5 * reach, 0.48), 0.035), shirts),
        (stroke((0, 0.45), (-0.6 * reach, 0.04), 0.05), np.array(_PALETTE[trousers])[:, None, None] * 0.8),
        (stroke((0, 0.45), (0.6 * reach, 0.04), 0.05), np.array(_PALETTE[trousers])[:, None, None]),
        (stroke((0, 0.5), (0, 0.72), 0.1), shirts),
        (stroke((0, 0.9), (0, 0.9), 0.085), np.array(_PALETTE[hair])[:, None, None]),
        (stroke((0.03, 0.88), (0.03, 0.88), 0.065), np.array(_SKINS[skin])[:, None, None]),
        (stroke((0, 0.72), (0.5 * reach, 0.48), 0.035), shirts * 0.85),
    ]
    carried = (np.abs(x - (0.13 if side else -0.13)) < 0.055) & (np.abs(y - 0.56) < 0.07)
    parts += [(carried, np.array(_PALETTE[bag])[:, None, None])] if bag < len(_PALETTE) else []
    for inside, colour in parts:
        image = np.where(inside, light * colour, image)
    image = image + generator.normal(0, _NOISE, (3, *SIZE))
    return np.asarray((255 * image.clip(0, 1)).round().astype(np.uint8))


def read(root: Path, download: bool) -> "RawDataset":
    """Made in two seconds; nothing is read from the root."""
    import numpy as np

    from mereo.data.published import array_split
    from mereo.data.raw import RawDataset

    total, choices = sum(IDENTITIES.values()), (6, 6, 6, 2, 7, 2, 2)
    drawn = np.random.default_rng(SEED).choice(np.prod(choices), total, replace=False)
    people = np.stack(np.unravel_index(drawn, choices), 1)
    splits, first = {}, 0
    for number, (split, identities) in enumerate(IDENTITIES.items()):
        generator = np.random.default_rng([SEED, number])
        numbers = np.repeat(np.arange(first, first + identities), EACH[split])
        splits[split] = array_split(np.stack([draw_figure(people[each], generator) for each in numbers]), numbers)
        first += identities
    return RawDataset(splits, tuple(f"figure {number}" for number in range(total)), 3)


register_dataset(
    "figures",
    summary="walking people of a few strokes, each an identity; test images show new identities; generated when needed",
    source="ours",
    num_classes=sum(IDENTITIES.values()),
    in_chans=3,
    size=SIZE,
    splits={split: count * EACH[split] for split, count in IDENTITIES.items()},
    read=read,
    augment=("shift=2",),
)
