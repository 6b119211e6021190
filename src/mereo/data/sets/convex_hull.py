"""Convex hulls: points of the unit square, and the corners of their hull, counter-clockwise."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mereo.data.registry import register_dataset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from mereo.data.load import Splits, Wanted
    from mereo.data.points import Range

LEAST, MOST, HIGHEST = 5, 10, 1000
COUNTS = {"train": 20000, "validation": 1000, "test": 1000}


def answers(points: "Tensor") -> "Sequence[Tensor]":
    """The hull of each set, from its lowest pointer on."""
    import torch

    from mereo.data.pointing import convex_hull

    return [torch.tensor(convex_hull(each)) for each in points.double().numpy()]


def load(wanted: "Wanted", counts: "Range | None" = None) -> "Splits":
    """Made in a second; nothing is read from the root."""
    from mereo.data.points import Range, load_sets

    return load_sets("hull", answers, counts or Range(LEAST, MOST, COUNTS), wanted)


def configure(*, least: int = LEAST, most: int = MOST, train: int = COUNTS["train"]) -> Mapping[str, Any]:
    """Options: least and most points of a set (5 and 10), and the number of training sets (20000)."""
    from mereo.data.points import in_range

    return in_range(load, COUNTS, 3, HIGHEST, least, most, train)


register_dataset(
    "convex_hull",
    summary="5 to 10 points and the corners of their convex hull; generated when needed",
    source="Vinyals, Fortunato, Jaitly, arXiv:1506.03134; points are ours",
    num_classes=0,
    in_chans=2,
    size=None,
    splits=COUNTS,
    load=load,
    augment=(),
    fields=("points", "lengths", "pointers"),
    configure=configure,
    task_options={"problem": "hull"},
)
