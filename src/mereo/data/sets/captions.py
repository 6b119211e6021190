"""Scenes of 4 x 4 noisy cells whose classes come in pairs, with captions and yes-or-no questions.

A pair is there together with probability 0.9 in training. A test with `together=0` shows one class of each pair, so
whoever trusts the pairs names classes that are not there.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

from mereo.data.registry import register_dataset
from mereo.errors import UsageError, check_choice, check_count

if TYPE_CHECKING:
    from mereo.data.load import Splits, Wanted

HELD_OUT, ASKED, TEST_SEED = 600, 1600, 7
"""Scenes of the validation and of the test split, and the questions about them."""


def load(
    wanted: "Wanted", *, train: int, together: float, filler: int, negatives: str, splits: dict[str, int]
) -> "Splits":
    """Drawn in a second; nothing is read from the root."""
    from mereo.data.captions import FEATURES, TOKENS, test_set, training_set
    from mereo.data.load import made_splits

    made = {"train": training_set(train, 0.9, 1, filler), "validation": test_set(HELD_OUT, 0.9, 2, filler, most=ASKED)}
    made["test"] = test_set(HELD_OUT, together, TEST_SEED, filler, negatives, ASKED)
    return made_splits(made, TOKENS, FEATURES + 1, wanted.limit)


def configure(
    *, train: int = 48000, together: float = 0.9, filler: int = 0, negatives: str = "random"
) -> dict[str, Any]:
    """Options: training captions, with a question for each (48000), probability that a pair of a test scene is there
    together (0.9), start tokens between image and text (0), negatives of test questions ("random" or "adversarial")."""
    check_count(1, train=train)
    check_count(filler=filler)
    check_choice("negatives", negatives, ("random", "adversarial"))
    if not 0 <= together <= 1:
        raise UsageError(f"together is {together}; it must be a probability.")
    splits = {"train": 2 * train, "validation": HELD_OUT + ASKED, "test": HELD_OUT + ASKED}
    made = partial(load, train=train, together=together, filler=filler, negatives=negatives, splits=splits)
    return {"load": made, "splits": splits}


register_dataset(
    "captions",
    summary="noisy scenes of paired classes with captions and yes-or-no questions; generated when needed",
    source="ours, for arXiv:2503.03321",
    num_classes=13,
    in_chans=17,
    size=None,
    augment=(),
    fields=("rows", "labels"),
    configure=configure,
    **configure(),
)
