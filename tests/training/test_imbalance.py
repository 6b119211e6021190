"""Uneven classes are reported before a training starts."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mereo.training.setup import describe_imbalance


def setup(counts: tuple[int, ...], sampler: str = "shuffle") -> Any:
    labels = torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])
    splits = SimpleNamespace(train=SimpleNamespace(labels=labels), class_names=("crow", "owl", "wren"))
    return SimpleNamespace(splits=splits, config=SimpleNamespace(sampler=sampler))


def test_sizes_and_a_remedy_are_named() -> None:
    line = describe_imbalance(setup((164, 50, 8)))
    assert line is not None and "164 images of crow" in line and "8 of wren" in line and "--sampler balanced" in line


@pytest.mark.parametrize("case", [((30, 20, 10), "shuffle"), ((164, 50, 8), "balanced")])
def test_even_classes_and_balanced_sampling_need_no_line(case: tuple[tuple[int, ...], str]) -> None:
    assert describe_imbalance(setup(*case)) is None
