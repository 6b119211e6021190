"""MultiMNIST: pairs of MNIST's digits, overlaid on the fly."""

from typing import TYPE_CHECKING

from mereo.data.registry import register_dataset
from mereo.data.sets.mnist import FILES, read

if TYPE_CHECKING:
    from mereo.data.images import Images, ImageSet

PAD, PAIR_SEED = 4, 0


def overlay(digits: "ImageSet", pairs_per_image: int) -> "Images":
    """Pairs of the digits; the pairs of an evaluation are always the same."""
    from mereo.data.overlay import OverlaidPairs

    return OverlaidPairs(digits, pad=PAD, pairs_per_image=pairs_per_image, seed=PAIR_SEED)


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
)
