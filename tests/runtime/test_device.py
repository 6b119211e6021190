"""Copies to a device."""

from typing import Any

import pytest
import torch

from mereo.data import Batch
from mereo.runtime.device import copied_to


class Stored:
    """Records how it was copied."""

    def to(self, device: Any, **given: Any) -> tuple[Any, dict[str, Any]]:
        return device, given


@pytest.mark.parametrize(
    ("device", "waits"), [("cpu", True), (torch.device("cpu"), True), ("cuda:1", False), ("mps", False)]
)
def test_only_a_copy_to_the_cpu_waits(device: Any, waits: bool) -> None:
    stored: Any = Stored()
    assert copied_to(stored, device) == (device, {"non_blocking": not waits})
    assert Batch(images=stored, labels=stored).to(device).labels == (device, {"non_blocking": not waits})


def test_without_a_device_nothing_is_copied() -> None:
    values = torch.ones(2)
    assert copied_to(values, None) is values


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_values_are_there_after_a_copy_from_a_gpu() -> None:
    queued = torch.ones(2**12, 2**12, device="cuda")
    for _ in range(20):
        queued = queued @ queued / 2**12
    assert (copied_to(queued, "cpu") == 1).all()
