"""The class of training recipes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Recipe:
    """One recipe.

    Attributes:
        summary: one sentence.
        source: where it is from.
        reported: the test accuracy its source reports, in percent, by data set.
        changes: fields of the configuration.
        by_data: further fields, by data set.
    """

    summary: str
    source: str
    changes: Mapping[str, Any]
    by_data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    reported: Mapping[str, float] = field(default_factory=dict)


CIFAR10 = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2023, 0.1994, 0.2010)}
"""Fields for CIFAR-10: mean and standard deviation of its channels."""
DIGITS = {
    "img_size": 20, "epochs": 15, "batch_size": 32, "optimizer": "adamw", "lr": 3e-3, "weight_decay": 1e-4,
    "schedule": "cosine", "warmup_epochs": 1.0, "min_lr": 1e-6, "augment": ("rotate=10", "crop=2"),
    "validation_fraction": 0.0,
}  # fmt: skip
"""Fields, ours, for the digits of the package: a few minutes on a CPU core."""
