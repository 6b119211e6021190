"""AR-CapsNet: counts, a slow forward, scores, shifts, places of children, starts, refusals."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mereo
from mereo import create_model
from mereo.errors import UsageError
from mereo.explain import explain, observe, parse_trees
from mereo.models import ARCapsNet
from mereo.models.capsule.ar_capsnet import ConvCaps
from mereo.models.registry import get_model_entry, outline
from mereo.training.recipes import apply_recipe


def count(module: nn.Module | None) -> int:
    return 0 if module is None else sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("name", "stem", "blocks", "classes", "decoder"),
    [
        ("ar_capsnet_mnist", 37_824, [321_792], 4_047_680, 829_200),
        ("ar_capsnet_mnist_0", 37_824, [], 4_028_320, 747_280),
        ("ar_capsnet_affnist", 37_824, [158_848], 2_062_240, 1_165_888),
        ("ar_capsnet_cifar10", 38_976, [321_792, *[616_704] * 3], 5_276_480, 2_002_944),
    ],
)
def test_counts_of_the_authors_code(name: str, stem: int, blocks: list[int], classes: int, decoder: int) -> None:
    model = outline(name)
    assert [count(stage) for stage in model.stages] == [stem, 76_032, *blocks]
    assert (count(model.head), count(model.decoder)) == (classes, decoder)
    assert count(model) == get_model_entry(name).parameters


def test_count_with_three_blocks() -> None:
    assert count(outline("ar_capsnet_cifar10", blocks=3)) == 8_949_632
    assert count(outline("ar_capsnet")) == 5_312_528, "the short name means MNIST's network"


def some(**changes: Any) -> ARCapsNet:
    torch.manual_seed(0)
    tiny = dict(get_model_entry("ar_capsnet").tiny or {})
    model = create_model("ar_capsnet", **{**tiny, "num_classes": 4, **changes}).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        model(torch.rand(4, *model.image_shape, dtype=torch.float64))
    return model.eval()


def convolved(maps: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    """Padded as TensorFlow does: with stride 2 nothing before an even side and one zero after it."""
    rows, columns = maps.shape[2:]
    before = (1, 1) if stride == 1 else (rows % 2, columns % 2)
    return F.conv2d(F.pad(maps, (before[1], 1, before[0], 1)), weight, bias, stride)


def routed(layer: Any, capsules: list[Tensor], stride: int | None) -> list[Tensor]:
    """Types one after the other, as the authors' code has them: capsules of a type (batch, dim, rows, columns)."""
    votes = []
    for i, maps in enumerate(capsules):
        weight, bias = layer.weight[i], layer.bias[i]
        made = [
            F.conv2d(maps, w, b) if stride is None else convolved(maps, w, b, stride)
            for w, b in zip(weight, bias, strict=True)
        ]
        votes.append(torch.stack(made, 1))
    parents = []
    for j in range(layer.weight.shape[1]):
        scores = [
            sum(torch.einsum("d,bdyx->byx", layer.score[j, i, k], votes[k][:, j]) for k in range(len(votes)))
            for i in range(len(votes))
        ]
        shares = torch.stack(scores).exp() / torch.stack(scores).exp().sum(0)
        s = sum(shares[i].unsqueeze(1) * votes[i][:, j] for i in range(len(votes)))
        parents.append(torch.einsum("ed,bdyx->beyx", layer.transform[j], s) + layer.shift[j][:, None, None])
    return parents


@torch.no_grad()
@pytest.mark.parametrize("changes", [{}, {"blocks": 0}, {"blocks": 3, "img_size": (9, 14)}], ids=str)
def test_equals_the_equations(changes: dict[str, Any]) -> None:
    model = some(**changes)
    images = torch.rand(2, *model.image_shape, dtype=torch.float64)
    maps = images
    first, norm, _, second, norm_2, _ = model.stages[0]
    for convolution, n in ((first, norm), (second, norm_2)):
        maps = F.conv2d(maps, convolution.weight, convolution.bias, padding=1)
        maps = F.batch_norm(maps, n.running_mean, n.running_var, n.weight, n.bias, eps=1e-3).relu()
    primary = model.stages[1]
    maps = convolved(maps, primary.conv.weight, primary.conv.bias, 2).relu()
    capsules = []
    for i in range(3):
        own = slice(4 * i, 4 * i + 4)
        affine = torch.einsum("ed,bdyx->beyx", primary.affine.weight[own, :, 0, 0], maps[:, own])
        capsules.append((affine + primary.affine.bias[own, None, None]).tanh())
    for number, block in enumerate(list(model.stages)[2:]):
        parents = routed(block.routing, capsules, 1 if number else 2)
        capsules = [(x + y if number else y).tanh() for x, y in zip(capsules, parents, strict=True)]
    torch.testing.assert_close(model.forward_features(images), torch.stack(capsules, 1))
    v = torch.stack([y.flatten(1) for y in routed(model.head, capsules, None)], 1).tanh()
    torch.testing.assert_close(model.capsules(images).pose, v)
    scores = model(images)
    torch.testing.assert_close(scores, v.norm(dim=-1) / 5**0.5)
    assert (scores >= 0).all() and (scores < 1).all() and v.abs().max() < 1


