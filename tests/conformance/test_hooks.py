"""A forward hook on a layer of a mechanism has the same effect whether the mechanism is recorded or not."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mereo
import mereo.catalogue
from mereo.core.catalogue import MECHANISMS


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
