"""Hooks on layers act whether a mechanism is recorded or not; layers of other classes, such as adapters, are called."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mereo
import mereo.catalogue
from mereo.core.catalogue import MECHANISMS
from mereo.layers import LayerScale
from mereo.models.network import Network
from mereo.models.registry import families


def louder(module: nn.Module, inputs: Any, output: Any) -> Any:
    return 1.5 * output if isinstance(output, Tensor) and output.is_floating_point() else None


@pytest.mark.parametrize("name", MECHANISMS)
@torch.no_grad()
def test_hooks_act_in_the_same_way_while_recorded(name: str) -> None:
    module, inputs = MECHANISMS[name].example()
    module.eval()
    layers = [each for each in module.modules() if each is not module and any(True for _ in each.parameters(False))]
    for layer in layers:
        with layer.register_forward_hook(louder):
            expected = module(*inputs)
            with mereo.record(module):
                torch.testing.assert_close(module(*inputs), expected, rtol=1e-4, atol=1e-5)


class Adapted(nn.Module):
    """A layer whose output is changed by a learned factor, with the layer's weights under its own name, as in PEFT."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base, self.factor = base, nn.Parameter(torch.tensor(1.5))

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base"), name)

    def forward(self, *inputs: Tensor) -> Any:
        return self.factor * self.base(*inputs)


def check_layers_are_called(module: nn.Module, *inputs: Any) -> None:
    """Each layer scaled from outside does what its scaled weights do: none is bypassed by use of its weights alone."""
    for where, layer in list(module.named_modules()):
        if type(layer) not in (nn.Linear, nn.Conv2d, nn.LayerNorm, nn.BatchNorm2d, LayerScale):
            continue
        module.set_submodule(where, Adapted(layer))
        scaled = module(*inputs)
        if isinstance(module, Network):
            torch.testing.assert_close(module.fuse()(*inputs), scaled, rtol=1e-3, atol=1e-5, msg=where)
        module.set_submodule(where, layer)
        before = copy.deepcopy(layer.state_dict())
        for parameter in layer.parameters():
            parameter.mul_(1.5)
        torch.testing.assert_close(scaled, module(*inputs), rtol=1e-4, atol=1e-6, msg=where)
        layer.load_state_dict(before)


@pytest.mark.parametrize("name", MECHANISMS)
@torch.no_grad()
def test_layers_of_other_classes_are_called(name: str) -> None:
    torch.manual_seed(0)
    module, inputs = MECHANISMS[name].example()
    check_layers_are_called(module.eval(), *inputs)


@pytest.mark.long
@pytest.mark.parametrize("family", ["maxvit", "cait", "davit", "volo", "nat", "inverted_dot_product_capsnet"])
@torch.no_grad()
def test_layers_of_other_classes_are_called_in_networks(family: str) -> None:
    torch.manual_seed(0)
    entry = families()[family]
    model = mereo.create_model(entry.name, **(entry.tiny or {})).eval()
    check_layers_are_called(model, model.example_inputs(2))
