"""Images that a table names without a suffix, as tables of Kaggle do: abc123 for train_images/abc123.jpg."""

import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from mereo.data.names import IMAGE_SUFFIXES, OTHER_SUFFIXES, is_hidden
from mereo.errors import UsageError

SUFFIXES = (*IMAGE_SUFFIXES, *OTHER_SUFFIXES)


def image_files(table: Path, images: Sequence[str]) -> list[str]:
    """The image files that names in a table stand for, relative to its folder.

    A name with the suffix of an image is a path, and stays as it is. For any other the file of that name is taken, or
    the only image file of that name with a suffix: in the folder of the table or a folder in it, or in the folder that
    the name states. A name without such a file stays as it is.

    Raises:
        UsageError: for a name that several image files have.
    """
    listed = _Listing(table.parent)
    found = []
    for image in images:
        if image.lower().endswith(SUFFIXES):
            found.append(image)
            continue
        files = listed.files(image)
        if len(files) > 1:
            raise UsageError(
                f"{table} lists the image {image[:80]!r}, which several files are called: {', '.join(files[:3])};"
                " write it with its folder and its suffix."
            )
        found.append(files[0] if files else image)
    return found


class _Listing:
    """The image files near a table by their name without a suffix; each folder is listed once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._by_name = cache(self._list)

    def files(self, image: str) -> list[str]:
        """The files that a name without a suffix may stand for; only the file of exactly that name, if it exists."""
        path = Path(image)
        found = self._by_name(path.parent).get(path.name, [])
        return [image] if path in found else sorted(map(str, found))

    def _list(self, place: Path) -> dict[str, list[Path]]:
        by_name: dict[str, list[Path]] = {}
        for file in self._images(place, deeper=place == Path()):
            by_name.setdefault(file.stem, []).append(file)
        return by_name

    def _images(self, place: Path, *, deeper: bool) -> Iterator[Path]:
        """The files of a folder that are images or have no suffix, and of the folders in it."""
        try:
            with os.scandir(self.folder / place) as entries:
                listed = [(place / entry.name, entry.is_dir()) for entry in entries if not is_hidden(entry.name)]
        except OSError:
            return  # there is no such folder, so its images are missing
        for path, is_folder in listed:
            if is_folder and deeper:
                yield from self._images(path, deeper=False)
            elif not is_folder and path.suffix.lower() in ("", *SUFFIXES):
                yield path
