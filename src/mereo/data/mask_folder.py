"""Images and their masks: images/ and masks/ with or without splits, train/ beside trainannot/, Pascal VOC, or a mask
beside each image; masks of indices, grey levels or colours."""

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from mereo.data.contents import Contents, name_of, suffix_of
from mereo.data.decode import VOID, Colours, decode_mask
from mereo.data.encoded import FileSplit
from mereo.data.files import Layout
from mereo.data.names import IMAGE_SUFFIXES, SPLITS, is_part, split_of
from mereo.data.trees import Tree
from mereo.errors import UsageError

IMAGE_FOLDERS = ("images", "image", "imgs", "img", "jpegimages", "frames")
MASK_FOLDERS = (
    "masks", "mask", "segmentationclass", "segmentationclasspng", "annotations", "annotation", "labels", "label", "gt",
    "ground_truth", "groundtruth",
)  # fmt: skip
"""Names of the folders of images and of masks, in any capitals."""
CLASS_FILE = "classes.txt"
"""Names of the classes of masks, one a line, in the order of their indices."""
COLOUR_FILES = ("class_dict.csv", "classes.csv", "label_colors.txt", "labelmap.txt")
"""Colours and names of the classes: name, red, green and blue, in any order and with any separator."""
_ENDINGS = ("", "_mask", "-mask", "_label", "_gt", "_L", "_P", "_seg", "_segmentation")
"""What the name of a mask may have behind the name of its image."""
_OF_IMAGE = re.compile(r"[ _-](images?|img)$", re.IGNORECASE)
"""What the name of an image may have in that place: 001_image.png beside 001_mask.png."""
_BEHIND = re.compile(r"[ _-]?(annot|annotations?|labels?|masks?|gt|seg)", re.IGNORECASE)
"""What the name of a folder of masks may have behind the name of the folder of its images."""
_LIST = re.compile(r"(?:.*/)?ImageSets/Segmentation/(train|val|test)\.txt")
_FEW_LEVELS, _BRIGHT = 8, 128
"""Masks with few grey levels, the brightest near white, have levels in place of indices: the largest number of
levels, and the least brightness."""
_NEAR = 13
"""In masks with smooth edges, the number of darkest levels that count as black, and of brightest ones as white."""
_LOOKED_AT = 12
_LOSSY, _COLOURS_OF_A_MASK, _SHARE_OF_A_MASK = (".jpg", ".jpeg"), 8, 0.9
"""Suffixes of photographs, beside which a file of the same name may be a mask, and the colours that nearly all pixels
of a mask have, with their least share."""


class MaskClasses(NamedTuple):
    """The classes of masks by name, with the colours that masks have if they are no indices."""

    names: tuple[str, ...]
    colours: Colours = ()


def _children(contents: Contents, place: str) -> dict[str, str]:
    """The folders directly in a folder, by their names in small letters."""
    return {name_of(folder).lower(): folder for folder in contents.folders(place)}


def _pair(contents: Contents, folders: Mapping[str, str]) -> tuple[str, str] | None:
    """The folder of images and the folder of masks; both hold images.

    Beside masks, the only other folder of images is theirs if its name has words for parts only: Training_Images/.
    """
    masks = next((folders[n] for n in MASK_FOLDERS if n in folders and contents.images[folders[n]]), None)
    images = next((folders[name] for name in IMAGE_FOLDERS if name in folders), None)
    others = [place for place in folders.values() if place != masks and contents.images[place]]
    if images is None and len(others) == 1 and is_part(name_of(others[0])):
        images = others[0]
    return None if images is None or masks is None else (images, masks)


