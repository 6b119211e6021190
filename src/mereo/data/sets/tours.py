"""Tours: points of the unit square, and the shortest closed way through all of them.

Exact up to 12 points. Longer tours are nearest neighbours from every point, improved by 2-opt: at 13 to 18 points they
are less than 1 % longer than the shortest in the mean.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mereo.data.registry import register_dataset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from mereo.data.load import Splits, Wanted
    from mereo.data.points import Range

LEAST, MOST, HIGHEST, MOST_EXACT = 5, 10, 100, 12
COUNTS = {"train": 10000, "validation": 1000, "test": 1000}


def answers(points: "Tensor") -> "Sequence[Tensor]":
    """The tour of each set, from point 1 towards the lower one of its neighbours."""
    from mereo.data.pointing import improved_tours, shortest_tours

    return list((shortest_tours if points.shape[1] <= MOST_EXACT else improved_tours)(points))


def load(wanted: "Wanted", counts: "Range | None" = None) -> "Splits":
    """Made in seconds; nothing is read from the root."""
    from mereo.data.points import Range, load_sets

    return load_sets("tour", answers, counts or Range(LEAST, MOST, COUNTS), wanted)


def configure(*, least: int = LEAST, most: int = MOST, train: int = COUNTS["train"]) -> Mapping[str, Any]:
    """Options: least and most points of a set (5 and 10), and the number of training sets (10000)."""
    from mereo.data.points import in_range

    return in_range(load, COUNTS, 3, HIGHEST, least, most, train)


register_dataset(
    "tours",
    summary="5 to 10 points and the shortest tour through them; generated when needed",
    source="Vinyals, Fortunato, Jaitly, arXiv:1506.03134; points are ours",
    num_classes=0,
    in_chans=2,
    size=None,
    splits=COUNTS,
    load=load,
    augment=(),
    fields=("points", "lengths", "pointers"),
    configure=configure,
    task_options={"problem": "tour"},
)
