"""One image file to uint8 pixels of a size, whatever its mode: bits, palette, alpha, 16 bit, float or CMYK."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from mereo.data.budget import Budget
from mereo.data.conversion import fit_box

if TYPE_CHECKING:
    from PIL.Image import Image

GREY_MODES = ("1", "L", "LA", "La", "I", "F")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""Formats that are read, recognised by content rather than by name. For some others Pillow would run another
program."""

_TELEPHONES = {
    **dict.fromkeys((b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1"), "HEIC"),
    b"avif": "AVIF",
}
_SNIFFED = 1024
"""Bytes of a file of another format that are looked at to name it."""
_BAND = 2**18
_BYTES_PER_PIXEL = 20
"""Bytes per pixel of an image and the copies made while decoding it, in the worst mode."""
IN_FLIGHT = Budget(2**29)
"""Bytes of images that the threads of a process may decode at the same time."""


def is_grey(mode: str) -> bool:
    """Whether a Pillow mode is greyscale."""
    return mode in GREY_MODES or mode.startswith("I;16")


def _to_8_bit(image: "Image") -> "Image":
    """Grey of more than 8 bits: 0 .. 65535 for whole numbers; for floats 0 .. 1, or 0 .. 255 if any is above 1."""
    from PIL import Image

    # A band of rows at a time: in double precision the full image would take many times its memory.
    rows = max(_BAND // max(image.width, 1), 1)
    boxes = [(0, top, image.width, min(top + rows, image.height)) for top in range(0, image.height, rows)]

    def values(box: tuple[int, int, int, int]) -> npt.NDArray[np.float64]:
        return np.nan_to_num(np.asarray(image.crop(box)).astype(np.float64))

    full = 65535.0
    if not image.mode.startswith("I"):
        full = 1.0 if max(values(box).max() for box in boxes) <= 1 else 255.0
    result = np.empty((image.height, image.width), dtype=np.uint8)
    for box in boxes:
        result[box[1] : box[3]] = np.clip(np.rint(values(box) * (255 / full)), 0, 255)
    return Image.fromarray(result)


def to_mode(image: "Image", mode: str) -> "Image":
    """The image in RGB or L, whatever its mode; transparent pixels become black."""
    from PIL import Image

    if image.mode.startswith("I") or image.mode == "F":
        image = _to_8_bit(image)
    if image.mode in {"RGBA", "LA", "PA", "RGBa", "La"} or "transparency" in image.info:
        # The colour of a transparent pixel is arbitrary; it becomes black, like the zeros that augmentation adds.
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image)
    # A palette is converted to colour first, as its own conversion to grey would do.
    return image if image.mode == mode else image.convert("RGB").convert(mode)


def _opened(stream: BinaryIO) -> "Image":
    """The image of a file, not yet decoded; ValueError with a remedy for the pictures of telephones."""
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(stream, formats=FORMATS)
    except UnidentifiedImageError:
        stream.seek(0)
        start = stream.read(_SNIFFED)
        if b"<svg" in start.lower():
            raise ValueError("SVG, which has no pixels; export it as PNG") from None
        kind = _TELEPHONES.get(start[8:12]) if start[4:8] == b"ftyp" else None
        if kind is None:
            raise
        raise ValueError(f"{kind}, which is not read; convert it to JPEG or PNG") from None


_TURNED = (5, 6, 7, 8)
"""EXIF orientations that exchange the sides of an image."""


def image_size_of(path: Path) -> tuple[int, int]:
    """(height, width) of an image file as it is shown, by its header and its EXIF tag."""
    with path.open("rb") as stream:
        return header_size(stream)


def header_size(stream: BinaryIO) -> tuple[int, int]:
    """(height, width) of an image as it is shown, by its header and its EXIF tag."""
    image = _opened(stream)
    turned = image.getexif().get(0x0112) in _TURNED
    return (image.width, image.height) if turned else (image.height, image.width)


def reason_of(error: Exception) -> str:
    """Why a file could not be read as an image, in a few words."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        return error.strerror.lower()
    if "decompression bomb" in str(error) and (pixels := re.search(r"\d+", str(error))):
        return f"{int(pixels[0]) / 1e6:,.0f} million pixels, which is more than is read; make it smaller"
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return "not an image" if reason.startswith("cannot identify image file") else reason


def decode(stream: BinaryIO, size: tuple[int, int], channels: int, *, reduce: bool = False) -> npt.NDArray[np.uint8]:
    """Read one image, rotated by its EXIF tag, cut by `fit_box` and resized with antialiasing.

    With `reduce` a large JPEG is decoded at a half, a quarter or an eighth of its size, but at least twice `size`.
    Waits while other threads decode images that take more memory than `IN_FLIGHT` allows.

    Two channels are the views of two cameras, which stand side by side in the file, the left one first.

    Shapes: -> uint8 (channels, *size), channels 1, 2 or 3.
    """
    from PIL import Image, ImageOps

    with _opened(stream) as opened:
        limit = Image.MAX_IMAGE_PIXELS
        pixels = opened.width * opened.height
        if limit is not None and pixels > limit:
            raise ValueError(f"{opened.width} x {opened.height} pixels, more than the limit of {limit}")
        if reduce:  # does nothing to other formats; a turned image may have its sides exchanged
            opened.draft(None, (2 * max(size), 2 * max(size)))
        with IN_FLIGHT.take(opened.width * opened.height * _BYTES_PER_PIXEL):
            ImageOps.exif_transpose(opened, in_place=True)
            return _convert(opened, size, channels)


VOID = 255
"""Index of pixels of a mask file that belong to no class."""
_WHITE = 65535
"""White of 16 bits."""


Colours = tuple[tuple[int, int, int], ...]
"""The colours of the classes of masks, in their order; empty for masks of indices."""
_NEAR = 40
"""Largest sum of channel differences between a pixel of a lossy file and the colour of its class."""


def decode_mask(stream: BinaryIO, colours: Colours = ()) -> npt.NDArray[np.uint8]:
    """Read one mask at its own size: the class of each pixel, 255 for no class.

    Without colours it is an image of class indices: it has a palette, is grey, or black and white; an image in colour
    counts if its three channels are equal, and one of more than 8 bits if its indices fit 8, or it is black and white.
    With colours, a pixel has the class of the nearest one, unless all
    are far from it.

    Shapes: -> uint8 (height, width).
    """
    from PIL import Image, ImageOps

    with _opened(stream) as opened:
        deep = opened.mode.startswith("I")
        if not deep and opened.mode not in ("P", "L", "1", "RGB", "RGBA"):
            raise ValueError(
                f"a mask of mode {opened.mode}; it must be an index image: one channel of 8 bits, the class of each"
                " pixel, 255 for none"
            )
        limit = Image.MAX_IMAGE_PIXELS
        if limit is not None and opened.width * opened.height > limit:
            raise ValueError(f"{opened.width} x {opened.height} pixels, more than the limit of {limit}")
        with IN_FLIGHT.take(opened.width * opened.height * _BYTES_PER_PIXEL):
            ImageOps.exif_transpose(opened, in_place=True)
            if deep:
                found = _indices(np.asarray(opened))
                return _nearest_colour(np.stack([found] * 3, -1), colours) if colours else found
            if colours:
                return _nearest_colour(np.asarray(opened.convert("RGB")), colours)
            if opened.mode in ("P", "L", "1"):
                return np.asarray(opened).astype(np.uint8)
            pixels = np.asarray(opened.convert("RGB"))
    if (pixels != pixels[..., :1]).any():
        raise ValueError(
            f"a mask of mode {opened.mode} in colours; it must be an index image, or class_dict.csv list its colours"
        )
    return pixels[..., 0]


def _indices(pixels: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The indices in a mask of more than 8 bits; ValueError for indices that do not fit 8."""
    white = (pixels == _WHITE) if not ((pixels != 0) & (pixels != _WHITE)).any() else np.zeros_like(pixels, bool)
    found = np.where(white, VOID, pixels)
    if found.size and not 0 <= int(found.min()) <= int(found.max()) <= VOID:
        raise ValueError(f"a mask with the index {int(found.max())}; indices of classes are 0 .. 254, and 255 for none")
    return found.astype(np.uint8)


def _nearest_colour(pixels: npt.NDArray[np.uint8], colours: Colours) -> npt.NDArray[np.uint8]:
    """The place of the nearest colour for each pixel: uint8 (height, width, 3) -> uint8 (height, width)."""
    nearest = np.full(pixels.shape[:2], VOID, np.uint8)
    least = np.full(pixels.shape[:2], _NEAR + 1, np.int16)
    for place, colour in enumerate(colours):
        distance = np.abs(pixels.astype(np.int16) - np.array(colour, np.int16)).sum(2)
        nearer = distance < least
        nearest[nearer], least[nearer] = place, distance[nearer]
    return nearest


def fit_mask(mask: npt.NDArray[np.uint8], size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """A mask for an image that `decode` fits to a size: cut by `fit_box`, then the nearest pixels."""
    top, left, height, width = fit_box(mask.shape[0], mask.shape[1], size)
    rows, columns = (nearest_places(side, wanted) for side, wanted in ((height, size[0]), (width, size[1])))
    return mask[top + rows][:, left + columns]


def nearest_places(side: int, wanted: int) -> npt.NDArray[np.int64]:
    """The place of the pixel nearest to each of `wanted` pixels along a side: int64 (wanted,)."""
    return ((np.arange(wanted) + 0.5) * (side / wanted)).astype(np.int64).clip(max=side - 1)


def _convert(image: "Image", size: tuple[int, int], channels: int) -> npt.NDArray[np.uint8]:
    from PIL import Image

    image = to_mode(image, "RGB" if channels == 3 else "L")
    if channels == 2:
        size = size[0], 2 * size[1]
    top, left, height, width = fit_box(image.height, image.width, size)
    if (height, width) != (image.height, image.width):
        # Not resize(box=...), which would mix in pixels from outside the box.
        image = image.crop((left, top, left + width, top + height))
    if (height, width) != size:
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    if channels == 2:
        pixels = pixels.reshape(size[0], 2, size[1] // 2).transpose(0, 2, 1)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


_SAME_SHAPE = 0.005
"""Share by which the proportions of the sides of a mask and its image may differ."""


def decode_pair(
    image: BinaryIO,
    mask: BinaryIO,
    classes: int,
    size: tuple[int, int],
    channels: int,
    *,
    colours: Colours = (),
    reduce: bool = False,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """An image and its mask; ValueError unless they have one shape and the mask has only indices of classes.

    A mask may be smaller or larger than its image, in proportion; sides of whole pixels are so only nearly.
    """
    whole, shown = decode_mask(mask, colours), header_size(image)
    if abs(whole.shape[0] * shown[1] - whole.shape[1] * shown[0]) > _SAME_SHAPE * whole.shape[1] * shown[0]:
        raise ValueError(f"its mask is {whole.shape[0]} x {whole.shape[1]}, and the image {shown[0]} x {shown[1]}")
    known = whole[whole != VOID]
    if known.size and int(known.max()) >= classes:
        raise ValueError(f"its mask has the index {int(known.max())}, and there are {classes} classes")
    image.seek(0)
    return decode(image, size, channels, reduce=reduce), fit_mask(whole, size)
