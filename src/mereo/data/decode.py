"""One image file to uint8 pixels of a size, whatever its mode: bits, palette, alpha, 16 bit, float or CMYK."""

from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import numpy.typing as npt

from mereo.data.conversion import fit_box

if TYPE_CHECKING:
    from PIL.Image import Image

GREY_MODES = ("1", "L", "LA", "La", "I", "F")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""Told by their content, whatever the file is called. No others are read: for some, Pillow runs another program."""


def is_grey(mode: str) -> bool:
    """Whether an image of this mode of Pillow has no colour."""
    return mode in GREY_MODES or mode.startswith("I;16")


def _to_8_bit(image: "Image") -> "Image":
    """Grey of more than 8 bits: 0 .. 65535 for whole numbers; for floats 0 .. 1, or 0 .. 255 if any is above 1."""
    from PIL import Image

    values = np.nan_to_num(np.asarray(image).astype(np.float64))
    full = 65535.0 if image.mode.startswith("I") else (1.0 if values.max() <= 1 else 255.0)
    return Image.fromarray(np.clip(np.rint(values * (255 / full)), 0, 255).astype(np.uint8))


def _to_mode(image: "Image", mode: str) -> "Image":
    from PIL import Image

    if image.mode.startswith("I") or image.mode == "F":
        image = _to_8_bit(image)
    if image.mode in {"RGBA", "LA", "PA", "RGBa", "La"} or "transparency" in image.info:
        # What lies under a transparent pixel is arbitrary; it becomes black, like the zeros that augmentation adds.
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image)
    # A palette goes through colour, as its own conversion to grey would.
    return image if image.mode == mode else image.convert("RGB").convert(mode)


def decode(stream: BinaryIO, size: tuple[int, int], channels: int, *, reduce: bool = False) -> npt.NDArray[np.uint8]:
    """Read one image, turned as its EXIF tag says, cut as `fit_box` says, resized with antialiasing.

    With `reduce` a large JPEG is decoded at a half, a quarter or an eighth of its sides, yet at least twice `size`.

    Shapes: -> uint8 (channels, *size), channels 1 or 3.
    """
    from PIL import Image, ImageOps

    with Image.open(stream, formats=FORMATS) as opened:
        limit = Image.MAX_IMAGE_PIXELS
        if limit is not None and opened.width * opened.height > limit:
            raise ValueError(f"{opened.width} x {opened.height} pixels, more than the limit of {limit}")
        if reduce:  # does nothing to other formats; a turned image may have its sides exchanged
            opened.draft(None, (2 * max(size), 2 * max(size)))
        image = _to_mode(ImageOps.exif_transpose(opened), "L" if channels == 1 else "RGB")
    top, left, height, width = fit_box(image.height, image.width, size)
    if (height, width) != (image.height, image.width):
        # Not resize(box=...), which would mix in pixels from outside the box.
        image = image.crop((left, top, left + width, top + height))
    if (height, width) != size:
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)
