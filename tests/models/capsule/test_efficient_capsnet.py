"""Efficient-CapsNet against the paper: counts, maps, the order of ReLU and norm, and a slow forward."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo import create_model
from mereo.errors import UsageError
from mereo.models import CapsuleClassifier
from mereo.models.registry import outline
from mereo.training.recipes import apply_recipe

STEM = ((5, 4, 1), (3, 8, 2), (3, 16, 1))


def count(module: nn.Module | None) -> int:
    return 0 if module is None else sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("name", "encoder", "decoder"),
    [
        ("efficient_capsnet", 161_824, 1_411_344),
        ("efficient_capsnet_mnist", 161_824, 1_411_344),
        ("efficient_capsnet_smallnorb", 151_664, 229_570),
        ("efficient_capsnet_multimnist", 154_656, 1_936_144),
    ],
)
def test_counts_of_the_paper(name: str, encoder: int, decoder: int) -> None:
    model = create_model(name)
    assert count(model.decoder) == decoder
    assert count(model) - decoder == encoder


@pytest.mark.parametrize(
    ("name", "convolutions", "norms", "depthwise"),
    [
        ("efficient_capsnet", [832, 18_496, 36_928, 73_856], [64, 128, 128, 256], 10_496),
        ("efficient_capsnet_smallnorb", [3_168, 18_496, 36_928, 73_856], [64, 128, 128, 256], 8_320),
        ("efficient_capsnet_multimnist", [832, 18_496, 36_928, 73_856], [64, 128, 128, 256], 3_328),
    ],
)
def test_counts_of_the_parts(name: str, convolutions: list[int], norms: list[int], depthwise: int) -> None:
    model = create_model(name)
    assert [count(m) for m in model.stem if isinstance(m, nn.Conv2d)] == convolutions
    assert [count(m) for m in model.stem if isinstance(m, nn.BatchNorm2d | nn.InstanceNorm2d)] == norms
    assert count(model.primary) == depthwise
    assert count(model.head) == model.num_classes * 16 * (8 * 16 + 1)


@pytest.mark.parametrize(
    ("name", "sides"),
    [
        ("efficient_capsnet", [28, 24, 22, 20, 9]),
        ("efficient_capsnet_smallnorb", [48, 21, 19, 17, 8]),
        ("efficient_capsnet_multimnist", [36, 32, 30, 14, 6]),
    ],
)
def test_maps_of_the_paper(name: str, sides: list[int]) -> None:
    model = create_model(name).eval()
    maps = torch.rand(1, *model.image_shape)
    found = [maps.shape[-1]]
    for module in model.stem:
        maps = module(maps)
        found += [maps.shape[-1]] if isinstance(module, nn.Conv2d) else []
    assert found == sides
    assert model.primary(maps).shape == (1, 16, 8)


def test_presets() -> None:
    for name, norm, activation in (
        ("efficient_capsnet", nn.BatchNorm2d, nn.ReLU),
        ("efficient_capsnet_smallnorb", nn.InstanceNorm2d, nn.LeakyReLU),
        ("efficient_capsnet_multimnist", nn.BatchNorm2d, nn.ReLU),
    ):
        model = create_model(name)
        kinds = [nn.Conv2d, activation, norm] * 4
        assert all(isinstance(m, kind) for m, kind in zip(model.stem, kinds, strict=True))
        assert all(m.eps == 1e-3 for m in model.stem if isinstance(m, norm))
    assert all(m.momentum == 0.01 for m in model.stem if isinstance(m, nn.BatchNorm2d))
    small = create_model("efficient_capsnet_smallnorb")
    assert all(m.negative_slope == 0.3 for m in small.stem if isinstance(m, nn.LeakyReLU))
    assert small.image_shape == (2, 48, 48) and small.num_classes == 5
    capsules = small.capsules(torch.rand(2, 2, 48, 48))
    assert small.reconstruct(capsules).shape == (2, 2, 48, 48)


@pytest.mark.parametrize("img_size", [16, 28, 33, (28, 40)])
@pytest.mark.parametrize("decoder", ["full", "upsampling", "none"])
def test_other_sizes(img_size: int | tuple[int, int], decoder: str) -> None:
    model = create_model("efficient_capsnet", num_classes=3, img_size=img_size, stem=STEM, decoder=decoder).eval()
    images = torch.rand(2, *model.image_shape)
    capsules = model.capsules(images)
    assert capsules.pose.shape == (2, 3, 16) and model.forward_features(images).shape == (2, 2, 8)
    if decoder != "none":
        assert model.reconstruct(capsules).shape == images.shape


@torch.no_grad()
def test_depthwise_products_equal_a_grouped_convolution() -> None:
    for name in ("efficient_capsnet", "efficient_capsnet_multimnist"):
        model = create_model(name)
        stride = 1 if name == "efficient_capsnet" else 2
        side = 9 if name == "efficient_capsnet" else 6
        nn.init.normal_(model.primary.bias)
        convolution = nn.Conv2d(128, 128, model.primary.weight.shape[-2:], stride, groups=128)
        convolution.load_state_dict(model.primary.state_dict())
        maps = torch.randn(3, 128, side, side)
        atoms = convolution(maps)
        assert atoms.shape == (3, 128, 1, 1)
        atoms = atoms.view(3, 16, 8)
        norm = atoms.norm(dim=-1, keepdim=True)
        torch.testing.assert_close(model.primary(maps), (1 - (-norm).exp()) * atoms / norm, rtol=1e-4, atol=1e-5)


# --- a slow forward, from the equations -----------------------------------------------------------------------------


def slow_norm(x: Tensor, norm: nn.Module) -> Tensor:
    def shaped(v: Tensor) -> Tensor:
        return v.view(1, -1, 1, 1)

    if isinstance(norm, nn.BatchNorm2d):
        mean, variance = shaped(norm.running_mean), shaped(norm.running_var)
    else:
        mean, variance = x.mean((2, 3), keepdim=True), x.var((2, 3), keepdim=True, correction=0)
    return (x - mean) / (variance + norm.eps).sqrt() * shaped(norm.weight) + shaped(norm.bias)


def slow_squash(s: Tensor) -> Tensor:
    norm = s.norm(dim=-1, keepdim=True)
    return (1 - (-norm).exp()) * s / norm


def slow_forward(model: CapsuleClassifier, x: Tensor) -> Tensor:
    arguments = model.config["args"]
    convolutions = [m for m in model.stem if isinstance(m, nn.Conv2d)]
    norms = [m for m in model.stem if isinstance(m, nn.BatchNorm2d | nn.InstanceNorm2d)]
    slope = arguments["negative_slope"]
    for (_, _, stride), conv, norm in zip(arguments["stem"], convolutions, norms, strict=True):
        x = F.conv2d(x, conv.weight, conv.bias, stride)
        if arguments["norm_first"]:
            x = slow_norm(x, norm)
        x = torch.where(x > 0, x, slope * x)
        if not arguments["norm_first"]:
            x = slow_norm(x, norm)
    atoms = F.conv2d(x, model.primary.weight, model.primary.bias, groups=x.shape[1]).flatten(1)
    children = slow_squash(atoms.view(len(x), -1, 8))
    votes = torch.einsum("bid,jide->bjie", children, model.head.weight)
    gram = votes @ votes.transpose(-1, -2)
    agreement = gram.sum(-1) / votes.shape[-1] ** 0.5
    couplings = agreement.softmax(1) + model.head.log_prior
    poses = slow_squash((couplings.unsqueeze(-1) * votes).sum(2))
    return (poses.square().sum(-1) + 1e-7).sqrt()


@torch.no_grad()
@pytest.mark.parametrize(
    "options",
    [{}, {"norm_first": True}, {"negative_slope": 0.3}, {"norm": "instance", "negative_slope": 0.3}],
    ids=str,
)
def test_equals_the_equations(options: dict[str, Any]) -> None:
    model = create_model("efficient_capsnet", num_classes=4, img_size=(17, 20), stem=STEM, **options).double().eval()
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and name.startswith(("stem", "primary", "head")):
            tensor.add_(0.3 * torch.rand_like(tensor))
    images = torch.randn(2, 1, 17, 20, dtype=torch.float64)
    torch.testing.assert_close(model(images), slow_forward(model, images), rtol=1e-6, atol=1e-7)


@torch.no_grad()
def test_relu_before_or_after_the_norm_are_two_functions_of_equal_size() -> None:
    first = create_model("efficient_capsnet", stem=STEM, norm_first=True)
    after = create_model("efficient_capsnet", stem=STEM)
    assert [type(m) for m in first.stem] == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU] * 3
    assert count(first) == count(after)
    features = torch.randn(4, 4, 3, 3)
    assert (first.stem[1:3](features) >= 0).all() and (after.stem[1:3](features) < 0).any()


# --- starts ---------------------------------------------------------------------------------------------------------


def test_default_start() -> None:
    torch.manual_seed(0)
    model = create_model("efficient_capsnet")
    for convolution in (m for m in model.stem if isinstance(m, nn.Conv2d)):
        fan_in = convolution.weight[0].numel()
        assert convolution.weight.std().item() == pytest.approx((2 / fan_in) ** 0.5, rel=0.1)
        assert (convolution.bias == 0).all()
    assert model.head.weight.std().item() == pytest.approx(0.0395, rel=0.02)
    assert (model.head.log_prior == 0).all() and (model.primary.bias == 0).all()
    first, _, second, _, last = model.decoder.layers
    assert first.weight.std().item() == pytest.approx((2 / 160) ** 0.5, rel=0.02)
    assert second.weight.std().item() == pytest.approx((2 / 512) ** 0.5, rel=0.02)
    assert last.weight.std().item() == pytest.approx((2 / (1024 + 784)) ** 0.5, rel=0.02)


@pytest.mark.parametrize("init", ["default", "official"])
def test_start_of_instance_norms(init: str) -> None:
    model = create_model("efficient_capsnet_smallnorb", init=init)
    norms = [m for m in model.stem if isinstance(m, nn.InstanceNorm2d)]
    if init == "default":
        assert all((m.weight == 1).all() and (m.bias == 0).all() for m in norms)
    else:
        assert all(0.03 < p.abs().max() <= 0.05 for m in norms for p in (m.weight, m.bias))


@pytest.mark.parametrize(
    ("name", "weight"),
    [("mnist", 0.392), ("multimnist", 0.196), ("smallnorb", 0.392)],
)
def test_recipes(name: str, weight: float) -> None:
    config = apply_recipe(f"efficient_capsnet_{name}")
    rate = (config.optimizer, config.schedule, config.lr, config.decay_rate, config.min_lr)
    assert rate == ("adam", "exponential", 5e-4, 0.97, 5e-5)
    # A factor of the mean over the pixels, for each object; ours is of the sum.
    pixels = math.prod(outline(config.model).image_shape)
    assert config.reconstruction_weight * pixels == pytest.approx(weight)


def test_pixels_of_mnist_are_divided_by_256() -> None:
    config = apply_recipe("efficient_capsnet_mnist")
    assert config.mean is not None and config.std is not None
    assert (255 / 255 - config.mean[0]) / config.std[0] == pytest.approx(255 / 256)


@torch.no_grad()
def test_the_published_smallnorb_weights_fit() -> None:
    # Names and shapes in the authors' file, in its order: kernels are (height, width, in, out), dense ones (in, out).
    published = {
        "conv2d_4": (7, 7, 2, 32), "conv2d_5": (3, 3, 32, 64), "conv2d_6": (3, 3, 64, 64), "conv2d_7": (3, 3, 64, 128),
        "conv2d_8": (8, 8, 1, 128), "dense": (80, 64), "conv2d": (3, 3, 1, 64), "conv2d_1": (3, 3, 64, 128),
        "conv2d_2": (3, 3, 128, 128), "conv2d_3": (3, 3, 128, 2),
    }  # fmt: skip
    model = create_model("efficient_capsnet_smallnorb").eval()
    convs, decoder = [m for m in model.stem if isinstance(m, nn.Conv2d)], model.decoder
    layers = [*convs, model.primary, decoder.project, *decoder.convs, decoder.last]
    total = 0
    for shape, layer in zip(published.values(), layers, strict=True):
        kernel = torch.randn(shape)
        assert layer.weight.shape == (kernel.T if len(shape) == 2 else kernel.permute(3, 2, 0, 1)).shape
        total += kernel.numel() + layer.bias.numel()
    norms = [m for m in model.stem if isinstance(m, nn.InstanceNorm2d)]
    assert [len(m.weight) for m in norms] == [32, 64, 64, 128]
    assert total + 2 * sum(len(m.weight) for m in norms) + 5 * 16 * 8 * 16 + 5 * 16 == 381_234 == count(model)
    assert {m.negative_slope for m in model.stem if isinstance(m, nn.LeakyReLU)} == {0.3}


def test_instance_norms_need_more_than_one_cell() -> None:
    with pytest.raises(UsageError, match="single cell"):
        create_model("efficient_capsnet_smallnorb", img_size=20)
