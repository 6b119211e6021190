"""Boxes and outlines of the objects of images: Pascal VOC XML, COCO JSON, YOLO text and labelme JSON."""

import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mereo.data.contents import Contents, name_of, suffix_of
from mereo.data.decode import FORMATS, is_grey, reason_of, to_mode
from mereo.data.encoded import unreadable
from mereo.data.image_ids import ImageFinder, is_image_path
from mereo.data.names import SPLITS, split_of
from mereo.data.trees import open_tree
from mereo.errors import MereoError, UsageError

VOC, COCO, YOLO, LABELME = "Pascal VOC XML", "COCO JSON", "YOLO text", "labelme JSON"
FORMATS_OF_BOXES = f"{VOC}, {COCO}, {YOLO} or {LABELME}"
_START = 2**16
_YOLO_LINE = re.compile(r"\s*\d+(\s+-?\d*\.?\d+(e-?\d+)?){4,}\s*")
_IGNORED = "__ignore__"
"""Label of labelme for what is of no class."""
_POLYGON, _CIRCLE = 6, 32
"""Least numbers of a polygon; corners of the polygon in place of a circle."""


class Outline(NamedTuple):
    """What an object covers: polygons x0, y0, x1, y1, ..., or run lengths as COCO has them; neither for a box alone.

    Attributes:
        crowd: whether these are several objects that were not told apart, or what labelme calls "__ignore__".
    """

    polygons: Sequence[Sequence[float]] = ()
    runs: Mapping[str, Any] | None = None
    crowd: bool = False


class BoxedImage(NamedTuple):
    """An image with the boxes of its objects, and their outlines if the format has some.

    Shapes: boxes float32 (n, 4), corners x0, y0, x1, y1, in pixels, or with `relative` in shares of the image, as the
    polygons of the outlines.
    """

    image: str
    split: str
    boxes: Tensor
    names: list[str]
    relative: bool = False
    outlines: Sequence[Outline] = ()

    @property
    def crowds(self) -> Tensor:
        """Whether a box is around a crowd, or marked to be ignored: bool (n,)."""
        return torch.tensor([each.crowd for each in self.outlines] or [False] * len(self.names), dtype=torch.bool)


def formats_in(contents: Contents) -> dict[str, list[str]]:
    """The formats in which a tree has boxes, with the files of each, those taken first by `boxes_in` first."""
    by_suffix: dict[str, list[str]] = {}
    for file in contents.tree.files:
        by_suffix.setdefault(suffix_of(file), []).append(file)
    xml, documents = by_suffix.get(".xml", []), by_suffix.get(".json", [])
    coco = [file for file in documents if _is_coco(contents.text(file))]
    others = sorted({*documents} - {*coco})
    stems = {PurePosixPath(file).stem for file in contents.tree.files if contents.is_image(file)}
    texts = [file for file in by_suffix.get(".txt", []) if PurePosixPath(file).stem in stems]
    folders = {file.rpartition("/")[0] for file in texts}
    found = {
        VOC: xml if any("<bndbox" in contents.text(file, _START) for file in xml[:5]) else [],
        COCO: coco,
        YOLO: [file for file in by_suffix.get(".txt", []) if file.rpartition("/")[0] in folders and _may_label(file)]
        if any(_is_yolo(contents.text(file, _START)) for file in texts[:20])
        else [],
        LABELME: others if any(_is_labelme(contents.text(file, _START)) for file in others[:5]) else [],
    }
    return {kind: files for kind, files in found.items() if files}


def _may_label(file: str) -> bool:
    return name_of(file) != "classes.txt" and PurePosixPath(file).stem.lower() not in SPLITS


def boxes_in(contents: Contents) -> tuple[str, list[str]] | None:
    """The format of the boxes of a tree, and their files; None for a tree without boxes."""
    return next(iter(formats_in(contents).items()), None)


