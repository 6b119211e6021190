"""Images with the boxes of their objects, from Pascal VOC, COCO, YOLO or labelme folders, as splits for training a
detector."""

import warnings
from collections import Counter
from collections.abc import Collection, Sequence
from copy import copy
from typing import Self

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mereo.data.boxes import FORMATS_OF_BOXES, BoxedImage, formats_in, read_boxes
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
    real, crowds = boxes.isfinite().all(1) & (boxes[:, 2:] > boxes[:, :2]).all(1), boxed.crowds
    there = (inside[:, 2:] - inside[:, :2] >= 1e-3).all(1)
    kept = real & there & ~crowds
    beyond = kept & ((boxes - inside).abs() > _BORDER).any(1)
    counts["boxes around crowds, or marked to be ignored, left out"] += int(crowds.sum())
    counts["boxes that are inverted, empty or no numbers, left out"] += int((~real & ~crowds).sum())
    counts["boxes outside of their images, left out"] += int((real & ~there & ~crowds).sum())
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


def annotated(
    contents: Contents, counts: Counter[str], *, evaluation: bool = False
) -> tuple[str, dict[str, list[tuple[BoxedImage, tuple[int, int]]]]]:
    """The format in which a tree has boxes, and its images with boxes by split, each with its size.

    Args:
        contents: of the tree.
        counts: gets the numbers of images and annotations that are left out, by the reason.
        evaluation: whether the images are for a trained network, which needs no training images.

    Raises:
        UsageError: without boxes, with boxes in several formats, and without training images.
    """
    tree, found = contents.tree, formats_in(contents)
    where = f"data is {str(tree.path)!r}, which has"
    if len(found) != 1:
        what = " and in ".join(f"{kind} ({files[0]})" for kind, files in found.items())
        raise UsageError(
            f"{where} boxes in {what}; keep one of them."
            if found
            else f"{where} no boxes in {FORMATS_OF_BOXES}; task detection needs them."
        )
    kind, missing, listed = next(iter(found)), list[str](), set[str]()
    parts: dict[str, list[tuple[BoxedImage, tuple[int, int]]]] = {}
    count = sum(map(contents.is_image, tree.files))
    for boxed in followed(read_boxes(contents, missing), "reading boxes", count):
        listed.add(boxed.image)
        size = _header(tree, boxed.image)
        if isinstance(size, str):
            counts[size] += 1
        else:
            parts.setdefault(SPLITS.get(boxed.split, boxed.split), []).append((boxed, size))
    if set(parts) - {""} and "" in parts:
        counts["images in no split, left out"] += len(parts.pop(""))
    if "" in parts:
        parts["train"] = parts.pop("")
    if not parts:
        raise UsageError(f"{where} boxes in {kind}, and none of their images; check its paths.")
    if "train" not in parts and not evaluation:
        raise UsageError(f"{where} boxes of {', '.join(parts)} and of no training images; add train.")
    alone = [file for file in tree.files if contents.is_image(file) and file not in listed]
    counts[f"images without an annotation, such as {alone[0]!r}, left out" if alone else ""] += len(alone)
    counts[f"annotations without an image, such as {missing[0]!r}, left out" if missing else ""] += len(missing)
    order = ("train", "validation", "test")
    rows = {split: sorted(parts[split], key=lambda row: row[0].image) for split in order if split in parts}
    return kind, rows


def in_order(found: Collection[str], names: Sequence[str], contents: Contents) -> dict[str, int]:
    """The index of each class: its place among the names of a trained network, or else among all names, sorted."""
    order = tuple(names) or tuple(sorted(found))
    if unknown := sorted(set(found) - set(order)):
        near = ", ".join(nearest(unknown[0], order)) or ", ".join(order[:5])
        raise UsageError(
            f"data is {str(contents.tree.path)!r}, which has the class {unknown[0]!r}, which the network does not have;"
            f" it has {near}."
        )
    return {name: number for number, name in enumerate(order)}


def warn_of(counts: Counter[str], contents: Contents) -> None:
    """A warning for each kind of thing that was left out, with its number."""
    for what, count in counts.items():
        if count:
            warnings.warn(f"{contents.tree.path}: {what}: {count:,}", UserWarning, stacklevel=3)


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
    counts = Counter[str]()
    kind, parts = annotated(contents, counts, evaluation=evaluation)
    rows = {
        split: [(boxed.image, *_good(boxed, size, counts), size) for boxed, size in each]
        for split, each in parts.items()
    }
    every = [row for each in rows.values() for row in each]
    index = in_order({name for _, _, each, _ in every for name in each}, names, contents)
    if not index:
        raise UsageError(
            f"data is {str(contents.tree.path)!r}, which has {len(every)} images and not one box that lies inside of"
            " them."
        )
    most, splits = max(len(each) for _, _, each, _ in every), {}
    for split, part in rows.items():
        labels = [torch.tensor([index[name] for name in each], dtype=torch.int64) for _, _, each, _ in part]
        fields = padded([boxes for _, boxes, _, _ in part], labels, most)
        sizes = torch.tensor([size for _, _, _, size in part], dtype=torch.int64)
        splits[split] = BoxedSplit(contents.tree, [file for file, _, _, _ in part], fields, sizes)
    warn_of(counts, contents)
    objects, empty = sum(len(each) for _, _, each, _ in every), sum(not each for _, _, each, _ in every)
    held = f", {empty:,} of them without objects" if empty else ""
    outlined = any(
        outline.polygons or outline.runs for each in parts.values() for b, _ in each for outline in b.outlines
    )
    also = "; with outlines, which --task segmentation learns" if outlined else ""
    evidence = (
        f"boxes in {kind}: {objects:,} objects of {len(index)} classes on {len(every):,} images{held}, splits"
        f" {', '.join(splits)}{also}"
    )
    return Layout(dict(splits), tuple(index), evidence)
