"""What tests of compiled operators share."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from mereo.core.kernels import library

needs_library = pytest.mark.skipif(library.missing is not None, reason=str(library.missing))
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")
"""Those of torch.library.opcheck that do not compile, which the conformance suite does."""


def assert_close(found: Sequence[Tensor], expected: Sequence[Tensor], share: float) -> None:
    """Every difference is at most `share` of the largest entry; infinite entries are the same."""
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        finite = other.isfinite()
        assert torch.equal(one[~finite].double(), other[~finite].double())
        assert ((one.double() - other.double())[finite].abs() <= share * other[finite].double().abs().max()).all()


def same_by_any_number_of_threads(compute: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
    """What it gives with one thread, and must give with three."""
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        once = compute()
        torch.set_num_threads(3)
        assert all(torch.equal(x, y) for x, y in zip(compute(), once, strict=True))
    finally:
        torch.set_num_threads(threads)
    return once


def use_level(monkeypatch: pytest.MonkeyPatch, compiled: ModuleType, level: int, *names: str) -> None:
    """Let a module call its functions for another instruction set; skips where the processor has none."""
    if level > library._library.mereo_isa():
        pytest.skip("this processor does not have it")
    for name in names:
        monkeypatch.setattr(compiled, name, getattr(compiled, name).at_level(level))


def assert_traceable(operator: Any, arguments: Sequence[Tensor | None]) -> None:
    """The signature, the gradient and the shapes that an operator states are true, as PyTorch checks them."""
    found = torch.library.opcheck(operator, tuple(arguments), test_utils=CHECKS)
    assert found == dict.fromkeys(CHECKS, "SUCCESS")
