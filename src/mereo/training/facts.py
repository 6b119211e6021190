"""Facts about the images of a data set, from its list and a sample of it, on which the choice of settings is based."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mereo.data import DatasetInfo
from mereo.data.raw import RawSplit
from mereo.data.stream import as_source

SAMPLE, MOST_PIXELS = 48, 4e7
"""Images looked at, and pixels after which no further image is decoded."""
SIDE = 128
"""Images of the sample are compared at this size."""
PHOTOGRAPHS, GREY, TEXT = "photographs", "grey images", "text or drawings"
COLOURLESS = 6.0
"""Mean distance between the channels of a pixel, of 255, below which images are grey."""
NEAR, PLAIN_SHARE = 20, 0.65
"""Text has at least this share of its pixels near the commonest value."""
SIDES = (24, 32, 48, 56, 64, 96)
"""Sides for which the lost detail is computed."""
DIRECTIONS = frozenset({"left", "right"})

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class DataFacts:
    """Facts about a data set that are known before it is read.

    Attributes:
        images: to train on, per epoch.
        classes: training images of each class by name; empty where only the number of classes is known.
        num_classes: how many classes.
        smallest, largest: (height, width) of the sampled image of fewest and of most pixels; None where unknown.
        kind: photographs, grey images, text or drawings; None where no image was looked at.
        lost: share of the variance that images of a side no longer have, by side, from sharp images 0.
        own_augment: operations that a registered data set brings; None for folders.
    """

    images: int
    num_classes: int
    classes: Mapping[str, int] = field(default_factory=dict)
    smallest: tuple[int, int] | None = None
    largest: tuple[int, int] | None = None
    kind: str | None = None
    lost: Mapping[int, float] = field(default_factory=dict)
    own_augment: tuple[str, ...] | None = None

    @property
    def mirrored_means_another(self) -> bool:
        """Whether a mirrored image may belong to another class: text, signs named by one character, directions."""
        words = {word for name in self.classes for word in name.lower().replace("-", "_").split("_")}
        signs = bool(self.classes) and all(len(name) == 1 for name in self.classes)
        return self.kind == TEXT or signs or bool(words & DIRECTIONS)


def lost_detail(image: Pixels, side: int) -> float:
    """1 - (variance that remains after resizing to a side and back) / variance, at most 1.

    Shapes: image uint8 (height, width).
    """
    from PIL import Image

    whole = Image.fromarray(image)
    small = whole.resize((side, side), Image.Resampling.BILINEAR)
    values = np.asarray(whole, dtype=np.float64)
    back = np.asarray(small.resize(whole.size, Image.Resampling.BICUBIC), dtype=np.float64)
    return float(min(((values - back) ** 2).mean() / max(values.var(), 1.0), 1.0))


def kind_of_images(images: Sequence[Pixels]) -> str:
    """Photographs, grey images, or text and drawings.

    Shapes: images uint8 (height, width, 3).
    """
    colour = np.mean([(i.max(2).astype(np.int64) - i.min(2)).mean() for i in images])
    if colour >= COLOURLESS:
        return PHOTOGRAPHS
    shares = []
    for image in images:
        grey = image[..., 0].astype(np.int64)
        shares.append((np.abs(grey - np.bincount(grey.ravel()).argmax()) <= NEAR).mean())
    return TEXT if np.median(shares) >= PLAIN_SHARE else GREY


def _sample(split: RawSplit) -> tuple[list[tuple[int, int]], list[Pixels]]:
    """Sizes and pixels of images that are evenly spread over the training images.

    Where neighbours are read together, the first ones: distant ones would read all of their neighbours too.
    """
    from PIL import Image

    from mereo.data.decode import FORMATS, decode

    source = as_source(split)
    if source is None:
        return [], []
    last = min(SAMPLE, len(source)) - 1 if source.store.sequential else len(source) - 1
    sizes: list[tuple[int, int]] = []
    images: list[Pixels] = []
    pixels = 0.0
    for place in np.unique(np.linspace(0, last, SAMPLE).round().astype(int)).tolist():
        try:
            with source.open(place) as stream, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with Image.open(stream, formats=FORMATS) as image:
                    size = (image.height, image.width)
                pixels += size[0] * size[1]
                if pixels > MOST_PIXELS and images:
                    sizes.append(size)
                    continue
                stream.seek(0)
                decoded = decode(stream, (SIDE, SIDE), 3)
        except Exception:  # reported when the file is read
            continue
        sizes.append(size)
        images.append(decoded.transpose(1, 2, 0))
    return sizes, images


def data_facts(info: DatasetInfo, images: int) -> DataFacts:
    """The facts about a data set; a few images of a path are decoded.

    Args:
        info: of the data.
        images: to train on, per epoch.
    """
    if info.opened is not None:
        splits, names = info.opened.splits, info.opened.class_names
    elif info.layout is not None:
        splits, names = {**info.layout[0]}, info.layout[1]
    else:
        own = info.augment if info.path is None and info.size is not None else None
        return DataFacts(images, info.num_classes, {}, info.size, info.size, own_augment=own)
    split = splits["train"]
    counts = np.bincount(split.labels.numpy(), minlength=len(names)).tolist()
    facts = DataFacts(images, len(names), dict(zip(names, counts, strict=True)))
    sizes, pixels = _sample(split)
    if not pixels:
        return facts
    grey = [np.asarray(image.mean(2).round(), dtype=np.uint8) for image in pixels]
    lost = {side: float(np.mean([lost_detail(image, side) for image in grey])) for side in SIDES}
    return DataFacts(
        images, len(names), facts.classes, min(sizes, key=_area), max(sizes, key=_area), kind_of_images(pixels), lost
    )


def _area(size: tuple[int, int]) -> int:
    return size[0] * size[1]
