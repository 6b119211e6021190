"""gCOG: questions about a grid of coloured letters, with answers of 138 kinds, that test three kinds of generalisation.

More distractors, new pairs of operators with objects or with each other, deeper programs. Generated from a seed, with
exact answers.
"""

from typing import TYPE_CHECKING, Any

from mereo.data.registry import later, register_dataset
from mereo.errors import check_count

if TYPE_CHECKING:
    from mereo.data.load import Splits, Wanted

HELD_OUT = 1000
"""Questions of the validation and of the test split."""
OPERATORS, ANSWERS = 8, 138


def configure(
    *,
    split: str = "distractor",
    programs: int = 5000,
    features: int = 10,
    distractors: int = 40,
    depth: int = 5,
    strict: bool = False,
    well_posed: bool = False,
    location: bool = True,
) -> dict[str, Any]:
    """Options: split ("distractor", "systematic", "systematic_trees" or "productive"), number of training programs of
    each of 8 operators (5000), number of colours and of shapes in programs (10), distractors of test scenes of
    "distractor" (40), depth of test trees of "productive" (5), strict (no kind of object of an operator on both sides
    of "systematic"), well_posed (no selection matches two objects), location (the places of objects belong to the
    program; if false, they are drawn with the scene, such that half of all sums and products are true)."""
    from mereo.data.questions.programs import Split

    check_count(1, programs=programs)
    made = Split(split, features, distractors, depth, strict, well_posed, location)
    splits = {"train": OPERATORS * programs, "validation": HELD_OUT, "test": HELD_OUT}
    if split == "systematic":
        most = OPERATORS * 100 * len(made.kinds()[0])
        splits = {name: min(size, most) for name, size in splits.items()}
    return {"load": later("mereo.data.questions.scenes:load_questions", split=made, splits=splits), "splits": splits}


def default(wanted: "Wanted") -> "Splits":
    """`load` with the default options; facts are made without PyTorch."""
    return configure()["load"](wanted)


register_dataset(
    "gcog",
    summary="questions such as the colour of h about a grid of letters, with splits that test generalisation; generated"
    " when needed",
    source="Ito et al., arXiv:2401.15030",
    num_classes=ANSWERS,
    in_chans=11,
    size=None,
    splits={"train": 40000, "validation": HELD_OUT, "test": HELD_OUT},
    augment=(),
    fields=("rows", "labels"),
    configure=configure,
    load=default,
)
