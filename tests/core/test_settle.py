"""settle: the number of steps, the tolerance, gradients through every step."""

import pytest
import torch
from torch import Tensor

from mereo.core import settle
from mereo.errors import UsageError


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_number_of_steps(steps: int) -> None:
    assert settle(lambda x: 2 * x + 1, torch.tensor(0.0), steps=steps) == 2**steps - 1


def test_no_steps_return_the_state_itself() -> None:
    state = torch.randn(3)
    assert settle(lambda x: x + 1, state, steps=0) is state


def test_tolerance_stops_early() -> None:
    taken = []

    def halve(x: Tensor) -> Tensor:
        taken.append(1)
        return x / 2

    out = settle(halve, torch.tensor([1.0, -1.0]), steps=100, tolerance=0.1)
    assert len(taken) == 4 and out[0] == 1 / 16


def test_gradient_flows_through_every_step() -> None:
    x = torch.tensor(2.0, requires_grad=True)
    settle(lambda s: s * x, x, steps=3).backward()
    assert x.grad == 4 * 2**3


def test_negative_steps() -> None:
    with pytest.raises(UsageError, match="steps is -1"):
        settle(lambda x: x, torch.zeros(1), steps=-1)


def test_a_schedule_gives_every_step_its_item() -> None:
    assert settle(lambda state, item: [*state, item], [], steps=(0.5, 0.25, 1.0)) == [0.5, 0.25, 1.0]
    assert settle(lambda x, rate: x + rate, torch.tensor(0.0), steps=[4.0, 1e-9, 3.0], tolerance=1e-6) == 4.0
