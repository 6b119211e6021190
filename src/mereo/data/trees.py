"""Trees of files: a folder, or a zip archive of the same layout."""

import os
import weakref
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, cast

from mereo.data.names import is_hidden
from mereo.data.regular import open_regular
from mereo.errors import MereoError, UsageError

_LARGEST_MEMBER = 2**30
_LARGEST_DIRECTORY = 160 * 2**20
"""Largest list of members of an archive in bytes, enough for 1.5 million; each takes a kilobyte of memory."""
_DEEPEST, _LONGEST = 32, 1024


class Tree(ABC):
    """Files and folders by their path inside the tree, with "/" between the parts, sorted. Hidden ones are skipped.

    Attributes:
        links: the links out of it that were followed, each with its target.
    """

    path: Path
    files: list[str]
    folders: list[str]
    links: Sequence[tuple[str, str]] = ()

    @abstractmethod
    def open(self, file: str) -> BinaryIO:
        """The content of one file; may be called from several threads."""


class FolderTree(Tree):
    """A folder on disk.

    Every file and folder is listed once, under its own path, or under the first link to it if it is hidden. So no image
    is used twice and no loop of links is followed. Links out of the folder are followed to files of the same user below
    the user's home folder.

    Raises:
        UsageError: for a link to something else outside of the folder.
        MereoError: for a folder that cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.files, self.folders = path, [], []
        self.links: list[tuple[str, str]] = []
        self._root = os.path.realpath(path)
        self._seen: set[str] = set()
        # Links wait until everything is listed that is reached without them; those to files wait for those to folders.
        links, to_files = self._walk("", self._root), []
        while links:
            below = []
            for link in sorted(links):
                target = self._target(link)
                if not Path(target).is_dir():
                    to_files.append((link, target))
                elif target not in self._seen:
                    self.folders.append(link)
                    below += self._walk(link, target)
            links = below
        for link, target in to_files:
            if not self._is_listed(target):
                self._seen.add(target)
                self.files.append(link)
        self.files.sort()
        self.folders.sort()

    def _walk(self, start: str, real: str) -> list[str]:
        """List what is below a folder; return the links in it."""
        links, waiting = [], [(start, real)]
        while waiting:
            inside, real = waiting.pop()
            self._seen.add(real)
            try:
                with os.scandir(real) as entries:
                    for entry in entries:
                        name = f"{inside}/{entry.name}" if inside else entry.name
                        if is_hidden(entry.name):
                            continue
                        if entry.is_symlink():
                            links.append(name)
                        elif not entry.is_dir():
                            self.files.append(name)
                        elif entry.path not in self._seen:
                            self.folders.append(name)
                            waiting.append((name, entry.path))
            except OSError as error:
                raise MereoError(f"the folder {self.path / inside} cannot be read: {error.strerror}.") from error
        return links

    def _target(self, link: str) -> str:
        """The real path that a link leads to."""
        target = os.path.realpath(self.path / link)
        if not Path(target).is_relative_to(self._root):
            if self._is_own(Path(target)):
                self.links.append((link, target))
                return target
            raise UsageError(
                f"{self.path / link} is a link to {target}, outside of the data set; replace it by what it links to, "
                "or remove it."
            )
        return target

    def _is_own(self, target: Path) -> bool:
        """Whether a target is of the user, below the home folder, and does not hold the folder itself."""
        home = Path(os.path.realpath(Path.home()))
        if not target.is_relative_to(home) or target == home or Path(self._root).is_relative_to(target):
            return False
        return target.exists() and (not hasattr(os, "getuid") or target.stat().st_uid == os.getuid())

    def _is_listed(self, target: str) -> bool:
        """Whether a file is listed already. One that does not exist is not, so that its link is reported as broken."""
        folder, name = os.path.split(target)
        visible = folder in self._seen and not is_hidden(name)
        return target in self._seen or (visible and Path(target).exists())

    def open(self, file: str) -> BinaryIO:
        return open_regular(self.path / file)


class ZipTree(Tree):
    """A zip archive; members are read without unpacking it.

    Raises:
        MereoError: for an archive that is damaged, or whose members are too many, too deep or too long in name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open_regular(path) as file:
                # Its list of members is read whole by the constructor, so its size is compared first.
                end = getattr(zipfile, "_EndRecData")(file)  # noqa: B009
                size = end[5] if end else 0
            if size <= _LARGEST_DIRECTORY:
                self._archive = zipfile.ZipFile(path)
                # In a cycle of objects that are no longer needed, its file could be finalised first, with a warning.
                weakref.finalize(self, self._archive.close)
        except Exception as error:  # zipfile raises nearly any exception for a damaged list of members
            raise MereoError(f"the archive {path} cannot be read ({error}); download or create it again.") from error
        if size > _LARGEST_DIRECTORY:
            raise self._excess(f"a list of members of {size:,} bytes", f"{_LARGEST_DIRECTORY:,}")
        members = self._archive.namelist()
        for name in members:
            if name.count("/") > _DEEPEST:
                raise self._excess(f"a member in {name.count('/'):,} folders", f"{_DEEPEST}")
            if len(name) > _LONGEST:
                raise self._excess(f"a member with a name of {len(name):,} characters", f"{_LONGEST:,}")
        names = [name for name in members if not self._hidden(name)]
        self.files = sorted(name for name in names if not name.endswith("/"))
        folders = {name.rstrip("/") for name in names if name.endswith("/")}
        for file_name in self.files:
            parent = file_name.rpartition("/")[0]
            while parent and parent not in folders:
                folders.add(parent)
                parent = parent.rpartition("/")[0]
        self.folders = sorted(folders)

    def _excess(self, what: str, limit: str) -> MereoError:
        return MereoError(f"the archive {self.path} has {what}, more than the limit of {limit}; unpack it to a folder.")

    @staticmethod
    def _hidden(name: str) -> bool:
        return any(map(is_hidden, name.split("/")))

    def open(self, file: str) -> BinaryIO:
        size = self._archive.getinfo(file).file_size
        if size > _LARGEST_MEMBER:
            raise OSError(f"it unpacks to {size} bytes, more than the limit of {_LARGEST_MEMBER}")
        # Unpacked only as far as it is read: the header decides whether it is an image, however large it claims to be.
        return cast("BinaryIO", self._archive.open(file))


def open_tree(path: Path) -> Tree:
    """The tree at `path`: a folder, or an archive."""
    return FolderTree(path) if path.is_dir() else ZipTree(path)