@torch.no_grad()
def test_moving_the_image_by_four_pixels_moves_the_capsules_by_one_cell() -> None:
    model = some(img_size=32, blocks=2)
    images = torch.zeros(1, *model.image_shape, dtype=torch.float64)
    images[..., 10:18, 9:17] = torch.rand(8, 8, dtype=torch.float64)
    moved = images.roll((4, 4), (2, 3))
    here, there = (model.forward_features(each) for each in (images, moved))
    torch.testing.assert_close(here[..., 2:-3, 2:-3], there[..., 3:-2, 3:-2])
    assert (here[..., 2:-3, 2:-3] - here[..., 3:-2, 3:-2]).abs().max() > 1e-3


def test_evaluation_is_deterministic_and_training_drops() -> None:
    model = some()
    images = torch.rand(2, *model.image_shape, dtype=torch.float64)
    assert torch.equal(model(images), model(images))
    assert not torch.equal(model.train()(images), model(images))


@torch.no_grad()
@pytest.mark.parametrize("stride", [1, 2])
def test_what_goes_past_a_block_is_not_dropped(stride: int) -> None:
    block = ConvCaps(1, 4, 4, stride, 0.5).double()
    route = block.routing
    for parameter in route.parameters():
        parameter.zero_()
    route.weight[0, 0, :, :, 1, 1].copy_(torch.eye(4))
    route.transform[0].copy_(torch.eye(4))
    maps = 0.1 + 0.2 * torch.rand(2, 4, 5, 7, dtype=torch.float64)
    before = block(maps).atanh()
    assert block.residual == (stride == 1)
    factors = before / maps[:, :, ::stride, ::stride]
    expected = (1.0, 3.0) if block.residual else (0.0, 2.0)
    low, high = (torch.isclose(factors, factors.new_tensor(value)) for value in expected)
    assert (low | high).all() and low.any() and high.any()


def test_zero_images_have_finite_scores_and_gradients() -> None:
    model = some(blocks=2).train()
    scores = model(torch.zeros(3, *model.image_shape, dtype=torch.float64))
    scores.sum().backward()
    assert scores.isfinite().all()
    assert all(p.grad.isfinite().all() for n, p in model.named_parameters() if p.grad is not None)


@torch.no_grad()
def test_recording_shows_the_type_and_place_of_every_child() -> None:
    model = some()
    images = torch.rand(2, *model.image_shape, dtype=torch.float64)
    plain = model(images)
    with mereo.record(model) as trace:
        torch.testing.assert_close(model(images), plain)
    block, head = trace["stages.2.routing.coupling"], trace["head.coupling"]
    assert block.shape == (2, 1, 3 * 9, 3 * 36) and head.shape == (2, 1, 4, 3 * 9)
    shares = head.unflatten(3, (3, 9))
    assert torch.equal(shares, shares[..., :1].expand_as(shares)), "children of a type have the same share"
    torch.testing.assert_close(shares[..., 0].sum(3), torch.ones(2, 1, 4, dtype=torch.float64))


@torch.no_grad()
def test_votes_of_places_sum_to_the_class_capsules() -> None:
    model = some()
    images = torch.rand(2, *model.image_shape, dtype=torch.float64)
    found = explain(model, images)
    assert found.contribution_map is not None and found.contribution_map.cells.shape == (2, 3, 3)
    parents = model.head(model.forward_features(images)).flatten(2)
    for b, c in enumerate(found.explained.tolist()):
        before = parents[b, c] - model.head.shift[c]
        expected = before @ parents[b, c] / parents[b, c].norm()
        torch.testing.assert_close(found.contribution_map.cells[b].sum(), expected)
    assert found.maps == {}, "shares of types are the same at every place"
    assert found.rebuilt is not None and found.rebuilt.shape == images.shape


@torch.no_grad()
def test_parse_trees_lead_to_places() -> None:
    model = some()
    tree = parse_trees(observe(model, torch.rand(1, *model.image_shape, dtype=torch.float64)), keep=4)[0]
    assert [tree.nodes[edge.child].kind for edge in tree.below(0)] == ["patch"] * 4


def test_starts() -> None:
    torch.manual_seed(0)
    model = create_model("ar_capsnet_small")
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            assert module.bias is not None and not module.bias.any()
            outputs, inputs, *kernel = module.weight.shape
            # Glorot uniform; the maps of the types have one of their own each.
            outputs = outputs // (module.groups if isinstance(module, nn.Conv2d) else 1)
            bound = (6 / (math.prod(kernel) * (inputs + outputs))) ** 0.5
            assert 0.97 * bound < module.weight.abs().max() <= bound
    assert model.stages[1].affine.weight.abs().max().item() == pytest.approx((6 / 16) ** 0.5, rel=2e-2)


@pytest.mark.parametrize(("data", "epochs"), [("mnist", 20), ("affnist", 20), ("cifar10", 200)])
def test_recipe_of_the_authors_code(data: str, epochs: int) -> None:
    config = apply_recipe("ar_capsnet", data=data)
    assert (config.epochs, config.batch_size, config.optimizer, config.lr) == (epochs, 100, "rmsprop", 1e-3)
    assert (config.schedule, config.decay_steps, config.validation_fraction) == ("inverse", 10_000, 0.1)
    pixels = math.prod(outline(config.model).image_shape)
    # 0.3 times the mean squared error, of which ours is the sum over the pixels.
    assert config.reconstruction_weight * pixels == pytest.approx(0.3)


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="blocks is -1"):
        some(blocks=-1)
    with pytest.raises(UsageError, match="dropout is 1"):
        some(dropout=1.0)
    with pytest.raises(UsageError, match="types is 0"):
        some(types=0)
