"""Every mechanism of an interface, in the slots of every network that has them."""

from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mereo
from mereo.catalogue import MECHANISMS, list_mechanisms

NAMES = [name for interface in ("tokens", "maps", "qkv") for name in list_mechanisms(interface=interface)]
NETWORKS: dict[str, dict[str, Any]] = {
    "resnet_cifar": {"widths": (8, 8, 8), "blocks": 1, "img_size": 10, "num_classes": 3},
    "unet_small": {"widths": (8, 8), "img_size": 8, "num_classes": 3},
    "maxvit_tiny_tf": {
        "stem_widths": (4, 4),
        "widths": (4,),
        "depths": (1,),
        "img_size": 16,
        "head_dim": 4,
        "window_size": 2,
        "num_classes": 3,
    },
    "vit_tiny": {"img_size": 16, "patch_size": 4, "embed_dim": 12, "depth": 1, "num_heads": 6, "num_classes": 3},
}
every_slot = pytest.mark.parametrize(
    ("network", "name"), [pytest.param(network, name, id=f"{network}-{name}") for network in NETWORKS for name in NAMES]
)


def build(network: str, name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = mereo.create_model(network, mechanism=name, **NETWORKS[network])
    return model, torch.randn(2, *model.image_shape)


def scores(model: nn.Module, images: Tensor) -> Tensor:
    """Of classes; of a network that gives maps, their means."""
    outputs: Tensor = model(images)
    return outputs.flatten(2).mean(2) if outputs.dim() == 4 else outputs


@every_slot
def test_it_trains(network: str, name: str) -> None:
    model, images = build(network, name)
    labels, optimizer = torch.tensor([0, 1]), torch.optim.SGD(model.parameters(), 0.01)
    losses = []
    for _ in range(3):
        loss = nn.functional.cross_entropy(scores(model, images), labels)
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert min(losses[1:]) < losses[0]


@every_slot
def test_the_arguments_make_the_same_network_again(network: str, name: str) -> None:
    model, images = build(network, name)
    again = mereo.create_model(model.config["model"], **model.config["args"]).eval()
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(images), model.eval()(images))


@pytest.mark.parametrize("network", NETWORKS)
def test_a_file_holds_mechanism_and_arguments(network: str, tmp_path: Path) -> None:
    arguments = {**NETWORKS[network], "mechanism": "neighborhood", "mechanism_args": {"window": 3}}
    model = mereo.create_model(network, **arguments).eval()
    images = torch.randn(2, *model.image_shape)
    mereo.save_weights(tmp_path / "model.safetensors", model)
    again = mereo.load(tmp_path / "model.safetensors")
    assert torch.equal(again(images), model(images)) and again.config == model.config


@pytest.mark.long
@pytest.mark.parametrize(("network", "name"), [*zip(cycle(NETWORKS), NAMES[::3], strict=False)])
def test_it_compiles_and_exports(network: str, name: str) -> None:
    """A third of the mechanisms, one network after the other; `test_promise` compiles and exports each by itself."""
    model, images = build(network, name)
    model.eval()
    promises = MECHANISMS[name].promises
    expected = model(images)
    if "compile" in promises:
        torch.compiler.reset()
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(images)
        torch.testing.assert_close(compiled, expected, rtol=1e-4, atol=1e-5)
    if "export" in promises:
        exported = torch.export.export(model, (images,)).module()(images)
        torch.testing.assert_close(exported, expected, rtol=1e-4, atol=1e-5)
