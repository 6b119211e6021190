"""Images with the boxes of their objects, from Pascal VOC, COCO or YOLO folders, as splits for training a detector."""

import warnings
from collections import Counter
from collections.abc import Sequence
from copy import copy
from typing import Self

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mereo.data.boxes import BoxedImage, formats_in, read_boxes
from mereo.data.contents import Contents
from mereo.data.decode import FORMATS
from mereo.data.encoded import FileSplit
from mereo.data.fields import fit_fields
from mereo.data.files import Layout
from mereo.data.motion import IGNORED
from mereo.data.names import SPLITS
from mereo.data.trees import Tree
from mereo.errors import UsageError, nearest
from mereo.runtime.progress import followed

_ORIENTATION = 0x0112
_BORDER = 1.0
"""Pixels that a box may reach beyond its image without a remark: some formats count pixels from 1."""


def padded(boxes: Sequence[Tensor], labels: Sequence[Tensor], most: int = 1) -> dict[str, Tensor]:
    """The fields `boxes` and `box_labels` of a batch, of as many rows as the fullest image has, `most` at least."""
    rows = max(most, *(len(each) for each in labels), 1)
    first = boxes[0].new_zeros(rows, 4), labels[0].new_full((rows,), IGNORED)
    return {
        "boxes": pad_sequence([first[0], *boxes], batch_first=True)[1:].float(),
        "box_labels": pad_sequence([first[1], *labels], batch_first=True, padding_value=IGNORED)[1:].long(),
    }


class BoxedSplit(FileSplit):
    """Image files with boxes in their pixels, which follow the images to the size in which they are read.

    Args:
        tree, files: as in `FileSplit`.
        boxes, labels: of each image, as `padded` gives them.
        sizes: height and width of each file, int64 (n, 2).
    """

    def __init__(self, tree: Tree, files: Sequence[str], fields: dict[str, Tensor], sizes: Tensor) -> None:
        super().__init__(tree, files, torch.zeros(len(files), dtype=torch.int64))
        self.fields, self.sizes = fields, sizes

    def take(self, indices: Tensor) -> Self:
        part = super().take(indices)
        part.sizes = self.sizes[indices]
        return part

    def fitted_to(self, size: tuple[int, int]) -> Self:
        part, moved = copy(self), {name: values.clone() for name, values in self.fields.items()}
        for native in self.sizes.unique(dim=0):
            those = (self.sizes == native).all(1)
            height, width = native.tolist()
            given = {name: values[those] for name, values in self.fields.items()}
            for name, values in fit_fields(given, (height, width), size).items():
                moved[name][those] = values
        part.fields, part.sizes = moved, self.sizes.new_tensor(size).expand_as(self.sizes)
        return part


def _good(boxed: BoxedImage, size: tuple[int, int], counts: Counter[str]) -> tuple[Tensor, list[str]]:
    """The boxes of an image in its pixels, inside of it, and their classes; what is wrong with others is counted."""
    limits = torch.tensor((size[1], size[0], size[1], size[0]), dtype=torch.float32)
    boxes = boxed.boxes * limits if boxed.relative else boxed.boxes
    inside = boxes.clamp(min=0).minimum(limits)
    real = boxes.isfinite().all(1) & (boxes[:, 2:] > boxes[:, :2]).all(1)
    kept = real & (inside[:, 2:] - inside[:, :2] >= 1e-3).all(1)
    beyond = kept & ((boxes - inside).abs() > _BORDER).any(1)
    counts["boxes that are inverted, empty or no numbers, left out"] += int((~real).sum())
    counts["boxes outside of their images, left out"] += int((real & ~kept).sum())
    counts["boxes partly outside of their images, cut"] += int(beyond.sum())
    return inside[kept], [name for name, good in zip(boxed.names, kept.tolist(), strict=True) if good]


def _header(tree: Tree, file: str) -> tuple[int, int] | str:
    """Height and width of an image file, or what is wrong with it."""
    from PIL import Image

    try:
        with tree.open(file) as stream, Image.open(stream, formats=FORMATS) as image:
            turned = image.getexif().get(_ORIENTATION, 1) > 1
            size = image.height, image.width
    except Exception:  # a broken file can make a decoder raise nearly anything
        return "images that cannot be read, left out"
    return "images that their EXIF tag turns, unlike their boxes, left out" if turned else size