def _is_yolo(text: str) -> bool:
    lines = [line for line in text.splitlines() if line.strip()]
    return bool(lines) and all(_YOLO_LINE.fullmatch(line) for line in lines)


def _is_coco(text: str) -> bool:
    return all(f'"{word}"' in text for word in ("images", "annotations", "bbox"))


def _is_labelme(text: str) -> bool:
    return '"shapes"' in text and '"points"' in text


def read_boxes(contents: Contents, missing: list[str] | None = None) -> Iterator[BoxedImage]:
    """The images of a tree with their boxes, none for an image whose annotation lists none.

    Args:
        contents: of the tree.
        missing: gets the annotations, or the names in a COCO document, whose image is not there.

    Raises:
        MereoError: for a tree without boxes, and for a damaged file.
    """
    found = boxes_in(contents)
    if found is None:
        raise MereoError(f"{contents.tree.path} has no boxes ({FORMATS_OF_BOXES}); give a folder that has.")
    kind, files = found
    missing = [] if missing is None else missing
    finder = ImageFinder([file for file in contents.tree.files if contents.is_image(file)], contents.tree.path)
    lists = _voc_splits(contents) | _listed_splits(contents, finder)
    names = _yolo_names(contents) if kind == YOLO else {}
    read: dict[str, Callable[[str, str, ImageFinder], BoxedImage | None]]
    read = {VOC: _voc, YOLO: partial(_yolo, names=names), LABELME: _labelme}
    for file in files:
        try:
            if kind == COCO:
                yield from _coco(json.loads(contents.text(file)), file, finder, missing)
                continue
            boxed = read[kind](contents.text(file), file, finder)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise MereoError(f"{contents.tree.path / file} cannot be read as {kind} ({error}); repair it.") from error
        if boxed is None:
            missing.append(file)
        else:
            listed = lists.get(boxed.image) or lists.get(PurePosixPath(file).stem)
            yield boxed._replace(split=listed or boxed.split)


def _voc_splits(contents: Contents) -> dict[str, str]:
    """The splits by the names of images in ImageSets/Main."""
    lists: dict[str, str] = {}
    for split in ("train", "val", "test"):
        for file in contents.tree.files:
            if file.endswith(f"ImageSets/Main/{split}.txt"):
                lists |= dict.fromkeys(contents.text(file).split(), split)
    return lists


def _listed_splits(contents: Contents, finder: ImageFinder) -> dict[str, str]:
    """The splits by the images whose paths are in train.txt, valid.txt or test.txt, as Darknet reads them."""
    lists: dict[str, str] = {}
    for file in contents.tree.files:
        split = SPLITS.get(PurePosixPath(file).stem.lower()) if suffix_of(file) == ".txt" else None
        lines = contents.text(file).splitlines() if split else []
        if lines and all(is_image_path(line) for line in lines if line.strip()):
            found = (finder.find(line) for line in lines if line.strip())
            lists |= {image: split for image in found if image and split}
    return lists


def _split_in(file: str) -> str:
    """The split that a folder of a path, or its name, stands for; empty for none."""
    found = [split for part in PurePosixPath(file).with_suffix("").parts if (split := split_of(part))]
    return {"validation": "val"}.get(found[-1], found[-1]) if found else ""


def _voc(text: str, file: str, finder: ImageFinder) -> BoxedImage | None:
    from xml.etree import ElementTree

    if "<!ENTITY" in text:
        raise ValueError("it declares entities")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(error) from error
    image = finder.find(PurePosixPath(file).stem) or finder.find(root.findtext("filename") or "")
    if image is None:
        return None
    objects = [(each.findtext("name") or "object", each.find("bndbox")) for each in root.iter("object")]
    names = [name for name, box in objects if box is not None]
    corners = [
        [float(box.findtext(side) or "nan") for side in ("xmin", "ymin", "xmax", "ymax")]
        for _, box in objects
        if box is not None
    ]
    return BoxedImage(image, _split_in(file), torch.tensor(corners).reshape(-1, 4), names)


