"""Finds the image files that a table names: with or without suffix, and with other folders than here."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from mereo.data.names import IMAGE_SUFFIXES, OTHER_SUFFIXES
from mereo.errors import UsageError

SUFFIXES = (*IMAGE_SUFFIXES, *OTHER_SUFFIXES)


class ImageFinder:
    """The images near a table, by their names.

    Args:
        files: their paths, relative to the folder of the table.
        table: its path, for messages.
    """

    def __init__(self, files: Iterable[str], table: object) -> None:
        self._files, self._table = frozenset(files), table
        self._folders = Counter[PurePosixPath]()
        self._by_name: dict[str, list[PurePosixPath]] = defaultdict(list)
        for file in sorted(self._files):
            path = PurePosixPath(file)
            for name in {path.name, path.stem}:
                self._by_name[name].append(path)

    def find(self, image: str) -> str | None:
        """The file that a name in the table means, or None.

        A path that exists is taken. Otherwise files with that name are compared, also with a suffix: the one whose
        folders share the longest end with the path is taken, and among equals the one in the folder where most other
        names were found.

        Raises:
            UsageError: for a name that several image files have.
        """
        path = PurePosixPath(image.strip().replace("\\", "/"))
        if str(path) in self._files:
            return str(path)
        found = self._by_name.get(path.name, [])
        if len(found) > 1:
            agreeing = [_common(each, path) for each in found]
            found = [each for each, count in zip(found, agreeing, strict=True) if count == max(agreeing)]
            exact = [each for each in found if each.name == path.name]
            found = exact if len(exact) == 1 else found
        usual = self._folders.most_common(1)
        if len(found) > 1 and usual:
            found = [each for each in found if each.parent == usual[0][0]] or found
        elif len(found) == 1:
            self._folders[found[0].parent] += 1
        if len(found) > 1:
            raise UsageError(
                f"{self._table} lists the image {image[:80]!r}, which several files are called:"
                f" {', '.join(map(str, found[:3]))}; write it with its folder and its suffix."
            )
        return str(found[0]) if found else None


def _common(file: PurePosixPath, path: PurePosixPath) -> int:
    """How many folders at the end of two paths agree."""
    count = 0
    for one, other in zip(reversed(file.parent.parts), reversed(path.parent.parts), strict=False):
        if one != other:
            break
        count += 1
    return count


def is_image_path(name: str) -> bool:
    """Whether a text ends like the name of an image file."""
    return name.strip().lower().endswith(SUFFIXES)


def share_found(finder: ImageFinder, images: Sequence[str], most: int = 200) -> float:
    """The share of some names, evenly spread, for which there is a file."""
    some = images[:: max(len(images) // most, 1)]
    return sum(finder.find(image) is not None for image in some) / max(len(some), 1)
