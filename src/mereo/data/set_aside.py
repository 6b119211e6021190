"""Splits that a source lacks, taken from its training images: the same in every run."""

import warnings
from collections.abc import Mapping

from mereo.data.raw import RawSplit
from mereo.data.split import hold_out
from mereo.errors import UsageError

TEST_FRACTION, VALIDATED_FRACTION, TEST_SEED = 0.2, 0.1, 0
"""Share of the training images that becomes the test split: without another split, and next to a validation split."""


def test_fraction(splits: Mapping[str, object]) -> float:
    """The share of the training images that is set aside as the test split, by the splits that a source has."""
    return 0.0 if "test" in splits else VALIDATED_FRACTION if "validation" in splits else TEST_FRACTION


def with_test(splits: Mapping[str, RawSplit], data: object, *, warn: bool = True) -> dict[str, RawSplit]:
    """The splits with a test split. A missing one is a stratified share of the training images.

    Validation images choose the epoch, so they serve for testing only if no training image can be spared.

    Args:
        splits: that the source has.
        data: its name, for messages.
        warn: of images that are set aside.
    """
    fraction = test_fraction(splits)
    if not fraction:
        return dict(splits)
    train = splits["train"]
    kept, held = hold_out(train.labels, fraction, TEST_SEED)
    if not len(held) and "validation" in splits:
        return {"train": train, "test": splits["validation"]}
    if not len(held):
        raise UsageError(
            f"data is {str(data)!r}, with one image per class, so none can be set aside for testing;"
            " add images, or a test folder."
        )
    validated = "validation" in splits
    kind, chosen = ("training images", "; the validation split chooses the epoch") if validated else ("images", "")
    if warn:
        warnings.warn(
            f"{data} has no test split: {len(held):,} of its {len(train):,} {kind}, the same in every run, are set"
            f" aside for testing{chosen}.",
            UserWarning,
            stacklevel=5,
        )
    return {**splits, "train": train.take(kept), "test": train.take(held)}


def for_evaluation(splits: Mapping[str, RawSplit]) -> RawSplit:
    """The images on which a trained network is evaluated: the test images, else the validation images, else all."""
    return splits.get("test") or splits.get("validation") or splits["train"]
