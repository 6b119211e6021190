"""Generated sequences of 15 joints that walk, wave, fall, sit down or jump."""

from typing import Any

from mereo.data.registry import later, register_dataset
from mereo.errors import UsageError, check_count, check_not_negative, check_seed

HELD_OUT = 1000
"""Sequences of the validation and of the test split."""


def configure(
    *, least: int = 30, most: int = 60, noise: float = 0.1, train: int = 2000, seed: int = 0
) -> dict[str, Any]:
    """Options: least and most frames of a sequence (30 and 60), standard deviation of the noise of a coordinate in
    metres (0.1), training sequences (2000), seed (0)."""
    check_count(1, train=train)
    check_not_negative(noise=noise)
    check_seed(seed)
    if not 2 <= least <= most <= 1000:
        raise UsageError(f"least is {least} and most is {most}; a sequence has from 2 to 1000 frames.")
    splits = {"train": train, "validation": HELD_OUT, "test": HELD_OUT}
    made = later("mereo.data.actions:load", least=least, most=most, noise=noise, seed=seed, splits=splits)
    return {"load": made, "splits": splits}


register_dataset(
    "actions",
    summary="a body of 15 joints that walks, waves, falls, sits down or jumps; generated when needed",
    source="ours, for Xu, Wang, arXiv:1801.02475",
    num_classes=5,
    in_chans=1,
    size=None,
    augment=("speed=0.8:1.25", "turn=30", "mirror"),
    fields=("sequences", "lengths", "labels"),
    network_arguments={"joints": 15, "bodies": 1},
    configure=configure,
    **configure(),
)
