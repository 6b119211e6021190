"""Trees of files: a folder, or a zip archive of the same layout."""

import os
import zipfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import BinaryIO, cast

from mereo.errors import MereoError

_LARGEST_MEMBER = 2**30


class Tree(ABC):
    """Files and folders by their path inside the tree, with "/" between the parts, sorted. Hidden ones are left out."""

    path: Path
    files: list[str]
    folders: list[str]

    @abstractmethod
    def open(self, file: str) -> BinaryIO:
        """The content of one file; may be called from several threads."""


def _leads_up(folder: Path) -> bool:
    """Whether a link points at a folder that holds it, so that following it would never end."""
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve())


class FolderTree(Tree):
    """A folder on disk."""

    def __init__(self, path: Path) -> None:
        self.path, self.files, self.folders = path, [], []
        for place, folders, files in os.walk(path, followlinks=True):
            folders[:] = sorted(n for n in folders if not n.startswith(".") and not _leads_up(Path(place) / n))
            inside = Path(place).relative_to(path)
            self.folders += [(inside / name).as_posix() for name in folders]
            self.files += [(inside / name).as_posix() for name in files if not name.startswith(".")]
        self.files.sort()
        self.folders.sort()

    def open(self, file: str) -> BinaryIO:
        return (self.path / file).open("rb")


class ZipTree(Tree):
    """A zip archive; members are read without unpacking it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._archive = zipfile.ZipFile(path)
        except Exception as error:  # a damaged directory of members makes zipfile raise nearly anything
            raise MereoError(f"the archive {path} cannot be read ({error}); get it again.") from error
        names = [name for name in self._archive.namelist() if not self._hidden(name)]
        self.files = sorted(name for name in names if not name.endswith("/"))
        folders = {name.rstrip("/") for name in names if name.endswith("/")}
        for file in self.files:
            parent = file.rpartition("/")[0]
            while parent and parent not in folders:
                folders.add(parent)
                parent = parent.rpartition("/")[0]
        self.folders = sorted(folders)

    @staticmethod
    def _hidden(name: str) -> bool:
        # "__MACOSX" is what one archiver adds beside every file.
        return any(part.startswith((".", "__MACOSX")) for part in name.split("/"))

    def open(self, file: str) -> BinaryIO:
        size = self._archive.getinfo(file).file_size
        if size > _LARGEST_MEMBER:
            raise OSError(f"it unpacks to {size} bytes, more than the limit of {_LARGEST_MEMBER}")
        # Unpacked as far as it is read: what is no image is left after its first bytes, however large it claims to be.
        return cast("BinaryIO", self._archive.open(file))


def open_tree(path: Path) -> Tree:
    """The tree at `path`: a folder, or an archive."""
    return FolderTree(path) if path.is_dir() else ZipTree(path)
