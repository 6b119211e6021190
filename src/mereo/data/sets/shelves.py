"""Shelves of coloured shapes, and the path of a gaze from the centre to a target, made by a rule in place of people.

Every scene is arranged anew, so that no layout of the training is seen again; shelves of other sizes and with empty
places are options.
"""

from typing import Any

from mereo.data.registry import later, register_dataset
from mereo.errors import UsageError, check_count, check_seed

HELD_OUT = 500
"""Scenes of the validation and of the test split."""


def configure(*, rows: int = 4, columns: int = 5, empty: int = 0, train: int = 2000, seed: int = 0) -> dict[str, Any]:
    """Options: rows (4) and columns (5) of the shelf, most empty places in a scene (0), training scenes (2000), seed of
    the scenes (0)."""
    check_count(1, rows=rows, columns=columns, train=train)
    check_count(empty=empty)
    check_seed(seed)
    if not empty + 1 < rows * columns <= 400:
        raise UsageError(
            f"rows is {rows}, columns {columns} and empty {empty}; a shelf has at most 400 places, and two of"
            " them are not empty."
        )
    splits = {"train": train, "validation": HELD_OUT, "test": HELD_OUT}
    made = later("mereo.data.shelves:load_shelves", shelf=(rows, columns, empty), seed=seed, splits=splits)
    return {"load": made, "splits": splits}


register_dataset(
    "shelves",
    summary="shelves of 4 x 5 coloured shapes and the path of a gaze that looks for one; generated when needed",
    source="ours, for Fang et al., arXiv:2407.13335",
    num_classes=0,
    in_chans=1,
    size=None,
    augment=(),
    fields=("regions", "pointers"),
    configure=configure,
    task_options={"height": 16, "width": 16},
    **configure(),
)