def _places(contents: Contents) -> dict[str, tuple[str, str]]:
    """The folders of images and of masks of each split; empty for any other folder."""
    top = _children(contents, "")
    both = _pair(contents, top)
    if both is not None:
        images, masks = (_children(contents, place) for place in both)
        inside = {SPLITS[name]: (images[name], masks[name]) for name in images if name in SPLITS and name in masks}
        return inside or {"train": both}
    found = {SPLITS[name]: _pair(contents, _children(contents, place)) for name, place in top.items() if name in SPLITS}
    if not any(found.values()):
        # train beside trainannot, train_images beside train_masks
        for name, place in top.items():
            split, base = split_of(name), re.sub(r"[ _-]?images?$", "", name)
            behind = [top[other] for other in top if other != name and other.startswith(base)]
            named = [other for other in behind if _BEHIND.fullmatch(name_of(other).lower()[len(base) :])]
            if split is not None and base and named and contents.images[named[0]] and contents.images[place]:
                found[split] = (place, named[0])
    return {split: pair for split, pair in found.items() if pair is not None}


def _files(tree: Tree, place: str) -> dict[str, str]:
    """The image files below a folder, by their path in it without the suffix."""
    prefix = f"{place}/"
    files = [file for file in tree.files if file.startswith(prefix) and file.lower().endswith(IMAGE_SUFFIXES)]
    return {file.removeprefix(prefix).rpartition(".")[0]: file for file in files}


def _matched(tree: Tree, places: tuple[str, str], *, some: bool) -> list[tuple[str, str]]:
    """Images with their masks, sorted; images without one are left out, with a warning unless only some have masks."""
    images, masks = (_files(tree, place) for place in places)
    pairs, alone = [], []
    for name, image in sorted(images.items()):
        candidates = (base + ending for base in (name, _OF_IMAGE.sub("", name)) for ending in _ENDINGS)
        mask = next((masks[each] for each in candidates if each in masks), None)
        if mask is None:
            alone.append(image)
        else:
            pairs.append((image, mask))
    if not pairs:
        raise UsageError(
            f"{tree.path / places[0]} has {len(images)} images, and none has a mask of its name in"
            f" {tree.path / places[1]}; name masks as their images, with any suffix."
        )
    if alone and not some:
        count = "1 image has" if len(alone) == 1 else f"{len(alone):,} images have"
        warnings.warn(
            f"{count} no mask in {tree.path / places[1]}, such as {alone[0]!r}; left out.", UserWarning, stacklevel=2
        )
    return pairs


def listed_names(listed: Path) -> tuple[str, ...] | None:
    """The names of classes in a file, one a line; None without such a file."""
    if not listed.is_file():
        return None
    return tuple(line.strip() for line in listed.read_text("utf-8-sig").splitlines() if line.strip())


def mask_classes(
    masks: Sequence[Callable[[], BinaryIO]], named: Sequence[str] | None, coloured: MaskClasses | None, data: object
) -> MaskClasses:
    """The classes of masks: as they are listed, or else what the training masks hold.

    Masks of black and white, or of few bright grey levels, have these as their colours.

    Args:
        masks: functions that open them.
        named: the names in the order of the indices, if they are listed.
        coloured: names and colours, if they are listed.
        data: the name of the data, for messages.

    Raises:
        UsageError: for masks of fewer than two classes, and for colours that are not listed.
    """
    if coloured is not None and _colours_of(masks[:1]):
        classes = coloured
    else:
        if named is None and coloured is not None:
            named = coloured.names
        found = _levels(masks if named is None else masks[:_LOOKED_AT])
        if not found and (colours := _colours_of(masks[:_LOOKED_AT])):
            shown = ", ".join(map(str, colours[:4]))
            raise UsageError(
                f"{data} has masks in {len(colours)} colours ({shown}, ...), and nothing says which classes they are;"
                " list them in class_dict.csv beside the folders: name,r,g,b and a line for each class."
            )
        bright = len(found) <= _FEW_LEVELS and max(found - {VOID}, default=0) >= _BRIGHT
        if found == {0, VOID} or (bright and len(found) > 1):
            levels = sorted(found)
            if named is None or len(named) != len(levels):
                named = ("background", "object") if len(levels) == 2 else tuple(map(str, levels))
            classes = MaskClasses(tuple(named), tuple((level, level, level) for level in levels))
        else:
            largest = max(found - {VOID}, default=-1)
            classes = MaskClasses(tuple(map(str, range(largest + 1))) if named is None else tuple(named))
    if len(classes.names) < 2:
        raise UsageError(f"{data} has masks of {len(classes.names)} classes; a segmentation needs at least two.")
    if len(classes.names) > VOID:
        raise UsageError(f"{data} has {len(classes.names)} classes; masks of 8 bits have at most {VOID}.")
    return classes


