"""What tests of compiled operators share."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from mereo.core.kernels import library

needs_library = pytest.mark.skipif(library.missing is not None, reason=str(library.missing))
EVERY_CHECK_BUT_COMPILATION = ("test_schema", "test_autograd_registration", "test_faketensor")
"""Of torch.library.opcheck; the conformance suite compiles."""


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
