"""Pictures of two small images, and which of them is left of the other, above it, or of the same class.

The regions of a picture are the two images and the smallest box around both, each as 8 x 8 pixels and a box. Pictures
are generated from a seed and the images of another data set, such as digits or fashion_mnist.
"""

from typing import Any

from mereo.data.registry import DATASETS, later, register_dataset
from mereo.errors import UsageError, check_count, unknown

HELD_OUT, CLASSES = 1000, 10
"""Pictures of the validation and of the test split; classes of digits."""


def _made(of: str, train: int, classes: int) -> dict[str, Any]:
    splits = {"train": train, "validation": HELD_OUT, "test": HELD_OUT}
    made = later("mereo.data.regions:load_pictures", of=of, splits=splits)
    return {"load": made, "splits": splits, "num_classes": classes + 3, "task_options": {"side": 8}}


def configure(*, of: str = "digits", train: int = 20000) -> dict[str, Any]:
    """Options: data set of the small images (digits), number of training pictures (20000)."""
    check_count(1, train=train)
    if of not in DATASETS:
        raise unknown("data set of images, for the option of=", of, DATASETS)
    info = DATASETS[of]
    if info.read is None or info.labels_per_image != 1 or "labels" not in info.fields or not info.num_classes:
        raise UsageError(f"of is {of!r}, which is not images of one class each; give digits, mnist or fashion_mnist.")
    return _made(of, train, info.num_classes)


register_dataset(
    "picture_relations",
    summary="two digits in a picture: the first left of the second, above it, or the same; generated when needed",
    source="ours, for Tresp et al., arXiv:2001.11027; digits: Alpaydin, Kaynak, UCI, 1998 (CC BY 4.0)",
    in_chans=1,
    size=None,
    augment=(),
    fields=("regions", "labels"),
    configure=configure,
    **_made("digits", 20000, CLASSES),
)
