"""Images and their masks side by side: images/ and masks/, each with or without train, val and test, or inside them."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import BinaryIO

import torch

from mereo.data.decode import VOID, decode_mask
from mereo.data.files import FileSplit
from mereo.data.names import IMAGE_SUFFIXES, SPLITS
from mereo.data.trees import Tree
from mereo.errors import UsageError

IMAGE_FOLDERS, MASK_FOLDERS = ("images", "image", "imgs"), ("masks", "mask", "annotations")
"""Names of the folders of images and of masks, in any capitals."""
CLASS_FILE = "classes.txt"
"""Names of the classes of masks, one a line, in the order of their indices."""
_ENDINGS = ("", "_mask", "-mask")
"""What the name of a mask may have behind the name of its image."""


def _children(tree: Tree, place: str) -> dict[str, str]:
    """The folders directly in a folder, by their names in small letters."""
    prefix = f"{place}/" if place else ""
    inside = (folder.removeprefix(prefix) for folder in tree.folders if folder.startswith(prefix))
    return {name.lower(): prefix + name for name in inside if name and "/" not in name}


def _pair(folders: Mapping[str, str]) -> tuple[str, str] | None:
    """The folder of images and the folder of masks."""
    images = next((folders[name] for name in IMAGE_FOLDERS if name in folders), None)
    masks = next((folders[name] for name in MASK_FOLDERS if name in folders), None)
    return None if images is None or masks is None else (images, masks)


def _places(tree: Tree) -> dict[str, tuple[str, str]]:
    """The folders of images and of masks of each split; empty for any other folder."""
    top = _children(tree, "")
    both = _pair(top)
    if both is not None:
        images, masks = (_children(tree, place) for place in both)
        inside = {SPLITS[name]: (images[name], masks[name]) for name in images if name in SPLITS and name in masks}
        return inside or {"train": both}
    found = {SPLITS[name]: _pair(_children(tree, place)) for name, place in top.items() if name in SPLITS}
    return {split: pair for split, pair in found.items() if pair is not None}


def _files(tree: Tree, place: str) -> dict[str, str]:
    """The image files below a folder, by their path in it without the suffix."""
    prefix = f"{place}/"
    files = [file for file in tree.files if file.startswith(prefix) and file.lower().endswith(IMAGE_SUFFIXES)]
    return {file.removeprefix(prefix).rpartition(".")[0]: file for file in files}


def _matched(tree: Tree, places: tuple[str, str]) -> list[tuple[str, str]]:
    """Images with their masks, sorted; images without one are left out with a warning."""
    images, masks = (_files(tree, place) for place in places)
    pairs, alone = [], []
    for name, image in sorted(images.items()):
        mask = next((masks[name + ending] for ending in _ENDINGS if name + ending in masks), None)
        if mask is None:
            alone.append(image)
        else:
            pairs.append((image, mask))
    if not pairs:
        raise UsageError(
            f"{tree.path / places[0]} has {len(images)} images, and none has a mask of its name in"
            f" {tree.path / places[1]}; name masks as their images, with any suffix."
        )
    if alone:
        count = "1 image has" if len(alone) == 1 else f"{len(alone):,} images have"
        warnings.warn(
            f"{count} no mask in {tree.path / places[1]}, such as {alone[0]!r}; left out.", UserWarning, stacklevel=2
        )
    return pairs


def class_names_of(masks: Sequence[Callable[[], BinaryIO]], listed: Path, data: object) -> tuple[str, ...]:
    """Names of the classes: the lines of a file, or without it the indices up to the largest in the training masks.

    Args:
        masks: what opens each of them.
        listed: the file of names.
        data: what the masks are of, for messages.

    Raises:
        UsageError: for masks of fewer than two classes.
    """
    if listed.is_file():
        names = tuple(line.strip() for line in listed.read_text("utf-8-sig").splitlines() if line.strip())
        where = str(listed)
    else:
        with ThreadPoolExecutor() as pool:
            found = set[int]().union(*pool.map(_indices, masks))
        names = tuple(str(number) for number in range(max(found - {VOID}, default=-1) + 1))
        where = f"{data}, in its masks,"
        if len(names) == 1 and VOID in found:
            raise UsageError(
                f"{data} has masks with the indices 0 and {VOID} only, and {VOID} is no class; write the object as"
                " 1 where it is white."
            )
    if len(names) < 2:
        raise UsageError(f"{where} has {len(names)} classes; a segmentation needs at least two.")
    if len(names) > VOID:
        raise UsageError(f"{where} has {len(names)} classes; masks of 8 bits have at most {VOID}.")
    return names


def _indices(mask: Callable[[], BinaryIO]) -> set[int]:
    """The indices in a mask; none for one that cannot be read, which is reported when it is read."""
    try:
        with mask() as stream:
            counts = torch.bincount(torch.from_numpy(decode_mask(stream)).flatten().int(), minlength=1)
    except Exception:  # a broken file can make a decoder raise nearly anything
        return set()
    return set(counts.nonzero().flatten().tolist())


def mask_split(tree: Tree, pairs: Sequence[tuple[str, str]], classes: int) -> FileSplit:
    """A split of images with masks, and without labels."""
    images, masks = [image for image, _ in pairs], [mask for _, mask in pairs]
    return FileSplit(tree, images, torch.zeros(len(images), dtype=torch.int64), masks, classes)


def read_mask_layout(tree: Tree, *, evaluation: bool = False) -> tuple[dict[str, FileSplit], tuple[str, ...]] | None:
    """The splits of images with masks that a folder has, and the class names; None for any other folder.

    Args:
        tree: the folder, or a zip archive of one.
        evaluation: whether the images are for a trained network, which needs no training images.
    """
    places = _places(tree)
    if not places:
        return None
    if "train" not in places and not evaluation:
        raise UsageError(f"data is {str(tree.path)!r}, which has {', '.join(places)} and no train/ with masks; add it.")
    pairs = {split: _matched(tree, pair) for split, pair in places.items()}
    first = pairs["train" if "train" in pairs else next(iter(pairs))]
    names = class_names_of([partial(tree.open, mask) for _, mask in first], tree.path / CLASS_FILE, tree.path)
    return {split: mask_split(tree, each, len(names)) for split, each in pairs.items()}, names
