"""Functions that are computed again on the way back."""

import torch
from torch import Tensor

from mereo.core.recompute import recomputed


def test_gradients_are_those_of_the_function_also_under_transforms() -> None:
    calls = 0

    def cubed(x: Tensor, power: int) -> Tensor:
        nonlocal calls
        calls += 1
        return (x.sin() ** power).sum()

    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    expected = 3 * x.sin() ** 2 * x.cos()
    (found,) = torch.autograd.grad(recomputed(cubed, x, 3), x)
    torch.testing.assert_close(found, expected)
    assert calls == 2
    torch.testing.assert_close(torch.func.grad(lambda y: recomputed(cubed, y, 3))(x.detach()), expected)
