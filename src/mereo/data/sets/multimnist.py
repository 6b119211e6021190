"""MultiMNIST: pairs of MNIST's digits, overlaid on the fly."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from mereo.data.registry import register_dataset
from mereo.data.sets.mnist import FILES, read
from mereo.errors import UsageError

if TYPE_CHECKING:
    from mereo.data.images import Images, ImageSet

PAD, PAIR_SEED, MAX_SHIFT, MOST_SHIFT = 4, 0, 4, 28


def overlay(digits: "ImageSet", pairs_per_image: int, *, max_shift: int = MAX_SHIFT) -> "Images":
    """Pairs of the digits; the pairs of an evaluation are always the same."""
    from mereo.data.overlay import OverlaidPairs

    return OverlaidPairs(digits, pad=PAD, max_shift=max_shift, pairs_per_image=pairs_per_image, seed=PAIR_SEED)


def configure(*, max_shift: int = MAX_SHIFT) -> Mapping[str, Any]:
    """Options: max_shift, the largest shift of a digit on each axis in pixels (4; 6 in Efficient-CapsNet's code)."""
    if not 0 <= max_shift <= MOST_SHIFT:
        raise UsageError(f"max_shift is {max_shift}; it must be between 0 and {MOST_SHIFT}.")
    return {"wrap": partial(overlay, max_shift=max_shift)}


register_dataset(
    "multimnist",
    summary="two overlapping handwritten digits of different classes, overlaid as they are needed",
    source="Sabour, Frosst, Hinton, arXiv:1710.09829; from mnist",
    num_classes=10,
    in_chans=1,
    size=(36, 36),
    splits={"train": 60000, "test": 10000},
    read=read,
    augment=(),
    labels_per_image=2,
    fields=("images", "labels", "targets"),
    files=FILES,
    wrap=overlay,
    margin=PAD,
    configure=configure,
)
