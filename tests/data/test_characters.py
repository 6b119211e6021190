"""Digits and letters are recognised by the names of the classes; they are neither mirrored nor given black borders."""

import string
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mereo.cli.train import run
from mereo.data import OPERATIONS, Augmentation, dataset_info
from mereo.data.augmentation_help import LINES
from mereo.data.characters import AUGMENT, are_signs, is_sign


@pytest.mark.parametrize("name", ["7", "A", "a_lower", "digit_3", "three", "upper-B", "plus"])
def test_signs(name: str) -> None:
    assert is_sign(name)


@pytest.mark.parametrize("name", ["cat", "17", "rose_1999", "", "_", "class one two cats"])
def test_other_names(name: str) -> None:
    assert not is_sign(name)


def test_most_classes_decide() -> None:
    assert are_signs(tuple(string.digits)) and are_signs((*string.ascii_letters, "other"))
    assert not are_signs(("7",)) and not are_signs(("a", "cat", "dog")) and not are_signs([str(n) for n in range(100)])


def test_folders_of_signs_have_their_own_augmentation(make_folder: Callable[..., Path]) -> None:
    assert dataset_info(make_folder("train/3=2", "train/8=2", name="digits")).augment == AUGMENT
    assert dataset_info(make_folder("train/cat=2", "train/dog=2", name="pets")).augment == ("crop=4", "flip")
    # White paper stays white to its edges.
    white = Augmentation.parse(AUGMENT)(torch.ones(8, 1, 12, 12), torch.Generator().manual_seed(0))
    assert white.min() > 0.999


def test_every_operation_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(LINES) == set(OPERATIONS)
    run(["--augment", "help"], "train")
    printed = capsys.readouterr().out
    for operation in OPERATIONS.values():
        assert operation.usage in printed
    for other in ("--mixup", "--cutmix", "auto", "none"):
        assert other in printed
