"""The optimisers that a configuration names, by one or two steps of their equations."""

from typing import Any

import pytest
import torch

from mereo.errors import UsageError
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


@pytest.mark.parametrize("name", ["adamw", "adam"])
def test_adam_divides_by_a_running_root_of_squares(name: str) -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = make_optimizer(TrainConfig(optimizer=name, lr=0.1, weight_decay=0.0, adam_beta2=0.5), [weight])
    expected, mean, squares = weight.detach().clone(), torch.zeros(2), torch.zeros(2)
    for step, gradient in enumerate((torch.tensor([3.0, 0.5]), torch.tensor([-1.0, 0.0])), 1):
        mean, squares = 0.9 * mean + 0.1 * gradient, 0.5 * squares + 0.5 * gradient**2
        expected = expected - 0.1 * mean / (1 - 0.9**step) / ((squares / (1 - 0.5**step)).sqrt() + 1e-8)
        weight.grad = gradient
        optimizer.step()
        torch.testing.assert_close(weight.detach(), expected)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"adam_beta2": 1.0}, "adam_beta2 is 1.0"), ({"adam_beta2": -0.1}, "adam_beta2 is -0.1"),
        ({"adam_beta2": 0.95, "optimizer": "sgd"}, "optimizer 'sgd', which has none"),
    ],
)  # fmt: skip
def test_a_beta2_that_cannot_be(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        TrainConfig(**given).check()