def _coco(found: dict[str, Any], file: str, finder: ImageFinder, missing: list[str]) -> Iterator[BoxedImage]:
    from torchvision.ops import box_convert

    names = {each["id"]: str(each["name"]) for each in found.get("categories", ())}
    by_image: dict[Any, list[Any]] = {}
    for each in found["annotations"]:
        if "bbox" in each:
            by_image.setdefault(each["image_id"], []).append(each)
    for each in found["images"]:
        image, boxes = finder.find(str(each["file_name"])), by_image.get(each["id"], [])
        if image is None:
            missing.append(str(each["file_name"]))
        else:
            given = torch.tensor([box["bbox"] for box in boxes], dtype=torch.float32).reshape(-1, 4)
            corners = box_convert(given, "xywh", "xyxy")
            classes = [names.get(box["category_id"], str(box["category_id"])) for box in boxes]
            outlines = [_outline(box.get("segmentation"), bool(box.get("iscrowd"))) for box in boxes]
            yield BoxedImage(image, _split_in(file) or _split_in(image), corners, classes, outlines=outlines)


def _outline(found: Any, crowd: bool) -> Outline:
    if isinstance(found, dict):
        return Outline((), found, crowd)
    return Outline(found if isinstance(found, list) else (), None, crowd)


def _labelme(text: str, file: str, finder: ImageFinder) -> BoxedImage | None:
    found = json.loads(text)
    image = finder.find(str(found.get("imagePath") or "")) or finder.find(PurePosixPath(file).stem)
    if image is None:
        return None
    names = [str(shape["label"]) for shape in found["shapes"]]
    polygons = [_labelme_polygon(shape) for shape in found["shapes"]]
    # A point or a line encloses nothing: its box has no numbers, and is counted as such.
    sides = [_around(polygon) if polygon else [math.nan] * 4 for polygon in polygons]
    outlines = [
        Outline([polygon] if polygon else [], None, name == _IGNORED)
        for name, polygon in zip(names, polygons, strict=True)
    ]
    return BoxedImage(image, _split_in(image), torch.tensor(sides).reshape(-1, 4), names, outlines=outlines)


def _labelme_polygon(shape: dict[str, Any]) -> list[float]:
    """The polygon of a shape of labelme; empty for points and lines."""
    points, kind = [(float(x), float(y)) for x, y in shape["points"]], shape.get("shape_type") or "polygon"
    if kind == "rectangle" and len(points) == 2:
        (left, top), (right, bottom) = points
        points = [(left, top), (right, top), (right, bottom), (left, bottom)]
    elif kind == "circle" and len(points) == 2:
        (x, y), radius = points[0], math.dist(*points)
        turns = [2 * math.pi * corner / _CIRCLE for corner in range(_CIRCLE)]
        points = [(x + radius * math.cos(turn), y + radius * math.sin(turn)) for turn in turns]
    elif kind not in ("polygon", "rectangle") or len(points) < 3:
        return []
    return [value for point in points for value in point]


def _around(polygon: Sequence[float]) -> list[float]:
    """The corners of the box around a polygon."""
    return [min(polygon[::2]), min(polygon[1::2]), max(polygon[::2]), max(polygon[1::2])]


