"""What a tree of files holds, counted once: images and other files of each folder."""

import mimetypes
from collections import Counter, defaultdict
from functools import cached_property
from pathlib import PurePosixPath

from mereo.data.decode import FORMATS
from mereo.data.names import IMAGE_SUFFIXES, OTHER_SUFFIXES
from mereo.data.trees import Tree

_SHOWN, _SHARE = 3, 0.1


def suffix_of(file: str) -> str:
    """The suffix of a path, in small letters."""
    return PurePosixPath(file).suffix.lower()


class Contents:
    """The files of a tree by folder; the empty path is the tree itself.

    Args:
        tree: a folder or an archive.

    Attributes:
        direct: the files of each folder, without files of the folders in it.
        images: the number of images of each folder, at any depth.
        count: the number of files of each folder, at any depth.
    """

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.direct: dict[str, list[str]] = defaultdict(list)
        self.images, self.count = Counter[str](), Counter[str]()
        self._sniffed: dict[tuple[str, str], bool] = {}
        for file in tree.files:
            folder = file.rpartition("/")[0]
            self.direct[folder].append(file)
            shows = self.is_image(file)
            for place in (folder, *self._above(folder)):
                self.count[place] += 1
                self.images[place] += shows

    @staticmethod
    def _above(folder: str) -> list[str]:
        """The folders around a folder, the tree itself last."""
        parts = folder.split("/") if folder else []
        return ["/".join(parts[:depth]) for depth in range(len(parts) - 1, -1, -1)]

    def is_image(self, file: str) -> bool:
        """Whether a file is an image by its suffix; for an unknown suffix, by the content of the first such file."""
        suffix = suffix_of(file)
        if suffix in IMAGE_SUFFIXES or suffix in OTHER_SUFFIXES:
            return True
        kind = mimetypes.guess_type(file)[0]
        if kind is not None:
            return kind.startswith("image/")
        key = file.rpartition("/")[0], suffix
        if key not in self._sniffed:
            self._sniffed[key] = self._is_image_inside(file)
        return self._sniffed[key]

    def _is_image_inside(self, file: str) -> bool:
        from PIL import Image

        try:
            with self.tree.open(file) as stream, Image.open(stream, formats=FORMATS):
                return True
        except Exception:  # a damaged file can make a decoder raise nearly anything
            return False

    @cached_property
    def _children(self) -> dict[str, list[str]]:
        children: dict[str, list[str]] = defaultdict(list)
        for folder in self.tree.folders:
            children[folder.rpartition("/")[0]].append(folder)
        return children

    def folders(self, place: str) -> list[str]:
        """The folders directly in a folder, by their paths."""
        return self._children.get(place, [])

    def with_images(self, place: str) -> list[str]:
        """The folders directly in a folder that hold images, at any depth, and not only a few beside other files."""
        return [folder for folder in self.folders(place) if self.has_images(folder)]

    def has_images(self, folder: str) -> bool:
        """Whether images are half of the files of a folder, or it has a share of all images."""
        images = self.images[folder]
        return images > 0 and (2 * images >= self.count[folder] or images >= _SHARE * self.images[""])

    def images_in(self, place: str) -> list[str]:
        """The images directly in a folder."""
        return [file for file in self.direct.get(place, []) if self.is_image(file)]

    def images_below(self, place: str) -> list[str]:
        """The images of a folder, at any depth."""
        prefix = f"{place}/" if place else ""
        return [file for file in self.tree.files if file.startswith(prefix) and self.is_image(file)]

    def others_below(self, place: str) -> Counter[str]:
        """How many other files of each suffix a folder holds, at any depth."""
        prefix = f"{place}/" if place else ""
        files = (file for file in self.tree.files if file.startswith(prefix) and not self.is_image(file))
        return Counter(suffix_of(file) for file in files)

    def text(self, file: str, most: int = 2**28) -> str:
        """The text of a file, cut off after `most` bytes."""
        with self.tree.open(file) as stream:
            return stream.read(most).decode("utf-8-sig", errors="replace")

    def describe(self, place: str = "") -> str:
        """What a folder holds, in a few words: images and other files by suffix."""
        others = self.others_below(place).most_common(_SHOWN)
        kinds = [f"{count:,} {suffix or 'without suffix'}" for suffix, count in others]
        return ", ".join([f"{self.images[place]:,} images", *kinds])


def name_of(place: str) -> str:
    """The last part of a path."""
    return place.rpartition("/")[2]


def counted_names(names: Counter[str], shown: int = 5) -> str:
    """Names with their counts, the commonest first, cut off after the number shown."""
    listed = [f"{name} {count:,}" for name, count in names.most_common(shown)]
    return ", ".join([*listed, *(["..."] if len(names) > shown else [])])
