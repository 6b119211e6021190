"""Registers generated sets of points: a problem, the function that answers it, and how many points a set has."""

from typing import TYPE_CHECKING, Any

from mereo.data.registry import DatasetInfo, later, register_dataset
from mereo.errors import UsageError, check_choice, check_count

if TYPE_CHECKING:
    from mereo.data.points import Answers

LOWEST, HELD_OUT = 3, 1000
"""Fewest points of a set; sets of the validation and of the test split."""
ORDERS = ("drawn", "angle")
"""How the points of a set follow each other: in any order, or counter-clockwise around their mean."""


def register_points(
    name: str, problem: str, answers: "Answers", summary: str, *, least: int, most: int, highest: int, train: int
) -> DatasetInfo:
    """Register sets of points of the unit square, with the options least, most, order and train.

    Args:
        name: of the data set.
        problem: what the pointers are, of `mereo.data.pointing.FORMS`.
        answers: the pointers to each of sets of equally many points.
        summary: one line.
        least, most: points of a set, by default.
        highest: points that a set may have.
        train: training sets, by default.
    """

    def configure(*, least: int = least, most: int = most, order: str = "drawn", train: int = train) -> dict[str, Any]:
        check_count(1, train=train)
        check_choice("order", order, ORDERS)
        if not LOWEST <= least <= most <= highest:
            raise UsageError(f"least is {least} and most is {most}; points of a set are from {LOWEST} to {highest}.")
        splits = {"train": train, "validation": HELD_OUT, "test": HELD_OUT}
        how = {"problem": problem, "answers": answers, "least": least, "most": most, "order": order, "splits": splits}
        return {"load": later("mereo.data.points:load_sets", **how), "splits": splits}

    configure.__doc__ = (
        f"Options: least and most points of a set ({least} and {most}), the number of training sets ({train}), and the"
        " order of the points of a set: drawn, or angle, counter-clockwise around their mean. Sets that a network"
        " trained with angle is to predict must be in that order, too."
    )
    return register_dataset(
        name,
        summary=summary,
        source="Vinyals, Fortunato, Jaitly, arXiv:1506.03134; points are ours",
        num_classes=0,
        in_chans=2,
        size=None,
        augment=(),
        fields=("points", "lengths", "pointers"),
        configure=configure,
        task_options={"problem": problem},
        **configure(),
    )