def _yolo_corners(numbers: list[float]) -> list[float]:
    """The corners of a box given by its centre and size, with or without a confidence, or by a polygon around it."""
    if len(numbers) < _POLYGON:
        x, y, width, height = numbers[:4]
        return [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
    return _around(numbers)


def _yolo(text: str, file: str, finder: ImageFinder, names: dict[int, str]) -> BoxedImage | None:
    rows = [line.split() for line in text.splitlines() if line.strip()]
    if rows and not _is_yolo(text):
        raise ValueError("a line is not a class and four numbers")
    # The labels of images/train/0.jpg are in labels/train/0.txt.
    image = finder.find(re.sub(r"(^|.*/)labels/", r"\1images/", file.removesuffix(".txt")))
    if image is None:
        return None
    numbers = [[float(cell) for cell in row[1:]] for row in rows]
    shares = torch.tensor([_yolo_corners(each) for each in numbers]).reshape(-1, 4)
    classes = [names.get(int(row[0]), row[0]) for row in rows]
    outlines = [Outline([each] if len(each) >= _POLYGON else []) for each in numbers]
    return BoxedImage(image, _split_in(image), shares, classes, relative=True, outlines=outlines)


def _yolo_names(contents: Contents) -> dict[int, str]:
    """The names of the classes: in a .yaml file, or one a line in classes.txt, obj.names or the like."""
    import yaml

    for file in contents.tree.files:
        if suffix_of(file) in (".yaml", ".yml"):
            try:
                found = yaml.safe_load(contents.text(file, _START))
            except yaml.YAMLError:
                continue
            names = found.get("names") if isinstance(found, dict) else None
            if isinstance(names, list):
                names = dict(enumerate(names))
            if isinstance(names, dict):
                return {int(number): str(name) for number, name in names.items()}
        if name_of(file) == "classes.txt" or suffix_of(file) == ".names":
            lines = contents.text(file, _START).splitlines()
            return {number: line.strip() for number, line in enumerate(lines) if line.strip()}
    return {}


def write_crops(source: Path, target: Path, *, least: int = 8) -> dict[str, int]:
    """Cut the boxes of a folder out of its images, into `target`/<split>/<class>/, or `target`/<class>/ without splits.

    Args:
        source: folder or .zip archive of images and boxes.
        target: folder that does not exist yet, or is empty.
        least: shortest side of a part in pixels; smaller ones are left out.

    Returns:
        The number of parts of each class.

    Raises:
        UsageError: for a target with files.
        MereoError: for a source without boxes, for a damaged file of boxes, and if no image can be read.

    Warns:
        UserWarning: with the names of images that cannot be read, which are left out.
    """
    from PIL import Image
    from torchvision.ops import clip_boxes_to_image, remove_small_boxes

    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"out is {str(target)!r}, which has files; give a new folder.")
    contents, counts, broken = Contents(open_tree(source)), Counter[str](), []
    for boxed in read_boxes(contents):
        if not boxed.names:
            continue
        try:
            with contents.tree.open(boxed.image) as stream, Image.open(stream, formats=FORMATS) as opened:
                # Boxes are in pixels of the file, before it is turned by its EXIF tag.
                opened.load()
                image = to_mode(opened, "L" if is_grey(opened.mode) else "RGB")
        except MemoryError:
            raise
        except Exception as error:  # a broken file can make a decoder raise nearly anything
            broken.append((boxed.image, reason_of(error)))
            continue
        corners = boxed.boxes * torch.tensor([image.width, image.height] * 2) if boxed.relative else boxed.boxes
        corners = clip_boxes_to_image(corners.nan_to_num(), (image.height, image.width)).round()
        for number in remove_small_boxes(corners, least).tolist():
            if boxed.crowds[number]:
                continue
            name, stem = _as_name(boxed.names[number]), _as_name(boxed.image.rpartition(".")[0])
            folder = target / boxed.split / name
            folder.mkdir(parents=True, exist_ok=True)
            left, top, right, bottom = map(int, corners[number].tolist())
            image.crop((left, top, right, bottom)).save(folder / f"{stem}-{number}.png")
            counts[name] += 1
    if broken and not counts:
        raise MereoError(f"{unreadable(broken, f' in {source}')}. Repair them.")
    if broken:
        warnings.warn(f"{unreadable(broken, f' in {source}')}. Skipped.", UserWarning, stacklevel=2)
    if not counts:
        raise MereoError(f"{source} has no boxes of at least {least} pixels on images that are there; check its paths.")
    return dict(sorted(counts.items()))


def _as_name(text: str) -> str:
    """A text as the name of a folder or file."""
    return re.sub(r"[^\w.+-]+", "_", text).strip("._") or "object"
