"""What a user states of the layout of a folder or table. torch is not imported here, so that `--help` is quick."""

import re
from typing import NamedTuple

from mereo.errors import UsageError

CLASSES = ("auto", "top", "leaf", "path", "name")


class LayoutOptions(NamedTuple):
    """What a user states of the layout of a folder or table.

    Attributes:
        classes: where the classes of images in folders are: "top", the outermost folders; "leaf", the innermost ones;
            "path", the innermost ones with the folders around them; "name", the names of files up to their number;
            "name:2", the second field of the names. "auto" decides by the files, or refuses.
        label_column: of a table; None looks for the usual names.
        task: for which the images are; None if it follows from them.
    """

    classes: str = "auto"
    label_column: str | None = None
    task: str | None = None

    def check(self) -> None:
        """UsageError unless `classes` is one of the ways, or a field of the names of files."""
        if self.classes not in CLASSES and not re.fullmatch(r"name:[1-9]", self.classes):
            raise UsageError(
                f"classes is {self.classes!r}; it must be {', '.join(CLASSES)}, or a field of names such as name:2."
            )
