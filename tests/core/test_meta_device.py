"""Modules without values, and operators that are called directly."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from mereo.core.kernels.direct import direct
from mereo.core.meta_device import on_meta_device


def test_shapes_are_those_of_a_module_with_values() -> None:
    def make() -> dict[str, torch.Size]:
        layer = nn.Linear(3, 5)
        nn.init.trunc_normal_(layer.weight, std=0.02)
        nn.init.normal_(layer.bias)
        made = {name: p.shape for name, p in layer.named_parameters()}
        return made | {"randn": torch.randn(2, 3).shape, "eye": torch.eye(2, 3).shape, "square": torch.eye(4).shape}

    with on_meta_device():
        shapes = make()
        assert torch.rand(2).device.type == "meta"
    assert shapes == make()
    assert torch.rand(2).device.type == "cpu"


def test_an_operator_called_directly_gives_the_same_and_keeps_its_gradient() -> None:
    from mereo.core.kernels.cross_agreement import _best

    u, v, forms = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 6), torch.randn(7, 3, 5, 6)
    assert torch.equal(direct(_best, u, v, forms, 2), _best(u, v, forms, 2))
    assert direct(_best, u.requires_grad_(), v, forms, 2).grad_fn is not None


@pytest.mark.long
def test_predicting_one_image_imports_no_room_that_it_does_not_use() -> None:
    code = """
import sys
import torch
import mereo
for name in ("mspcaps_tiny", "capsnet"):
    model = mereo.create_model(name, num_classes=3, in_chans=1, img_size=28).eval()
    mereo.models.registry.outline(name, num_classes=3, in_chans=1, img_size=28)
    with torch.inference_mode():
        model(torch.rand(1, 1, 28, 28))
print(*(name for name in sys.modules if name.startswith("mereo.")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rooms = {name.split(".")[1] for name in done.stdout.split()}
    assert "models" in rooms and not rooms & {"training", "measure", "explain", "export", "bench", "cli", "pictures"}
