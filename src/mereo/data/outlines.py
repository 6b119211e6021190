"""Masks drawn from the outlines of objects: polygons of COCO, YOLO and labelme, and run lengths of COCO."""

import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from mereo.data.box_folder import annotated, in_order, warn_of
from mereo.data.boxes import Outline
from mereo.data.contents import Contents
from mereo.data.decode import VOID
from mereo.data.encoded import FileSplit, Store
from mereo.data.files import Layout
from mereo.errors import UsageError

BACKGROUND = "background"
_BITS, _MORE, _SIGN, _FIRST, _LONGEST = 5, 0x20, 0x10, 48, 40


class Drawing(NamedTuple):
    """The objects of an image: the class and the outline of each, in pixels."""

    image: str
    size: tuple[int, int]
    objects: Sequence[tuple[str, Outline]]


class Part(NamedTuple):
    """Where an object is in a part of an image: the rows and columns, and bool of that size."""

    place: tuple[slice, slice]
    pixels: NDArray[np.bool_]


def _counts(text: str) -> list[int]:
    """The run lengths in a compressed text of COCO: five bits a letter, and from the third on differences to the one
    before the last."""
    counts: list[int] = []
    value = shift = 0
    for letter in text.encode():
        bits = letter - _FIRST
        if shift > _LONGEST:
            raise ValueError("run lengths of an object that are too long")
        value |= (bits & (_MORE - 1)) << shift
        shift += _BITS
        if not bits & _MORE:
            value -= (1 << shift) if bits & _SIGN else 0
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value = shift = 0
    return counts


def pixels_of(runs: Mapping[str, Any], size: tuple[int, int]) -> NDArray[np.bool_]:
    """Where an object is by its run lengths, which go down the columns and begin outside: bool (height, width)."""
    found = runs.get("counts", ())
    counts = np.asarray(_counts(found) if isinstance(found, str) else found, dtype=np.int64)
    if list(runs.get("size", ())) != list(size) or (counts < 0).any() or counts.sum() != math.prod(size):
        raise ValueError(f"run lengths of an object that do not fit {size[0]} x {size[1]} pixels")
    return np.repeat(np.arange(len(counts)) % 2 == 1, counts).reshape(size[1], size[0]).T


def pixels_inside(polygon: Sequence[float], size: tuple[int, int]) -> Part:
    """Where the centres of pixels are inside a polygon x0, y0, x1, y1, ..., in the part of the image around it."""
    points = np.asarray(polygon, dtype=np.float64).reshape(-1, 2)
    left, top = np.floor(points.min(0)).clip(0, (size[1], size[0])).astype(int).tolist()
    right, bottom = np.ceil(points.max(0)).clip((left, top), (size[1], size[0])).astype(int).tolist()
    x, y = (points - (left, top)).T
    to_x, to_y, rows = np.roll(x, -1), np.roll(y, -1), np.arange(bottom - top) + 0.5
    side, row = np.nonzero((y[:, None] <= rows) != (to_y[:, None] <= rows))  # the rows that each side crosses
    crossed = x[side] + (rows[row] - y[side]) * ((to_x - x)[side] / (to_y - y)[side])
    turns = np.zeros((bottom - top, right - left + 1), dtype=np.int64)
    np.add.at(turns, (row, np.ceil(crossed - 0.5).clip(0, right - left).astype(np.int64)), 1)
    return Part((slice(top, bottom), slice(left, right)), turns.cumsum(1)[:, :-1] % 2 == 1)


def draw(drawing: Drawing, index: Mapping[str, int]) -> NDArray[np.uint8]:
    """The index of the class of each pixel, small objects over large ones; 255 for crowds and what is to be ignored.

    Shapes: -> uint8 (height, width).
    """
    mask, layers = np.zeros(drawing.size, dtype=np.uint8), []
    for name, outline in drawing.objects:
        whole = slice(None), slice(None)
        parts = [pixels_inside(polygon, drawing.size) for polygon in outline.polygons]
        parts += [] if outline.runs is None else [Part(whole, pixels_of(outline.runs, drawing.size))]
        area = sum(int(part.pixels.sum()) for part in parts)
        layers.append((area, VOID if outline.crowd else index[name], parts))
    for _, value, parts in sorted(layers, key=lambda layer: -layer[0]):
        for part in parts:
            mask[part.place][part.pixels] = value
    return mask


