"""What is known of a data set before it is read, from its list and a sample of its images."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.data.decode import VOID
from mereo.data.raw import Request
from mereo.data.registry import DatasetInfo
from mereo.data.stream import as_source

COLOUR, GREY, TEXT = "photographs", "grey images", "text or drawings"
SAMPLE, SIDE, MOST_PIXELS = 48, 128, 4e7
"""Number of images that are decoded, their size, and number of pixels after which no further one is decoded."""
COLOURLESS = 6.0
"""Mean distance between the channels of a pixel, of 255, below which images are grey."""
NEAR, PLAIN_SHARE = 20, 0.65
"""Text has at least this share of its pixels near the commonest value."""
DETAILED, PART = 48, "zoom=0.5:1"
"""Side of images in pixels from which on a part of a photograph shows enough, and what takes such a part."""
UNEVEN, FEWEST = 5, 5
"""Ratio of the sizes of classes from which on they are balanced; images of a class that can be learned."""
DIRECTIONS = frozenset({"left", "right"})
MASKS, MASK_SIDES, FAITHFUL = 16, (32, 48, 64, 96, 128, 192, 256, 384, 512), 0.97
"""Masks that are looked at, the sides to which they are reduced, and the mean IoU with themselves that must be left."""


@dataclass(frozen=True)
class DataFacts:
    """Facts on which the choice of settings is based.

    Attributes:
        images: to train on, per epoch.
        num_classes: how many classes.
        classes: training images of each class by name; empty if only the number of classes is known.
        largest: the longest side of the sampled images; None if unknown.
        kind: COLOUR, GREY or TEXT; None if no image was looked at.
        colour: whether the images are in colour.
        finest: the smallest side at which masks lose little of their form, see `finest_side`; None without masks.
    """

    images: int
    num_classes: int
    classes: Mapping[str, int] = field(default_factory=dict)
    largest: int | None = None
    kind: str | None = None
    colour: bool = False
    finest: int | None = None

    @property
    def uneven(self) -> bool:
        """Whether the largest class has many more images than the smallest."""
        return bool(self.classes) and max(self.classes.values()) >= UNEVEN * min(self.classes.values())

    @property
    def too_few(self) -> list[str]:
        """The classes with too few images; empty if every class has few."""
        few = [name for name, count in self.classes.items() if 0 < count < FEWEST]  # 0: classes that are only tested
        return few if len(few) < len(self.classes) else []

    @property
    def mirrored_means_another(self) -> bool:
        """Whether a mirrored image may belong to another class: text, signs named by one character, directions."""
        words = {word for name in self.classes for word in name.lower().replace("-", "_").split("_")}
        signs = bool(self.classes) and all(len(name) == 1 for name in self.classes)
        return self.kind == TEXT or signs or bool(words & DIRECTIONS)

    def augmentation(self, side: int, *, mirror: bool = True) -> tuple[tuple[str, ...], str]:
        """The augmentation of images of a side, and why; `mirror` is whether mirrored images may mean the same."""
        part = PART if side >= DETAILED else f"crop={max(side // 8, 1)}"
        if self.kind is None:
            return ("auto",), "the default of the data set"
        if not mirror:
            return ("none",), "numbers may follow place, size and side: images as they are"
        if self.kind == TEXT:
            return ("zoom=0.75:1",), "text or drawings: never mirrored, no black borders"
        if self.mirrored_means_another:
            return (part,), f"{self.kind} whose class names are signs or directions: not mirrored"
        return (part, "flip"), self.kind


def kind_of_images(images: Sequence[npt.NDArray[np.uint8]]) -> str:
    """Photographs, grey images, or text and drawings.

    Shapes: images uint8 (height, width, 3).
    """
    if np.mean([(i.max(2).astype(np.int64) - i.min(2)).mean() for i in images]) >= COLOURLESS:
        return COLOUR
    greys = [image[..., 0].astype(np.int64) for image in images]
    shares = [(np.abs(grey - np.bincount(grey.ravel()).argmax()) <= NEAR).mean() for grey in greys]
    return TEXT if np.median(shares) >= PLAIN_SHARE else GREY


def finest_side(masks: Tensor) -> int:
    """The smallest of MASK_SIDES at which masks, reduced to it and enlarged again, have a mean IoU of FAITHFUL with
    themselves; the largest one if none has.

    Shapes: masks uint8 (n, height, width), VOID for pixels of no class.
    """
    counted = masks != VOID
    for side in MASK_SIDES:
        reduced = F.interpolate(masks.unsqueeze(1).float(), (side, side), mode="nearest-exact")
        again = F.interpolate(reduced, masks.shape[1:], mode="nearest-exact").squeeze(1)
        pairs = 256 * masks[counted].long() + again[counted].long()
        table = torch.bincount(pairs, minlength=2**16).view(256, 256)
        both = table.diagonal()
        either = (table.sum(0) + table.sum(1) - both)[:VOID]
        if (both[:VOID] / either)[either > 0].mean() >= FAITHFUL:
            return side
    return MASK_SIDES[-1]


def data_facts(info: DatasetInfo, images: int) -> DataFacts:
    """The facts about a data set; a few images of a path, or in memory, are looked at.

    Args:
        info: of the data.
        images: to train on, per epoch.
    """
    from PIL import Image

    from mereo.data.decode import FORMATS, decode

    largest = None if info.size is None else max(info.size)
    facts = DataFacts(images, info.num_classes, largest=largest, colour=info.in_chans == 3)
    if info.opened is not None:
        split, names = info.opened.splits["train"], info.opened.class_names
    elif info.layout is not None:
        split, names = info.layout.splits["train"], info.layout.names
    else:
        return facts
    if "labels" in info.fields:
        counts = np.bincount(split.labels.numpy(), minlength=len(names)).tolist()
        facts = replace(facts, num_classes=len(names), classes=dict(zip(names, counts, strict=True)))
    if "masks" in info.fields:
        places = torch.linspace(0, len(split) - 1, min(MASKS, len(split))).round().long()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what cannot be read is reported when the images are read
            read = split.take(places).read(Request((MASK_SIDES[-1], MASK_SIDES[-1]), info.in_chans))
        facts = replace(facts, finest=finest_side(read.fields["masks"]))
    source = as_source(split)
    if source is None:
        places = torch.linspace(0, len(split) - 1, min(SAMPLE, len(split))).round().long()
        sample = split.take(places).read(Request((SIDE, SIDE), info.in_chans)).images
        kind = kind_of_images([*sample.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy()])
        return replace(facts, kind=kind, colour=kind == COLOUR)
    # Where neighbours are read together, the first ones: distant ones would read all of their neighbours too.
    last = min(SAMPLE, len(source)) - 1 if source.store.sequential else len(source) - 1
    sides, pixels, looked = list[int](), 0, list[npt.NDArray[np.uint8]]()
    for place in np.unique(np.linspace(0, last, SAMPLE).round().astype(int)).tolist():
        try:
            with source.open(place) as stream, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with Image.open(stream, formats=FORMATS) as image:
                    side, pixels = max(image.size), pixels + math.prod(image.size)
                if pixels <= MOST_PIXELS or not looked:
                    stream.seek(0)
                    looked.append(decode(stream, (SIDE, SIDE), 3).transpose(1, 2, 0))
        except Exception:  # reported when the file is read
            continue
        sides.append(side)
    if not looked:
        return facts
    kind = kind_of_images(looked)
    return replace(facts, largest=max(sides), kind=kind, colour=kind == COLOUR)