def _levels(masks: Iterable[Callable[[], BinaryIO]]) -> set[int]:
    """The indices in masks; a mask that cannot be read is skipped here, and reported when it is read.

    Black and white if nearly all pixels are one of the two and the others are of lossy files or of smooth edges.
    """
    counts, lossy = np.zeros(VOID + 1, np.int64), False
    with ThreadPoolExecutor() as pool:
        for found, is_lossy in pool.map(_counts, masks):
            counts += found
            lossy = lossy or is_lossy
    black, edges, white = counts[:_NEAR].sum(), counts[_NEAR:-_NEAR].nonzero()[0], counts[-_NEAR:].sum()
    smooth = white and len(edges) > _FEW_LEVELS and edges[-1] >= _BRIGHT
    if (lossy or smooth) and black + white >= 0.9 * counts.sum():
        return {0, VOID}
    return set(counts.nonzero()[0].tolist())


def _counts(mask: Callable[[], BinaryIO]) -> tuple[NDArray[np.int64], bool]:
    """How many pixels of a mask have each index, and whether its file is lossy."""
    try:
        with mask() as stream:
            lossy = stream.read(2) == b"\xff\xd8"
            stream.seek(0)
            return np.bincount(decode_mask(stream).ravel(), minlength=VOID + 1), lossy
    except Exception:  # a broken file can make a decoder raise nearly anything
        return np.zeros(VOID + 1, np.int64), False


def _colours_of(masks: Sequence[Callable[[], BinaryIO]]) -> list[tuple[int, ...]]:
    """The colours of masks that are pictures in colour, the commonest first; none for masks of indices."""
    from PIL import Image

    found: dict[tuple[int, ...], int] = {}
    for mask in masks:
        try:
            with mask() as stream, Image.open(stream) as image:
                counts = image.convert("RGB").getcolors(2**16) if image.mode in ("RGB", "RGBA") else None
        except Exception:  # reported when the file is read
            continue
        for count, colour in counts or ():
            assert isinstance(colour, tuple)
            found[colour] = found.get(colour, 0) + count
    if all(len({*colour}) == 1 for colour in found):
        return []
    return sorted(found, key=lambda colour: -found[colour])


def _coloured(contents: Contents) -> MaskClasses | None:
    """The names and colours of the classes in a file of the tree; None without such a file."""
    files = [file for file in contents.tree.files if name_of(file).lower() in COLOUR_FILES]
    for file in files:
        names, colours = [], []
        for line in contents.text(file).splitlines():
            fields = [field.strip() for field in re.split(r"[,;:\t ]+", line)]
            numbers = [int(field) for field in fields if field.isdigit()]
            words = [field for field in fields if field and not field.isdigit()]
            if len(numbers) == 3 and words and max(numbers) <= VOID and not line.startswith("#"):
                names.append(" ".join(words))
                colours.append((numbers[0], numbers[1], numbers[2]))
        if len(names) > 1:
            return MaskClasses(tuple(names), tuple(colours))
    return None


def mask_split(tree: Tree, pairs: Sequence[tuple[str, str]], classes: MaskClasses) -> FileSplit:
    """A split of images with masks, and without labels."""
    images, masks = [image for image, _ in pairs], [mask for _, mask in pairs]
    nothing = torch.zeros(len(images), dtype=torch.int64)
    return FileSplit(tree, images, nothing, masks, len(classes.names), classes.colours)


