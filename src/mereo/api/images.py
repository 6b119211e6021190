"""Images as people have them: paths, patterns, PIL images, arrays, tensors, and lists of any of these."""

import io
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from mereo.api.networks import is_weights
from mereo.data.decode import is_grey, to_mode
from mereo.errors import UsageError, type_of
from mereo.inference.predict import find_images

COLOURS = (1, 3, 4)
"""Numbers of channels of a picture: grey, colour, colour with transparency."""
_SAVABLE = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
"""Modes of Pillow that a PNG keeps as they are."""
_ACCEPTED = "paths, PIL images, arrays (height, width, channels) or tensors (channels, height, width)"


def _to_bytes(values: np.ndarray[Any, Any], what: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Pixels as bytes: uint8 as they are, floating point from [0, 1]."""
    if values.dtype == np.uint8:
        return values
    if values.dtype.kind != "f":
        raise UsageError(f"{what} is of {values.dtype}; give uint8 in 0 .. 255, or floating point in 0 .. 1.")
    if values.size and not (np.isfinite(values).all() and values.min() >= 0 and values.max() <= 1):
        raise UsageError(
            f"{what} is floating point with values outside 0 .. 1; divide it by 255 or undo its normalisation, or give"
            " uint8."
        )
    return np.rint(values * 255).astype(np.uint8)


def stack_of(images: Any, what: str = "images") -> np.ndarray[Any, np.dtype[np.uint8]]:
    """One image or a batch of an array or a tensor as uint8 (n, height, width, channels).

    Arrays have their channels last, as PIL and OpenCV give them, tensors first, as PyTorch has them. Grey images may
    have no axis of channels in arrays.
    """
    if isinstance(images, Tensor):
        if images.dim() not in (3, 4) or images.shape[-3] not in COLOURS:
            raise UsageError(
                f"{what} is a tensor {tuple(images.shape)}; it must be (channels, height, width) or (batch, channels,"
                " height, width), with 1, 3 or 4 channels."
            )
        images = images.detach().cpu()
        values = (images.float() if images.is_floating_point() else images).movedim(-3, -1).numpy()
    else:
        values = np.asarray(images)
        shape = values.shape
        if values.ndim == 3 and shape[-1] not in COLOURS and shape[0] in COLOURS and shape[0] > 1:
            raise UsageError(
                f"{what} is an array {shape}, which looks like channels first; give channels last, as with"
                " .transpose(1, 2, 0), or a tensor."
            )
        if values.ndim == 2 or (values.ndim == 3 and shape[-1] not in COLOURS):
            values = values[..., None]
        if values.ndim not in (3, 4) or values.shape[-1] not in COLOURS:
            raise UsageError(
                f"{what} is an array {shape}; it must be (height, width), (height, width, channels) or (batch, height,"
                " width, channels), with 1, 3 or 4 channels."
            )
    values = values if values.ndim == 4 else values[None]
    if 0 in values.shape[1:]:
        raise UsageError(f"{what} has the shape {tuple(values.shape)}, without pixels.")
    return _to_bytes(values, what)


def _each(images: Any) -> Iterator[str | Path | Image.Image]:
    """The patterns and pictures in a value; lists are followed."""
    if isinstance(images, str | Path | Image.Image):
        yield images
    elif isinstance(images, np.ndarray | Tensor):
        yield from (Image.fromarray(each.squeeze(-1) if each.shape[-1] == 1 else each) for each in stack_of(images))
    elif isinstance(images, Iterable) and not isinstance(images, Mapping | bytes):
        for each in images:
            yield from _each(each)
    else:
        raise UsageError(f"images is {type_of(images)}; give {_ACCEPTED}, or a list of them.")


class Files(NamedTuple):
    """The files of images.

    Attributes:
        paths: of all of them.
        given: the paths, folders and patterns among what was given.
        held: of images in memory, the pictures by their temporary file.
    """

    paths: list[Path]
    given: list[str | Path]
    held: dict[Path, Image.Image]

    @property
    def names(self) -> dict[Path, Path]:
        """The names of images in memory by their temporary file."""
        return {path: Path(path.stem) for path in self.held}


@contextmanager
def as_files(images: Any) -> Iterator[Files]:
    """The files of images, which exist inside this block.

    Images in memory pass through the same decoder as files, so that the same picture gives the same prediction.

    Raises:
        UsageError: for no images, for other things than images, and for a run or weights in the place of images.
    """
    listed = list(_each(images))
    if not listed:
        raise UsageError(f"no image is given; give {_ACCEPTED}.")
    with tempfile.TemporaryDirectory(prefix="mereo-images-") as folder:
        paths: dict[Path, None] = {}
        held: dict[Path, Image.Image] = {}
        given = [each for each in listed if isinstance(each, str | Path)]
        for path in filter(is_weights, given):
            raise UsageError(f"images has {str(path)!r}, which holds trained weights; give that as the network.")
        for each in listed:
            if isinstance(each, str | Path):
                paths.update(dict.fromkeys(find_images([each])))
                continue
            file = Path(folder) / f"image {len(held)}.png"
            savable = each if each.mode in _SAVABLE else to_mode(each, "L" if is_grey(each.mode) else "RGB")
            savable.save(file, compress_level=1)
            held[file] = each
            paths[file] = None
        yield Files(list(paths), given, held)


def thumbnail(image: Path | Image.Image, side: int = 96) -> bytes:
    """A small PNG of an image; empty if it cannot be read any more."""
    try:
        with Image.open(image) if isinstance(image, Path) else nullcontext(image) as opened:
            small = ImageOps.exif_transpose(opened).convert("RGB")
        small.thumbnail((side, side))
        content = io.BytesIO()
        small.save(content, format="PNG")
        return content.getvalue()
    except OSError:
        return b""


def is_picture(value: Any) -> bool:
    """Whether a value is an image of Pillow."""
    return getattr(value, "mode", None) is not None and hasattr(value, "convert")


def picture_arrays(images: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """Images of Pillow as arrays, in grey if all of them are, else in colour; anything else as it is."""
    mode = "L" if all(is_grey(image.mode) for image in images if is_picture(image)) else "RGB"
    return [np.asarray(to_mode(image, mode) if is_picture(image) else image) for image in images]


def pair_of(data: Any) -> tuple[Any, Any]:
    """Images, and their labels or masks, as they are given; UsageError for anything else than a pair."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise UsageError(f"data is {type_of(data)}; give the name of a data set, a path, or a pair (images, labels).")
    return data[0], data[1]


def stored_images(images: Any) -> Tensor:
    """Images of one size as uint8 (n, channels, height, width); images of several sizes need a folder of files."""
    if not isinstance(images, np.ndarray | Tensor):
        listed = list(_each(images))
        pictures = [each for each in listed if not isinstance(each, str | Path)]
        if len(pictures) < len(listed) or len({picture.size for picture in pictures}) != 1:
            raise UsageError(
                "data has paths, or images of several sizes; give a folder <class>/*, a table of paths and labels"
                " (.csv), or images of one size."
            )
        pixels = np.stack(picture_arrays(pictures))
        images = pixels if pixels.ndim == 4 else pixels[..., None]
    return torch.from_numpy(np.ascontiguousarray(stack_of(images)[..., :3].transpose(0, 3, 1, 2)))


def labelled(data: Any) -> tuple[Tensor, list[Any]]:
    """Images and labels of a pair, as uint8 (n, channels, height, width) and a list of labels."""
    images, labels = pair_of(data)
    stacked = stored_images(images)
    if isinstance(labels, str | Mapping) or not isinstance(labels, Iterable):
        raise UsageError(f"labels is {type_of(labels)}; give a list or an array with one label for each image.")
    names = labels.tolist() if isinstance(labels, np.ndarray | Tensor) else list(labels)
    if any(isinstance(name, Iterable) and not isinstance(name, str) for name in names):
        raise UsageError("labels has several values for an image; give one class each, such as labels.argmax(1).")
    if len(names) != len(stacked):
        raise UsageError(f"data has {len(stacked):,} images and {len(names):,} labels; give one label for each image.")
    return stacked, names


def masked(data: Any) -> tuple[Tensor, Tensor] | None:
    """Images and masks of a pair, as uint8 (n, channels, height, width) and (n, height, width); None for labels.

    Masks hold the numbers of the classes from 0 on, and 255 where a pixel has none.
    """
    images, masks = pair_of(data)
    if not isinstance(masks, np.ndarray | Tensor) or masks.ndim != 3:
        return None
    stacked, values = stored_images(images), np.asarray(masks.cpu() if isinstance(masks, Tensor) else masks)
    expected = (len(stacked), *stacked.shape[2:])
    if values.shape != expected or values.dtype.kind not in "iu" or not 0 <= values.min() <= values.max() <= 255:
        raise UsageError(
            f"masks are {values.dtype} {values.shape}; they must be whole numbers from 0 to 254, or 255 for none, of"
            f" shape {expected}."
        )
    return stacked, torch.from_numpy(values.astype(np.uint8))