class DrawnMasks(Store):
    """Masks that are drawn when they are read."""

    def __init__(self, drawings: Sequence[Drawing], index: Mapping[str, int]) -> None:
        self._drawings, self._index = drawings, index

    def open(self, number: int) -> BinaryIO:
        from PIL import Image

        stream = io.BytesIO()
        Image.fromarray(draw(self._drawings[number], self._index)).save(stream, "PNG", compress_level=1)
        stream.seek(0)
        return stream

    def name(self, number: int) -> str:
        return f"the outlines of {self._drawings[number].image}"


def _good(outline: Outline, scale: tuple[float, float], counts: Counter[str]) -> Outline | None:
    """The outline with its polygons in pixels; None, counted, if there is none."""
    if outline.runs is not None:
        return outline
    polygons = [
        [value * scale[place % 2] for place, value in enumerate(polygon)]
        for polygon in outline.polygons
        if isinstance(polygon, list)
        and len(polygon) >= 6
        and len(polygon) % 2 == 0
        and all(isinstance(value, int | float) and math.isfinite(value) for value in polygon)
    ]
    counts["objects with a box and no outline, left out"] += not outline.polygons
    counts["polygons without three corners, left out"] += len(outline.polygons) - len(polygons)
    return outline._replace(polygons=polygons) if polygons else None


def read_outline_layout(contents: Contents, names: Sequence[str] = (), *, evaluation: bool = False) -> Layout:
    """The splits of images with outlined objects that a tree has, and the class names, the background first.

    Args:
        contents, evaluation: as in `read_box_layout`.
        names: of the classes of a trained network, in their order; empty for the classes of the outlines.

    Raises:
        UsageError: as `read_box_layout`, and without outlines.

    Warns:
        UserWarning: with the numbers of objects, images and annotations that were left out, and why.
    """
    counts = Counter[str]()
    kind, parts = annotated(contents, counts, evaluation=evaluation)
    drawings: dict[str, list[Drawing]] = {}
    for split, rows in parts.items():
        drawings[split] = []
        for boxed, (height, width) in rows:
            scale = (width, height) if boxed.relative else (1, 1)
            given = boxed.outlines or [Outline()] * len(boxed.names)
            good = [(name, _good(each, scale, counts)) for name, each in zip(boxed.names, given, strict=True)]
            objects = [(name, outline) for name, outline in good if outline is not None]
            drawings[split].append(Drawing(boxed.image, (height, width), objects))
    objects = [each for part in drawings.values() for drawing in part for each in drawing.objects]
    found = {name for name, outline in objects if not outline.crowd}
    where = f"data is {str(contents.tree.path)!r}, which has"
    if not found:
        raise UsageError(f"{where} boxes in {kind} and no outlines of objects; give --task detection.")
    index = in_order(found, names or (BACKGROUND, *sorted(found - {BACKGROUND})), contents)
    if len(index) > VOID:
        raise UsageError(f"{where} {len(index)} classes; masks of 8 bits have at most {VOID}.")
    warn_of(counts, contents)
    splits = {}
    for split, part in drawings.items():
        files = [drawing.image for drawing in part]
        splits[split] = FileSplit(contents.tree, files, torch.zeros(len(files), dtype=torch.int64))
        splits[split].masks, splits[split].classes = DrawnMasks(part, index), len(index)
    evidence = f"outlines in {kind}: {len(objects):,} objects of {len(found)} classes, splits {', '.join(splits)}"
    return Layout(splits, tuple(index), evidence)
