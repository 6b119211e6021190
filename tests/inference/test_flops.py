"""Operations of networks: counted for every network of the catalogue, whatever its arguments, and without a trace."""

from typing import Any

import pytest
import torch
from torch import nn

from mereo.errors import UsageError
from mereo.inference.flops import count_flops, forward_flops
from mereo.models import create_model, get_model_entry
from mereo.models.registry import families


def small(name: str, **arguments: Any) -> dict[str, Any]:
    return {**(get_model_entry(name).tiny or {}), **arguments}


def switches() -> list[tuple[str, dict[str, Any]]]:
    """The tiny preset of every family as it is, and with each of its switches thrown."""
    names = [entry.name for entry in families().values()]
    cases: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in names]
    for name in names:
        defaults = get_model_entry(name).defaults
        cases += [(name, {key: not value}) for key, value in defaults.items() if isinstance(value, bool)]
    return cases


CASES = [
    *switches(),
    ("capsnet", {"learned_prior": True, "capsule_bias": True, "leaky": True, "middle_capsules": 3}),
    ("mspcaps_tiny", {"routing": "dynamic"}),
    ("efficient_capsnet", {"decoder": "none", "norm": "instance"}),
]


ROWS = [case if not case[1] else pytest.param(*case, marks=pytest.mark.long) for case in CASES]


@pytest.mark.long
@pytest.mark.parametrize(("name", "arguments"), ROWS, ids=str)
def test_every_network_is_counted_and_left_as_it_was(name, arguments):
    try:
        model = create_model(name, **small(name, **arguments))
    except UsageError:
        pytest.skip("the switch does not go with the others of this preset")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    trained = [parameter.requires_grad for parameter in model.parameters()]
    count = forward_flops(model)
    assert count > 0
    assert model.training and [parameter.requires_grad for parameter in model.parameters()] == trained
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items()), "statistics were updated"
    both = count_flops(model, model.example_inputs(2), backward=True)
    assert both > 2 * count and all(parameter.grad is None for parameter in model.parameters())


def test_a_trained_parameter_may_enter_a_module_through_a_view():
    """The module tracker of PyTorch fails on such a view under no_grad."""

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift, self.layer = nn.Parameter(torch.zeros(5)), nn.Linear(5, 3, bias=False)

        def forward(self, inputs):
            return self.layer(self.shift.expand(len(inputs), 5)) + self.layer(inputs)

    assert count_flops(Shifted(), torch.rand(2, 5)) == 2 * 2 * 2 * 5 * 3


def test_a_network_without_couplings_is_counted():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 10))
    forward = 2 * (9 * 4 * 36 + 4 * 36 * 10)
    assert count_flops(model, torch.rand(1, 1, 8, 8)) == forward
    # Backward: the weights of both layers and the inputs of the second; the images need no gradient.
    assert count_flops(model, torch.rand(2, 1, 8, 8), backward=True) == 2 * (2 * forward + 2 * 4 * 36 * 10)


def test_a_frozen_network_has_no_gradients_to_count():
    model = nn.Linear(5, 3).requires_grad_(False)
    assert count_flops(model, torch.rand(2, 5), backward=True) == count_flops(model, torch.rand(2, 5))


def test_operations_by_hand():
    """Two convolutions, 1 to 4 channels at 20x20 and 4 to 16 at 6x6; votes of 72 for 3; three rounds of routing."""
    model = create_model("capsnet", conv_channels=4, primary_types=2, num_classes=3)
    convolutions = 81 * 4 * 20 * 20 + 81 * 4 * 16 * 6 * 6
    votes = 72 * 8 * 3 * 16
    combined, agreed = 3 * 72 * 3 * 16, 2 * 72 * 3 * 16
    assert forward_flops(model) == 2 * (convolutions + votes + combined + agreed)
