"""The optimisers that a configuration names, by one or two steps of their equations."""

import pytest
import torch

from mereo.training.backend import make_optimizer
from mereo.training.config import TrainConfig


def test_rmsprop_divides_by_a_running_root_of_squares() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = make_optimizer(TrainConfig(optimizer="rmsprop", lr=0.1, weight_decay=0.0), [weight])
    expected, squares = weight.detach().clone(), torch.zeros(2)
    for gradient in (torch.tensor([3.0, 0.5]), torch.tensor([-1.0, 0.0])):
        squares = 0.9 * squares + 0.1 * gradient**2
        expected = expected - 0.1 * gradient / (squares.sqrt() + 1e-8)
        weight.grad = gradient
        optimizer.step()
        torch.testing.assert_close(weight.detach(), expected)


@pytest.mark.parametrize(
    ("name", "kind"), [("adamw", torch.optim.AdamW), ("adam", torch.optim.Adam), ("sgd", torch.optim.SGD)]
)
def test_kinds(name: str, kind: type[torch.optim.Optimizer]) -> None:
    optimizer = make_optimizer(TrainConfig(optimizer=name, lr=0.1), [torch.nn.Parameter(torch.ones(1))])
    assert type(optimizer) is kind and optimizer.defaults["lr"] == 0.1
