"""Packed layers compute what the layers compute, and step aside where they cannot."""

import copy

import pytest
import torch
from torch import Tensor, nn

from mereo.errors import UsageError
from mereo.layers import FeedForward
from mereo.layers.packed import Packed, can_pack, pack

LAYERS = {
    "strided": (lambda: nn.Conv2d(6, 8, 3, 2, 1, groups=2), (2, 6, 9, 7)),
    "pointwise": (lambda: nn.Conv2d(6, 8, 1, bias=False), (1, 6, 4, 4)),
    "depthwise": (lambda: nn.Conv2d(6, 6, 3, padding=1, groups=6), (2, 6, 5, 5)),
    "vectors": (lambda: nn.Linear(6, 8), (3, 6)),
    "tokens": (lambda: nn.Linear(6, 8, bias=False), (2, 5, 3, 6)),
}
every_layer = pytest.mark.parametrize("name", LAYERS)

pytestmark = pytest.mark.skipif(not can_pack(nn.Linear(2, 2)), reason="this PyTorch has no oneDNN")


def made(name: str) -> tuple[nn.Module, Tensor]:
    layer, shape = LAYERS[name]
    return layer().requires_grad_(False), torch.randn(shape)


@every_layer
@pytest.mark.parametrize("activation", [nn.Identity(), nn.ReLU(), nn.GELU(), nn.GELU("tanh"), nn.SiLU()], ids=str)
def test_it_computes_the_same(name: str, activation: nn.Module) -> None:
    layer, x = made(name)
    torch.testing.assert_close(Packed(layer, activation)(x), activation(layer(x)), rtol=1e-5, atol=1e-6)


def test_an_activation_that_onednn_lacks_is_refused() -> None:
    with pytest.raises(UsageError, match="Softmax"):
        Packed(nn.Linear(2, 3), nn.Softmax(-1))


@every_layer
def test_weights_can_be_had_copied_and_converted(name: str) -> None:
    layer, x = made(name)
    packed = Packed(layer)
    assert torch.equal(packed.weight, layer.weight)
    torch.testing.assert_close(copy.deepcopy(packed)(x), layer(x), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(packed.double()(x.double()), layer.double()(x.double()))
    assert packed.float()._packed is not None and packed._dense is None


@every_layer
def test_gradients_of_inputs_and_empty_batches(name: str) -> None:
    layer, x = made(name)
    packed, x, again = Packed(layer), x.requires_grad_(), x.detach().clone().requires_grad_()
    packed(x).square().sum().backward()
    layer(again).square().sum().backward()
    torch.testing.assert_close(x.grad, again.grad)
    assert packed(x[:0]).shape == layer(x[:0]).shape
    with torch.autocast("cpu", torch.bfloat16):
        assert packed(x.detach()).dtype == torch.bfloat16


def test_layers_of_a_network_are_packed_with_their_activations() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Identity(), nn.ReLU(), nn.Flatten(2), FeedForward(36, 8), nn.Linear(36, 2), nn.Tanh()
    )
    model.eval().requires_grad_(False)
    x = torch.randn(2, 3, 8, 8)
    expected = model(x)
    pack(model)
    layers = [module for module in model.modules() if isinstance(module, Packed)]
    assert [layer.activation_name[0] for layer in layers] == ["relu", "gelu", "none", "none"]
    assert not any(isinstance(module, nn.Conv2d | nn.Linear) for module in model.modules())
    assert isinstance(model[2], nn.Identity) and isinstance(model[4].activation, nn.Identity)
    torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-6)
    assert isinstance(model[-1], nn.Tanh)


@pytest.mark.slow
def test_a_packed_network_compiles_to_one_graph() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(2), nn.Linear(36, 2)).requires_grad_(False)
    pack(model)
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(torch.compile(model, fullgraph=True)(x), model(x), rtol=1e-5, atol=1e-6)


def test_what_cannot_be_packed_stays() -> None:
    assert not can_pack(nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"))
    assert not can_pack(nn.Linear(3, 4).double())
    assert not can_pack(nn.ConvTranspose2d(3, 4, 3))


def test_an_empty_sequence_stays_empty() -> None:
    """torchvision's ShuffleNets have empty branches."""
    network = nn.Sequential(nn.Sequential(), nn.Sequential(nn.Identity()), nn.Linear(3, 2))
    x = torch.randn(4, 3)
    expected = network(x)
    pack(network)
    torch.testing.assert_close(network(x), expected)