def read_box_layout(contents: Contents, names: Sequence[str] = (), *, evaluation: bool = False) -> Layout:
    """The splits of images with boxes that a tree has, and the class names, sorted.

    Images whose annotation lists no object are of the background; images without an annotation are left out.

    Args:
        contents: of a folder, or of a zip archive of one.
        names: of the classes of a trained network, in their order; empty for the classes of the boxes.
        evaluation: whether the images are for a trained network, which needs no training images.

    Raises:
        UsageError: without boxes, with boxes in several formats, and for classes that a trained network does not have.

    Warns:
        UserWarning: with the numbers of boxes, images and annotations that were left out, and why.
    """
    tree, found = contents.tree, formats_in(contents)
    where = f"data is {str(tree.path)!r}, which has"
    if len(found) != 1:
        what = " and in ".join(f"{kind} ({files[0]})" for kind, files in found.items())
        raise UsageError(
            f"{where} boxes in {what}; keep one of them."
            if found
            else f"{where} no boxes in Pascal VOC XML, COCO JSON or YOLO text; task detection needs them."
        )
    counts, missing = Counter[str](), list[str]()
    parts: dict[str, list[tuple[str, Tensor, list[str], tuple[int, int]]]] = {}
    listed = set[str]()
    count = sum(map(contents.is_image, tree.files))
    for boxed in followed(read_boxes(contents, missing), "reading boxes", count):
        listed.add(boxed.image)
        header = _header(tree, boxed.image)
        if isinstance(header, str):
            counts[header] += 1
            continue
        size = header
        boxes, classes = _good(boxed, size, counts)
        parts.setdefault(SPLITS.get(boxed.split, boxed.split), []).append((boxed.image, boxes, classes, size))
    if set(parts) - {""} and "" in parts:
        counts["images in no split, left out"] += len(parts.pop(""))
    if "" in parts:
        parts["train"] = parts.pop("")
    if not parts:
        raise UsageError(f"{where} boxes in {next(iter(found))}, and none of their images; check its paths.")
    if "train" not in parts and not evaluation:
        raise UsageError(f"{where} boxes of {', '.join(parts)} and of no training images; add train.")
    alone = [file for file in contents.tree.files if contents.is_image(file) and file not in listed]
    counts[f"images without an annotation, such as {alone[0]!r}, left out" if alone else ""] += len(alone)
    counts[f"annotations without an image, such as {missing[0]!r}, left out" if missing else ""] += len(missing)
    found_names = {name for rows in parts.values() for _, _, each, _ in rows for name in each}
    order = tuple(names) or tuple(sorted(found_names))
    if not order:
        raise UsageError(f"{where} {sum(map(len, parts.values()))} images and not one box that lies inside of them.")
    if unknown := sorted(found_names - set(order)):
        near = ", ".join(nearest(unknown[0], order)) or ", ".join(order[:5])
        raise UsageError(f"{where} the class {unknown[0]!r}, which the network does not have; it has {near}.")
    index, splits = {name: number for number, name in enumerate(order)}, {}
    most = max(len(each) for rows in parts.values() for _, _, each, _ in rows)
    for split in ("train", "validation", "test"):
        if rows := sorted(parts.get(split, []), key=lambda row: row[0]):
            labels = [torch.tensor([index[name] for name in each], dtype=torch.int64) for _, _, each, _ in rows]
            fields = padded([boxes for _, boxes, _, _ in rows], labels, most)
            sizes = torch.tensor([size for _, _, _, size in rows], dtype=torch.int64)
            splits[split] = BoxedSplit(tree, [file for file, _, _, _ in rows], fields, sizes)
    for what, count in counts.items():
        if count:
            warnings.warn(f"{tree.path}: {what}: {count:,}", UserWarning, stacklevel=2)
    objects = sum(len(each) for rows in parts.values() for _, _, each, _ in rows)
    empty = sum(not each for rows in parts.values() for _, _, each, _ in rows)
    held = f", {empty:,} of them without objects" if empty else ""
    evidence = (
        f"boxes in {next(iter(found))}: {objects:,} objects of {len(order)} classes on"
        f" {sum(map(len, parts.values())):,} images{held}, splits {', '.join(splits)}"
    )
    return Layout(dict(splits), order, evidence)