def _by_lists(contents: Contents, pairs: Sequence[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    """The splits of Pascal VOC, whose lists name images without a suffix; without lists, all are for training."""
    by_name = {Path(image).stem: (image, mask) for image, mask in pairs}
    splits: dict[str, list[tuple[str, str]]] = {}
    for file in contents.tree.files:
        if (match := _LIST.fullmatch(file)) is not None:
            listed = [by_name[word] for word in contents.text(file).split() if word in by_name]
            if listed:
                splits[SPLITS[match[1]]] = listed
    return splits if "train" in splits else {"train": [*pairs]}


def masks_beside(contents: Contents) -> dict[str, list[tuple[str, str]]]:
    """Images whose masks lie in the same folder, by split; empty if most have none.

    A mask has the name of its image with an ending, cat_mask.png; or the same name with a suffix of a lossless format,
    cat.png beside cat.jpg, if nearly all of these hold few colours.
    """
    images = [file for file in contents.tree.files if suffix_of(file) in IMAGE_SUFFIXES]
    by_name = {file.rpartition(".")[0]: file for file in images}
    pairs = [
        (image, by_name[name + ending])
        for name, image in by_name.items()
        for ending in ("_mask", "-mask", "_masks")
        if name + ending in by_name
    ]
    if 3 * len(pairs) < len(images):
        lossless = {file.rpartition(".")[0]: file for file in images if suffix_of(file) not in _LOSSY}
        lossy = [file for file in images if suffix_of(file) in _LOSSY]
        pairs = [(file, lossless[name]) for file in lossy if (name := file.rpartition(".")[0]) in lossless]
        drawn = [_is_drawn(contents.tree, mask) for _, mask in pairs[:: max(len(pairs) // _LOOKED_AT, 1)]]
        if 3 * len(pairs) < len(images) or sum(drawn) < _SHARE_OF_A_MASK * len(drawn):
            return {}
    splits: dict[str, list[tuple[str, str]]] = {}
    for image, mask in pairs:
        splits.setdefault(SPLITS.get(image.partition("/")[0].lower(), "train"), []).append((image, mask))
    return splits


def _is_drawn(tree: Tree, file: str) -> bool:
    """Whether nearly all pixels of a picture have one of few colours, as in a mask; False for an unreadable one."""
    from PIL import Image

    try:
        with tree.open(file) as stream, Image.open(stream) as image:
            counts = sorted(count for count, _ in image.convert("RGB").getcolors(image.width * image.height) or ())
            return sum(counts[-_COLOURS_OF_A_MASK:]) >= _SHARE_OF_A_MASK * sum(counts)
    except Exception:  # a broken file can make a decoder raise nearly anything; it is reported when it is read
        return False


def read_mask_layout(contents: Contents, *, beside: bool, evaluation: bool = False) -> Layout | None:
    """The splits of images with masks that a folder has, and the class names; None for any other folder.

    Args:
        contents: of the folder, or of a zip archive of one.
        beside: whether masks may lie in the folders of their images.
        evaluation: whether the images are for a trained network, which needs no training images.
    """
    tree = contents.tree
    places = _places(contents)
    if places:
        if "train" not in places and not evaluation:
            raise UsageError(
                f"data is {str(tree.path)!r}, which has {', '.join(places)} and no train/ with masks; add it."
            )
        voc = any(name_of(masks).lower().startswith("segmentationclass") for _, masks in places.values())
        pairs = {split: _matched(tree, pair, some=voc) for split, pair in places.items()}
        if [*pairs] == ["train"]:
            pairs = _by_lists(contents, pairs["train"])
        folders = " with ".join(f"{place}/" for place in places["train" if "train" in places else next(iter(places))])
    else:
        pairs, folders = masks_beside(contents) if beside else {}, "a mask beside each image"
    if not pairs:
        return None
    first = pairs["train" if "train" in pairs else next(iter(pairs))]
    named = listed_names(tree.path / CLASS_FILE)
    classes = mask_classes([partial(tree.open, mask) for _, mask in first], named, _coloured(contents), tree.path)
    of = "colours" if classes.colours else "indices"
    evidence = f"masks of {of}: {folders}, splits {', '.join(pairs)}"
    return Layout({split: mask_split(tree, each, classes) for split, each in pairs.items()}, classes.names, evidence)
