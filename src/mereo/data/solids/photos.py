"""A folder of coloured pictures of toys as JPEG files, to try the commands with before one has photographs."""

from pathlib import Path

import numpy as np

from mereo.data.solids.render import render
from mereo.data.solids.shapes import CATEGORIES, make_instance
from mereo.errors import UsageError, check_positive

TOYS = 10
"""Toys of each class."""
LIGHTINGS = 6
SIDES = (96, 128)
"""Shorter and longer side of a picture."""
QUALITY = 88
MOST = 10_000


def make_photos(folder: str | Path, images: int = 80, seed: int = 0) -> int:
    """Write `folder/<class>/*.jpg`: toys of five classes in any colour, from any side and in any light.

    Some pictures are upright and some wide, and some are stored turned with an EXIF tag, as cameras do.

    Args:
        folder: a new or empty folder.
        images: of each class.
        seed: of the choice of toys, viewpoints, light and colours.

    Returns:
        The number of pictures.
    """
    from PIL import Image

    check_positive(images=images)
    if images > MOST:
        raise UsageError(f"images is {images}; it must be at most {MOST:,}.")
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"folder is {str(folder)!r}, which is not an empty folder; give a new one.")
    for place, category in enumerate(CATEGORIES):
        generator = np.random.default_rng([seed, place])
        (folder / category).mkdir(parents=True)
        for number in range(images):
            parts = make_instance(category, int(generator.integers(TOYS)))
            up, around = generator.uniform(20, 70, 1), generator.uniform(0, 360, 1)
            grey = render(parts, up, around, generator.integers(0, LIGHTINGS, 1), SIDES[1])[0, 0] / 255
            # A dark colour in the shadow and a light one in the light, both at random.
            shadow, light = generator.uniform(0, 0.4, 3), generator.uniform(0.5, 1, 3)
            colours = shadow + grey[..., None] * (light - shadow) + generator.normal(0, 0.02, (*grey.shape, 3))
            pixels = (colours.clip(0, 1) * 255).round().astype(np.uint8)
            spare = (SIDES[1] - SIDES[0]) // 2
            picture = Image.fromarray(pixels[spare:-spare] if number % 2 else pixels[:, spare:-spare])
            exif = Image.Exif()
            if number % 5 == 0:
                picture = picture.transpose(Image.Transpose.ROTATE_90)
                exif[0x0112] = 6  # turn it clockwise to see it upright
            picture.save(folder / category / f"{category}_{number:04d}.jpg", quality=QUALITY, exif=exif)
    return images * len(CATEGORIES)
