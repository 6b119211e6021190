"""Names that data sets on disk use: of splits and of image files."""

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
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".7z", ".rar", *TABLES)
"""Suffixes of files that hold many images. Some are read; the others are refused by name."""
_OF_PROGRAMS = ("thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "__macosx", "@eadir")


def is_hidden(name: str) -> bool:
    """Whether a file or a folder is of the system rather than of the user, by its name."""
    return name.startswith(".") or name.lower() in _OF_PROGRAMS


def is_table(path: Path) -> bool:
    """Whether a path is a table of images: a .csv file."""
    return path.suffix.lower() == ".csv" and path.is_file()
