"""What a user states of the layout of a folder or table. torch is not imported here, so that `--help` is quick."""

import re
from typing import NamedTuple

from mereo.errors import UsageError, check_choice

CLASSES = ("auto", "top", "leaf", "path", "name")
SPLIT_BY = ("auto", "subject", "camera")


class LayoutOptions(NamedTuple):
    """What a user states of the layout of a folder or table.

    Attributes:
        classes: where the classes of images in folders are: "top", the outermost folders; "leaf", the innermost ones;
            "path", the innermost ones with the folders around them; "name", the names of files up to their number;
            "name:2", the second field of the names. "auto" decides by what is there, or refuses.
        label_column: of a table; several for a label or a number each; by its usual names where it is empty.
        task: for which the images are; None if it follows from them.
        follows: whether that task follows from the network, so that a table may have several labels or numbers.
        names: of the outputs of a trained network, in whose order several labels are.
        split_by: what divides sequences of NTU RGB+D for training and testing: "subject", "camera", or "auto".
    """

    classes: str = "auto"
    label_column: tuple[str, ...] = ()
    task: str | None = None
    follows: bool = False
    names: tuple[str, ...] = ()
    split_by: str = "auto"

    @property
    def stated_task(self) -> str | None:
        """The task, unless it only follows from the network."""
        return None if self.follows else self.task

    def check(self) -> None:
        """UsageError unless `classes` is one of the ways, or a field of the names of files, and `split_by` is known."""
        check_choice("split_by", self.split_by, SPLIT_BY)
        if self.classes not in CLASSES and not re.fullmatch(r"name:[1-9]", self.classes):
            raise UsageError(
                f"classes is {self.classes!r}; it must be {', '.join(CLASSES)}, or a field of names such as name:2."
            )
