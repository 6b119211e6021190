"""SR-CapsNet against the paper: counts, maps, a slow forward, and the networks it is compared with."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mereo
from mereo import create_model
from mereo.errors import UsageError
from mereo.explain import explain
from mereo.models import PooledNet, SelfRoutingCapsNet
from mereo.models.registry import outline

SMALL: dict[str, Any] = {"planes": 4, "capsules": 3, "capsule_dim": 4, "img_size": 12, "num_classes": 5}


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("name", "routing", "parameters"),
    [
        ("self_routing_capsnet_resnet20", "self_routing", 931_664),
        ("self_routing_capsnet_resnet20", "dynamic", 5_807_888),
        ("self_routing_capsnet_resnet20", "em", 911_204),
        ("self_routing_capsnet_resnet20", "average", 269_722),
        ("self_routing_capsnet_resnet20", "max", 269_722),
        ("self_routing_capsnet_resnet20_depth2", "self_routing", 3_187_536),
        ("self_routing_capsnet_smallnet", "self_routing", 2_432_864),
        ("self_routing_capsnet_smallnet", "dynamic", 2_978_560),
        ("self_routing_capsnet_smallnet", "em", 1_837_898),
        ("self_routing_capsnet_convnet", "self_routing", 479_312),
        ("self_routing_capsnet_convnet", "dynamic", 766_768),
        ("self_routing_capsnet_convnet", "em", 478_042),
        ("self_routing_capsnet_convnet", "average", 144_309),
        ("self_routing_capsnet_convnet", "linear", 459_573),
    ],
)
def test_counts_of_the_authors_code(name: str, routing: str, parameters: int) -> None:
    assert count(outline(name, routing=routing)) == parameters


def test_counts_of_the_parts() -> None:
    assert count(outline("self_routing_capsnet_convnet", num_classes=5, capsules=32)) == 814_960
    model = outline("self_routing_capsnet_resnet20")
    assert count(model.primary) == 294_912 + 18_432 + 1_088
    assert [p.numel() for p in model.head.parameters()] == [327_680, 20_480]


@pytest.mark.parametrize(
    ("backbone", "size", "sides"),
    [("resnet20", 32, (8, 8)), ("resnet20", (30, 21), (8, 6)), ("convnet", 32, (4, 4)), ("smallnet", 32, (12, 12))],
)
def test_maps(backbone: str, size: Any, sides: tuple[int, int]) -> None:
    model = create_model("self_routing_capsnet_resnet20", **{**SMALL, "img_size": size}, backbone=backbone).eval()
    poses, active = model.forward_features(torch.rand(2, *model.image_shape))
    assert model.sides == sides and active.shape == poses.shape[:2] == (2, 3 * sides[0] * sides[1])
    assert model(torch.rand(2, *model.image_shape)).shape == (2, 5)


def test_sides_of_deeper_networks() -> None:
    sizes = {
        "self_routing_capsnet_resnet20": (8, 8),
        "self_routing_capsnet_resnet20_depth2": (4, 4),
        "self_routing_capsnet_convnet": (4, 4),
        "self_routing_capsnet_smallnet": (6, 6),
    }
    assert {name: outline(name).sides for name in sizes} == sizes


def test_starts() -> None:
    torch.manual_seed(0)
    model = create_model("self_routing_capsnet_resnet20", **SMALL, depth=2)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            bound = (6 / module.weight[0].numel()) ** 0.5
            assert 0.9 * bound < module.weight.abs().max() <= bound
    bound = (6 / (3 * 4 * 4)) ** 0.5
    assert 0.95 * bound < model.middle[0].capsules.weight.abs().max() <= bound


def some(**arguments: Any) -> SelfRoutingCapsNet:
    torch.manual_seed(0)
    model = create_model("self_routing_capsnet_resnet20", **{**SMALL, **arguments}).double()
    for parameter in model.head.parameters():
        nn.init.normal_(parameter)
    with torch.no_grad():
        model(torch.randn(4, *model.image_shape, dtype=torch.float64))
    return model.eval()


@torch.no_grad()
def test_equals_the_equations() -> None:
    model = some()
    images = torch.randn(2, 3, 12, 12, dtype=torch.float64)
    maps = F.batch_norm(
        F.conv2d(through(model, images), model.primary[0].weight, padding=1),
        model.primary[1].running_mean, model.primary[1].running_var, model.primary[1].weight, model.primary[1].bias,
    )  # fmt: skip
    for image, scores in zip(maps, model(images), strict=True):
        taken, total = torch.zeros(5, dtype=torch.float64), 0.0
        for kind in range(3):
            for row in range(3):
                for column in range(3):
                    child = kind * 9 + row * 3 + column
                    pose = image[kind * 4 : kind * 4 + 4, row, column]
                    active = torch.sigmoid(image[12 + kind, row, column])
                    gate = model.head.gate[:, child] @ pose + model.head.gate_bias[:, child]
                    taken, total = taken + active * gate.exp() / gate.exp().sum(), total + active
        torch.testing.assert_close(scores, (taken / total).log())


def through(model: SelfRoutingCapsNet, maps: Tensor) -> Tensor:
    for stage in model.stages:
        maps = stage(maps)
    return maps


@pytest.mark.parametrize("routing", ["self_routing", "dynamic", "em"])
def test_scores_are_log_probabilities(routing: str) -> None:
    model = some(routing=routing)
    scores = model(torch.randn(3, 3, 12, 12, dtype=torch.float64))
    torch.testing.assert_close(scores.exp().sum(1), torch.ones(3, dtype=torch.float64))
    assert model.score_kind == "logits" and model.default_loss == "cross_entropy"


def test_gates_of_zero_give_uniform_scores() -> None:
    model = create_model("self_routing_capsnet_resnet20", **SMALL).eval()
    torch.testing.assert_close(model(torch.randn(2, 3, 12, 12)).exp(), torch.full((2, 5), 0.2))


@pytest.mark.parametrize("routing", ["average", "max", "linear"])
def test_networks_without_capsules(routing: str) -> None:
    model = create_model("self_routing_capsnet_resnet20", **SMALL, routing=routing).eval()
    assert isinstance(model, PooledNet)
    images = torch.rand(2, 3, 12, 12)
    maps = through(model, images)
    if routing == "linear":
        maps = model.extra(maps).relu()
    flat = {"average": lambda: maps.mean((2, 3)), "max": lambda: maps.amax((2, 3)), "linear": lambda: maps.flatten(1)}
    torch.testing.assert_close(model(images), model.head(flat[routing]()))


@torch.no_grad()
def test_couplings_have_places_and_sum_to_the_class_activations() -> None:
    model = some()
    images = torch.rand(2, 3, 12, 12, dtype=torch.float64)
    with mereo.record(model) as trace:
        scores = model(images)
    torch.testing.assert_close(trace["head.coupling"].sum(-1).squeeze(1).log(), scores)
    explained = explain(model, images)
    assert explained.maps["head.coupling"].heat.shape == (2, 12, 12)
    shares = 27 * explained.maps["head.coupling"].cells.mean((1, 2))
    torch.testing.assert_close(shares.log(), explained.scores.amax(1))


@pytest.mark.parametrize("routing", ["self_routing", "dynamic", "em"])
def test_black_images_train_without_nan(routing: str) -> None:
    model = some(routing=routing).float().train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(10):
        loss = F.cross_entropy(model(torch.zeros(4, 3, 12, 12)), torch.arange(4))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.isfinite() and all(p.isfinite().all() for p in model.parameters())


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="backbone is 'resnet'"):
        create_model("self_routing_capsnet_resnet20", backbone="resnet")
    with pytest.raises(UsageError, match="routing is 'none'"):
        create_model("self_routing_capsnet_resnet20", routing="none")
    with pytest.raises(UsageError, match="depth is 2 with routing 'average'"):
        create_model("self_routing_capsnet_resnet20", routing="average", depth=2)
    with pytest.raises(UsageError, match="capsule_dim is 6"):
        create_model("self_routing_capsnet_resnet20", routing="em", capsule_dim=6)
    with pytest.raises(UsageError, match="img_size is 3 x 3"):
        create_model("self_routing_capsnet_resnet20", backbone="smallnet", img_size=3)
