"""Names that data sets on disk use: of splits, of image files and of folders that are no classes."""

import re
from pathlib import Path

SPLITS = {
    "train": "train", "training": "train", "val": "validation", "validation": "validation", "valid": "validation",
    "dev": "validation", "test": "test", "testing": "test",
}  # fmt: skip
"""The split that a folder, a file or a word in a table stands for."""
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
"""Suffixes of image files that can be read."""
OTHER_SUFFIXES = (".heic", ".heif", ".avif")
"""Suffixes of image files that cannot be read; they are reported with a remedy instead of being left out."""
TABLES = (".parquet", ".arrow")
"""Suffixes of files that hold images as rows, and are read."""
LISTS = (".csv", ".tsv", ".json", ".jsonl")
"""Suffixes of tables that name image files."""
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".7z", ".rar", *TABLES)
"""Suffixes of files that hold many images. Some are read; the others are refused by name."""
PARTS = {
    "image", "images", "img", "imgs", "jpegimages", "jpgs", "pngs", "photos", "pictures", "frames", "original", "data",
    "dataset", "part", "raw", "crops", "mask", "masks", "annotation", "annotations", "annot", "annots", "label",
    "labels", "labelids", "gt", "groundtruth", "truth", "imagesets", "segmentationclass", "segmentationobject", "bbox",
    "box", "boxes", "bounding", "query", "gallery", "depth", "all", "unlabeled", "unlabelled",
}  # fmt: skip
"""Words for the parts of a data set; a folder whose name has no others is no class."""
_OF_PROGRAMS = ("thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "__macosx", "@eadir")


def is_hidden(name: str) -> bool:
    """Whether a file or a folder is of the system rather than of the user, by its name."""
    return name.startswith(".") or name.lower() in _OF_PROGRAMS


def is_table(path: Path) -> bool:
    """Whether a path is a table of images, such as a .csv file."""
    return path.suffix.lower() in LISTS and path.is_file()


def words_of(name: str) -> list[str]:
    """The words of a name in small letters, without numbers."""
    return [word for word in re.split(r"[^a-z]+", name.lower()) if word]


def split_of(name: str) -> str | None:
    """The split that a name stands for: the name itself, or the only one of its words that does; None for neither."""
    found = {SPLITS[word] for word in words_of(name) if word in SPLITS}
    return SPLITS.get(name.lower()) or (found.pop() if len(found) == 1 else None)


def is_part(name: str) -> bool:
    """Whether a name consists of words for parts of a data set, such as "JPEGImages" or "images_part_1"."""
    words = words_of(name)
    return bool(words) and all(word in PARTS or word in SPLITS for word in words)
