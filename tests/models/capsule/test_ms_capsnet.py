"""MS-CapsNet: counts, scales, 30 stacks as one, a slow forward, reductions, starts."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mereo
from mereo import create_model
from mereo.errors import UsageError
from mereo.explain import explain
from mereo.layers.capsules import PrimaryCapsules
from mereo.models import MSCapsNet
from mereo.models.registry import outline
from mereo.training.recipes import apply_recipe

SMALL: dict[str, Any] = {"stem_kernel": 5, "channels": 6, "types": 3, "class_dim": 4, "num_classes": 5}


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("name", "stem"), [("ms_capsnet_cifar10", 130_048), ("ms_capsnet_fashion", 20_992), ("ms_capsnet_small", 20_992)]
)
def test_counts_of_the_authors_code(name: str, stem: int) -> None:
    model = outline(name)
    assert count(model.conv) == stem and model.grid == (6, 6)
    if name == "ms_capsnet_small":
        assert model.senders == (144, 144, 144)
        return
    assert [count(b) for b in model.branches.values()] == [2_488_440, 3_108_240, 2_404_680]
    assert count(model.head) == 4_147_200 and model.senders == (1080, 1080, 1080)
    assert count(model) == {"ms_capsnet_cifar10": 12_278_608, "ms_capsnet_fashion": 12_169_552}[name]
    assert count(outline(name, branches=("low",))) == stem + 2_488_440 + 1080 * 160 * 4


def some(**arguments: Any) -> MSCapsNet:
    torch.manual_seed(0)
    model = create_model("ms_capsnet_small", **{**SMALL, "img_size": (15, 18), **arguments}).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        model(torch.rand(4, *model.image_shape, dtype=torch.float64))
    return model.eval()


def one_stack(layers: nn.Sequential, kind: int, types: int) -> nn.Sequential:
    """The stack of one type of capsules by itself, with its part of the weights."""
    own: list[nn.Module] = []
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            width = layer.out_channels // types
            part = slice(kind * width, (kind + 1) * width)
            conv = nn.Conv2d(layer.weight.shape[1], width, layer.kernel_size, layer.stride, layer.padding).double()
            conv.weight.data, conv.bias.data = layer.weight[part].clone(), layer.bias[part].clone()
            own.append(conv)
        elif isinstance(layer, nn.BatchNorm2d):
            part = slice(kind * 16, (kind + 1) * 16)
            norm = nn.BatchNorm2d(16).double()
            norm.load_state_dict({k: v if v.dim() == 0 else v[part] for k, v in layer.state_dict().items()})
            own.append(norm)
        else:
            own.append(layer)
    return nn.Sequential(*own)


def slow_squash(s: Tensor) -> Tensor:
    square = (s**2).sum(-1, keepdim=True)
    return square / (1 + square) * s / square.sqrt()


@torch.no_grad()
@pytest.mark.parametrize("training", [False, True])
def test_branches_are_stacks_of_their_own_for_every_type(training: bool) -> None:
    model = some()
    images = torch.rand(2, 1, 15, 18, dtype=torch.float64)
    maps = F.conv2d(images, model.conv.weight, model.conv.bias).relu()
    stacks = {n: [one_stack(b, kind, 3).train(training) for kind in range(3)] for n, b in model.branches.items()}
    model.train(training)
    children = model.primary(images)
    assert [tuple(x.shape) for x in children] == [(2, 3 * 2 * 3, dim) for dim in (4, 8, 12)]
    for poses, own in zip(children, stacks.values(), strict=True):
        expected = [stack(maps) for stack in own]
        for kind in range(3):
            for row in range(2):
                for column in range(3):
                    number = (kind * 2 + row) * 3 + column
                    torch.testing.assert_close(poses[:, number], slow_squash(expected[kind][:, :, row, column]))


@torch.no_grad()
@pytest.mark.parametrize("variant", ["classical", "public"])
def test_scores_are_lengths_of_the_routed_capsules(variant: str) -> None:
    model = some(variant=variant, capsule_drop=0.5)
    images = torch.rand(2, 1, 15, 18, dtype=torch.float64)
    children = model.primary(images)
    votes = torch.cat(
        [torch.einsum("bsd,rsde->brse", u, w) for u, w in zip(children, model.head.weights, strict=True)], 2
    )
    if variant == "classical":
        b = torch.zeros(votes.shape[:3], dtype=torch.float64)
        for _ in range(3):
            v = slow_squash((b.softmax(1).unsqueeze(-1) * votes).sum(2))
            b = b + (votes * v.unsqueeze(2)).sum(-1)
    else:
        b = torch.ones(votes.shape[:3], dtype=torch.float64)
        v = slow_squash(votes.sum(2))
        for _ in range(3):
            b = b + (votes * v.unsqueeze(2)).sum(-1)
            v = slow_squash((b.softmax(2).unsqueeze(-1) * votes).sum(2))
    torch.testing.assert_close(model.capsules(images).pose, v)
    torch.testing.assert_close(model(images), v.norm(dim=-1))


@torch.no_grad()
def test_one_branch_is_the_primary_layer_of_capsnet() -> None:
    model = create_model("ms_capsnet_fashion", channels=4, types=32, dims=(8, 8, 8), branches=("low",))
    primary = PrimaryCapsules(4, 32, 8)
    primary.conv.load_state_dict(model.branches["low"][0].state_dict())
    images = torch.rand(2, 1, 28, 28)
    (children,) = model.primary(images)
    assert children.shape == (2, 1152, 8)
    torch.testing.assert_close(children, primary(model.conv(images).relu()))


@torch.no_grad()
def test_branches_have_one_grid_whatever_the_size() -> None:
    for size in [(13, 14), (15, 22), (21, 16)]:
        model = some(img_size=size)
        assert [x.shape[1] for x in model.primary(torch.rand(1, 1, *size, dtype=torch.float64))] == list(model.senders)


@torch.no_grad()
def test_the_picture_is_of_all_children() -> None:
    model = some().float()
    images = torch.rand(2, 1, 15, 18)
    with mereo.record(model) as trace:
        model(images)
    assert trace["head.coupling"].shape == (2, 1, 5, 3 * 3 * 6)
    explanation = explain(model, images)
    assert explanation.maps["head.coupling"].heat.shape == (2, 15, 18)
    assert explanation.contributions is not None and explanation.contributions.shape == (2, 54)
    length = explanation.contributions.sum(1)
    torch.testing.assert_close(length.square() / (1 + length.square()), explanation.scores.amax(1))


def test_starts() -> None:
    torch.manual_seed(0)
    model = MSCapsNet(channels=4, types=4, init="official", decoder=True)
    assert all(weight.std().item() == pytest.approx(0.5, rel=0.02) for weight in model.head.weights)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            assert 0.06 < module.weight.abs().max() <= 0.07 and not module.bias.any()
    assert model.reconstruct(model.capsules(torch.rand(2, 3, 32, 32))).shape == (2, 3, 32, 32)
    default = MSCapsNet(channels=4, types=4)
    assert default.conv.weight.abs().max() <= (3 * 13 * 13) ** -0.5 and default.conv.bias.any()


def test_recipe() -> None:
    config = apply_recipe("ms_capsnet", data="cifar10")
    assert (config.optimizer, config.lr, config.weight_decay, config.batch_size) == ("adam", 1e-3, 1e-5, 128)
    assert config.epochs == 50 and config.mean == (0.4914, 0.4822, 0.4465) and "flip" in config.augment
    assert apply_recipe("ms_capsnet", data="fashion_mnist").model == "ms_capsnet_fashion"


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="branches is"):
        some(branches=("high", "low"))
    with pytest.raises(UsageError, match="sides of at least 13"):
        some(img_size=12)
    with pytest.raises(UsageError, match="capsule_drop is 1"):
        some(capsule_drop=1.0)
