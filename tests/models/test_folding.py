"""Folded networks answer as they did, have no batch normalisation left, and leave the model as it was."""

import pytest
import torch
from torch import Tensor, nn

import mereo
from mereo.errors import UsageError
from mereo.models.folding import SMALL_MAP, PointwiseConvolution, folded
from mereo.models.registry import families


def trained(name: str, **arguments: object) -> mereo.models.CapsuleClassifier:
    """A network whose batch normalisations have seen something."""
    torch.manual_seed(0)
    model = mereo.create_model(name, **arguments)  # type: ignore[arg-type]
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.2)
            module.running_var.uniform_(0.3, 3)
            module.weight.data.uniform_(0.5, 2)
            module.bias.data.normal_()
    return model


def norms(model: nn.Module) -> int:
    return sum(isinstance(m, nn.BatchNorm2d) for m in model.modules())


@pytest.mark.parametrize("name", ["mspcaps_tiny", "efficient_capsnet", "capsnet_svhn"])
def test_a_folded_network_answers_the_same(name: str) -> None:
    model = trained(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    ready = folded(model)
    images = torch.rand(3, *model.image_shape)
    with torch.no_grad():
        torch.testing.assert_close(ready(images), model.eval()(images), rtol=1e-4, atol=1e-5)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(p.requires_grad for p in model.parameters()) and not any(p.requires_grad for p in ready.parameters())


def test_norms_after_convolutions_are_gone_and_no_others() -> None:
    model = trained("mspcaps_tiny")
    assert norms(model) > 0 and norms(folded(model)) == 0
    # Efficient-CapsNet has its activation between the convolution and the norm: there is nothing to fold into.
    efficient = trained("efficient_capsnet")
    between = [isinstance(a, nn.Conv2d) for s in efficient.modules() if isinstance(s, nn.Sequential)
               for a, b in zip(s, list(s)[1:], strict=False) if isinstance(b, nn.BatchNorm2d)]  # fmt: skip
    assert norms(folded(efficient)) == len(between) - sum(between)


@pytest.mark.parametrize("side", [3, 12])
@pytest.mark.parametrize("batch", [0, 1, 5])
def test_folded_pointwise_convolutions_of_small_and_large_maps(side: int, batch: int) -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(4, 6, 1, bias=False), nn.BatchNorm2d(6))
    layers[1].running_mean.normal_()
    layers[1].running_var.uniform_(0.3, 3)
    fused = folded(nn.Sequential(layers))[0][0]
    assert type(fused) is PointwiseConvolution
    assert (side**2 <= SMALL_MAP) == (side == 3)
    maps = torch.randn(batch, 4, side, side)
    for given in (maps, maps.contiguous(memory_format=torch.channels_last)):
        expected = layers.eval()(maps)
        torch.testing.assert_close(fused(given), expected, rtol=1e-4, atol=1e-5)
        if batch:
            torch.testing.assert_close(torch.vmap(fused)(given[:, None])[:, 0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["biformer", "cifar_resnet", "davit", "shvit", "unet"])
def test_hooks_change_a_folded_network_as_they_do_the_network(family: str) -> None:
    entry = families()[family]
    torch.manual_seed(0)
    model = mereo.create_model(entry.name, **(entry.tiny or {})).eval()
    inputs = model.example_inputs(2)
    kinds = {type(module): name for name, module in model.named_modules()}
    for name in kinds.values():
        hook = model.get_submodule(name).register_forward_hook(lambda module, inputs, output: 1.5 * output)
        with torch.no_grad():
            torch.testing.assert_close(model.fuse()(inputs), model(inputs), rtol=1e-3, atol=1e-4)
        hook.remove()


def test_a_folded_copy_is_not_saved_as_the_network_it_is_from(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match="no name and arguments"):
        mereo.save_weights(tmp_path / "x.safetensors", folded(trained("mspcaps_tiny")))


class Doubling(nn.Module):
    """A module whose form for inference is one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.linear(x)

    def for_inference(self) -> nn.Module:
        with torch.no_grad():
            self.linear.weight.mul_(2)
            self.linear.bias.mul_(2)
        return self.linear


def test_modules_with_a_form_for_inference_are_replaced() -> None:
    model, x = nn.Sequential(nn.ReLU(), Doubling()), torch.randn(4, 3)
    ready = folded(model)
    assert not isinstance(ready[1], Doubling) and not ready.training
    torch.testing.assert_close(ready(x), model(x))
