"""Capsules with inverted dot-product routing: counts, maps, both schedules against their definition, options."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mereo
from mereo import create_model
from mereo.errors import UsageError
from mereo.explain import explain
from mereo.models import InvertedDotProductCapsNet
from mereo.models.registry import outline

D = torch.float64
SMALL: dict[str, Any] = {"backbone": "simple", "channels": 6, "capsules": 2, "capsule_dim": 4, "img_size": (16, 18)}


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("inverted_dot_product_capsnet_cifar10_resnet", 1_828_817),
        ("inverted_dot_product_capsnet_cifar10_simple", 561_297),
        ("inverted_dot_product_capsnet_cifar10_simple128", 492_177),
        ("inverted_dot_product_capsnet_cifar100_resnet", 2_799_629),
        ("inverted_dot_product_capsnet_cifar100_simple", 1_462_989),
    ],
)
def test_counts_of_the_authors_code(name: str, parameters: int) -> None:
    assert count(outline(name)) == parameters


def test_counts_of_the_parts() -> None:
    model = outline("inverted_dot_product_capsnet_cifar10_resnet")
    assert count(model.stages) == 1_340_224
    assert (count(model.primary), count(model.norm)) == (65_536, 32)
    assert [count(layer) for layer in model.layers] == [147_456 + 32] * 2
    assert count(model.head) == 128_000 + 32 + 17
    assert (model.grid.rows, model.grid.columns, model.senders) == (5, 5, 800)


def some(**arguments: Any) -> InvertedDotProductCapsNet:
    torch.manual_seed(0)
    return (
        create_model("inverted_dot_product_capsnet_cifar10_resnet", **{**SMALL, "num_classes": 3, **arguments})
        .double()
        .eval()
    )


def by_definition(model: InvertedDotProductCapsNet, images: Tensor, steps: int, schedule: str) -> Tensor:
    """Every capsule of every pass, also those that nothing depends on."""
    maps = model.primary(model.stages[0](images)).unflatten(1, (model.types, model.capsule_dim))
    primary = model.norm(maps.movedim(2, -1)).movedim(-1, 2)
    layers = [*model.layers, model.head]

    def updated(layer: Any, children: Tensor, parents: Tensor | None) -> Tensor:
        if layer is model.head:
            children = children.movedim(2, -1).flatten(1, 3) if children.dim() == 5 else children
            return layer.update(layer.votes_of(children), parents)
        votes = layer.votes_of(children)
        before = None
        if parents is not None:
            before = parents.permute(0, 3, 4, 1, 2).flatten(0, 2) if parents.dim() == 5 else parents
        return layer.place(layer.update(votes, before), votes)

    if schedule == "sequential":
        value = primary
        for layer in layers:
            parents = None
            for _ in range(steps):
                parents = updated(layer, value, parents)
            value = parents
        return value
    values = [primary]
    for layer in layers:
        values.append(updated(layer, values[-1], None))
    for _ in range(steps - 1):
        values = [primary, *(updated(layer, values[i], values[i + 1]) for i, layer in enumerate(layers))]
    return values[-1]


@torch.no_grad()
@pytest.mark.parametrize("schedule", ["concurrent", "sequential"])
@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("shape", [{}, {"hidden": (5,)}, {"strides": ()}], ids=["two", "hidden", "no convolution"])
def test_passes_equal_their_definition(schedule: str, steps: int, shape: dict[str, Any]) -> None:
    model = some(routing_steps=steps, schedule=schedule, **shape)
    images = torch.randn(2, 3, 16, 18, dtype=D)
    capsules = model.capsules(images)
    torch.testing.assert_close(capsules.pose, by_definition(model, images, steps, schedule))
    torch.testing.assert_close(
        capsules.activation, capsules.pose @ model.head.scores.weight[0] + model.head.scores.bias
    )


@torch.no_grad()
def test_schedules_agree_for_one_pass_and_for_one_layer() -> None:
    images = torch.randn(2, 3, 16, 18, dtype=D)
    for arguments in ({"routing_steps": 1}, {"routing_steps": 3, "strides": ()}):
        concurrent, sequential = (some(schedule=s, **arguments)(images) for s in ("concurrent", "sequential"))
        torch.testing.assert_close(concurrent, sequential)
    different = [some(schedule=s, routing_steps=3)(images) for s in ("concurrent", "sequential")]
    assert (different[0] - different[1]).abs().max() > 1e-4


def test_one_sample_keeps_its_batch_axis() -> None:
    assert some()(torch.randn(1, 3, 16, 18, dtype=D)).shape == (1, 3)


@torch.no_grad()
def test_couplings_are_shown_over_the_maps() -> None:
    model = some(schedule="sequential")
    images = torch.rand(2, 3, 16, 18, dtype=D)
    with mereo.record(model) as trace:
        model(images)
    # 8 x 9 children of 2 types, windows of stride 2 and 1.
    assert trace["layers.0.capsules.routing.coupling"].shape == (2, 1, 2 * 3 * 4, 2 * 8 * 9)
    assert trace["layers.1.capsules.routing.coupling"].shape == (2, 1, 2 * 1 * 2, 2 * 3 * 4)
    assert [len(trace.steps(name)) for name in trace] == [2, 2, 2], "two passes, as published"
    torch.testing.assert_close(trace["head.coupling"].sum(2), torch.ones(2, 1, 4, dtype=D))
    assert explain(model, images).maps["head.coupling"].heat.shape == (2, 16, 18)


@pytest.mark.parametrize("arguments", [{}, {"schedule": "sequential"}, {"dropout": 0.2, "routing_steps": 3}])
def test_black_images_train_without_nan(arguments: dict[str, Any]) -> None:
    model = some(**arguments).float().train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(10):
        loss = F.cross_entropy(model(torch.zeros(3, 3, 16, 18)), torch.arange(3))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.isfinite() and all(p.isfinite().all() for p in model.parameters())


def test_start_of_the_transforms() -> None:
    model = create_model("inverted_dot_product_capsnet_cifar10_simple128")
    spreads = [layer.capsules.weight.std().item() for layer in model.layers] + [model.head.weight.std().item()]
    assert spreads == pytest.approx([(32 / (4 * 288)) ** 0.5] * 2 + [(10 / (4 * 800)) ** 0.5], rel=0.02)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backbone": "vgg"}, "backbone is 'vgg'"),
        ({"schedule": "random"}, "schedule is 'random'"),
        ({"capsule_dim": 6}, "pose has 6 numbers"),
        ({"img_size": 8}, "img_size is 8 x 8"),
        ({"routing_steps": 0}, "routing_steps is 0"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        some(**arguments)
