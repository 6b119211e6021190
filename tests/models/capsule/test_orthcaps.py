"""OrthCaps: counts, a slow forward, pruning, shortcuts, couplings over the whole maps."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mereo
from mereo import create_model
from mereo.core.normalisers import entmax15
from mereo.errors import UsageError
from mereo.explain import explain, observe, parse_trees
from mereo.mechanisms.select import prune
from mereo.models import OrthCaps
from mereo.models.capsule.orthcaps import Block, CapsuleActivation, Shortcut
from mereo.models.registry import outline
from mereo.training.recipes import apply_recipe

SMALL: dict[str, Any] = {"types": 4, "dim": 3, "blocks": ((5, 2, 1), (5, 1, 2)), "num_classes": 3, "in_chans": 2}


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_counts() -> None:
    small, cifar, deep = (outline(name) for name in ("orthcaps_s", "orthcaps_s_cifar", "orthcaps_d"))
    assert [count(small), count(cifar), count(deep)] == [107_088, 125_632, 374_544]
    assert [count(s) for s in small.stages] == [93_632, 8_960] and count(small.head) == 4_496
    assert [count(x) for x in cifar.stages[2].layers] == [6_832, 8_880] and count(cifar.head) == 5_728
    assert count(cifar.stages[0]) == 95_232 and count(cifar.stages[2].shortcut) == 0
    first = deep.stages[2].layers[0]
    assert (count(first.depthwise) + count(first.pointwise), count(first.attention)) == (160 + 272 * 16, 768)
    assert [model.grid for model in (small, cifar, deep)] == [(8, 8), (4, 4), (1, 1)]


def some(**arguments: Any) -> OrthCaps:
    torch.manual_seed(0)
    model = create_model("orthcaps_s", **{**SMALL, "img_size": (22, 17), **arguments}).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        model(torch.randn(6, *model.image_shape, dtype=torch.float64))
    return model.eval()


def some_images(model: OrthCaps, batch: int = 2) -> Tensor:
    return 3 * torch.randn(batch, *model.image_shape, dtype=torch.float64)


def house(b: Tensor) -> Tensor:
    return torch.eye(len(b), dtype=b.dtype) - 2 * torch.outer(b, b) / (b @ b)


def slow_squash(s: Tensor) -> Tensor:
    return s * s.norm() / (1 + s @ s)


def slow_attention(attention: nn.Module, u: Tensor, kept: list[int]) -> Tensor:
    """Simplified attention of one place, u (parents, children, dim), over the children that are kept."""
    parents, _, dim = u.shape
    out = []
    for j in range(parents):
        keys = attention.keys[j][:, kept]
        logits = sum(house(keys[d]) @ u[j, kept, d] for d in range(dim)) / dim**0.5
        c = entmax15(logits, 0)
        out.append((c @ u[j, kept]) @ house(attention.turn[j]) * attention.scale)
    return torch.stack(out)


@torch.no_grad()
@pytest.mark.parametrize("theta", [0.2, 1.0])
def test_equals_the_equations(theta: float) -> None:
    model = some(theta=theta)
    images, dim = some_images(model), 3
    maps = images
    for i, (kernel, stride) in enumerate(((5, 1), (3, 1), (3, 1), (3, 2))):
        conv, norm = model.stages[0][3 * i], model.stages[0][3 * i + 1]
        maps = F.conv2d(maps, conv.weight, conv.bias, stride, kernel // 2)
        maps = F.batch_norm(maps, norm.running_mean, norm.running_var, norm.weight, norm.bias).relu()
    depthwise, _, pointwise, _ = model.stages[1]
    maps = F.conv2d(F.leaky_relu(F.conv2d(maps, depthwise.weight, depthwise.bias, 2, 1, groups=64), 0.01),
                    pointwise.weight, pointwise.bias).relu()  # fmt: skip
    capsules, stay = prune(maps.unflatten(1, (4, dim)).flatten(2), theta)
    assert bool(stay.all()) == (theta == 1.0)
    maps = capsules.view(maps.shape)
    torch.testing.assert_close(model.prune(model.stages[1](model.stages[0](images)))[0], maps)
    for number, block in enumerate(list(model.stages)[2:]):
        entered = maps
        for place, layer in enumerate(block.layers):
            below = maps.shape[1] // dim
            votes = []
            for i in range(below):
                x = maps[:, i * dim : (i + 1) * dim]
                x = F.conv2d(x, layer.depthwise.weight, layer.depthwise.bias, layer.stride, 1, groups=dim)
                votes.append(F.leaky_relu(F.conv2d(x, layer.pointwise.weight, layer.pointwise.bias), 0.01))
            u = torch.stack(votes, 1).unflatten(2, (5, dim))  # (batch, children, parents, dim, rows, columns)
            made = torch.zeros(2, 5, dim, *u.shape[-2:], dtype=torch.float64)
            for b in range(2):
                kept = stay[b].nonzero().flatten().tolist() if number == place == 0 else list(range(below))
                for y in range(u.shape[-2]):
                    for x in range(u.shape[-1]):
                        s = slow_attention(layer.attention, u[b, :, :, :, y, x].transpose(0, 1), kept)
                        made[b, :, :, y, x] = torch.stack([slow_squash(v) for v in s])
            maps = made.flatten(1, 2)
        if number == 0:
            pooled = F.avg_pool2d(entered, 2, ceil_mode=True).unflatten(1, (4, dim))
            entered = torch.cat((pooled, pooled[:, :1]), 1).flatten(1, 2)
        maps = maps + entered
    torch.testing.assert_close(model.forward_features(images), maps)
    head = model.head
    poses = []
    for b in range(2):
        cells = []
        for i in range(5):
            x = maps[b : b + 1, i * dim : (i + 1) * dim]
            for conv in head.flat:
                x = F.conv2d(x, conv.weight, conv.bias, conv.stride, groups=dim)
            cells.append((head.pointwise.weight @ x.flatten() + head.pointwise.bias).view(3, dim))
        s = slow_attention(head.attention, torch.stack(cells, 1), list(range(5)))
        poses.append(torch.stack([slow_squash(v) for v in s]))
    torch.testing.assert_close(model.capsules(images).pose, torch.stack(poses))
    torch.testing.assert_close(model(images), torch.stack(poses).norm(dim=-1))


def test_flat_capsules_of_the_published_grids() -> None:
    for size, kernels in ((32, [(3, 3), (3, 3)]), (28, [(3, 3), (3, 3)]), (48, [(12, 12)])):
        model = outline("orthcaps_s", img_size=size)
        assert [conv.kernel_size for conv in model.head.flat] == kernels


@torch.no_grad()
@pytest.mark.parametrize("per_position", [False, True])
def test_pruned_capsules_have_no_share(per_position: bool) -> None:
    model = some(theta=0.2, per_position=per_position)
    with mereo.record(model) as trace:
        model(some_images(model))
    kept = trace["pruning.kept"]
    couplings = trace["stages.2.layers.0.attention.coupling"]
    rows, columns = 3, 3
    below = (3, 3) if not per_position else (6, 5)
    assert couplings.shape == (2, 1, 5 * rows * columns, 4 * rows * columns)
    if not per_position:
        assert kept.shape == (2, 4) and not kept.all() and below == (rows, columns)
        shares = couplings.unflatten(3, (4, -1)).sum((1, 2, 4))
        assert (shares[~kept] == 0).all()
    total = couplings.sum(3)
    torch.testing.assert_close(total, torch.ones_like(total))


@torch.no_grad()
def test_pruning_by_position_compares_the_capsules_of_each_cell() -> None:
    model = some(theta=0.5, per_position=True)
    maps = torch.randn(2, 4 * 3, 4, 5, dtype=torch.float64).relu()
    pruned, kept = model.prune(maps)
    for b in range(2):
        for y in range(4):
            for x in range(5):
                cell = maps[b, :, y, x].view(4, 3)
                for i in range(4):
                    rivals = [j for j in range(4) if cell[j].norm() > cell[i].norm()]
                    product = [cell[i] @ cell[j] / (cell[i].norm() * cell[j].norm()).clamp(min=1e-9) for j in rivals]
                    stays = not any(cosine > 0.5 for cosine in product)
                    assert bool(kept[b, i, y, x]) == stays
                    expected = cell[i] if stays else torch.zeros(3, dtype=torch.float64)
                    assert torch.equal(pruned[b, 3 * i : 3 * i + 3, y, x], expected)
    assert kept.any() and not kept.all()


@torch.no_grad()
def test_a_type_of_which_nothing_is_kept_under_the_convolution_has_no_share() -> None:
    model = some(theta=-0.1, per_position=True)  # cosines of what leaves a ReLU are 0 or more: one stays in each cell
    images = some_images(model)
    _, kept = model.prune(model.stages[1](model.stages[0](images)))
    with mereo.record(model) as trace:
        model(images)
    shares = trace["stages.2.layers.0.attention.coupling"].squeeze(1).unflatten(2, (4, -1)).unflatten(1, (5, -1))
    rows, columns = kept.shape[2:]
    across, gone = -(-columns // 2), 0
    for b in range(2):
        for i in range(4):
            for place in range(shares.shape[2]):
                y, x = 2 * (place // across), 2 * (place % across)
                window = kept[b, i, max(y - 1, 0) : min(y + 2, rows), max(x - 1, 0) : min(x + 2, columns)]
                if not window.any():
                    gone += 1
                    assert not shares[b, :, place, i].any()
    assert gone


@torch.no_grad()
def test_capsule_relu() -> None:
    sums = torch.randn(3, 4, 5, 2, 3, dtype=torch.float64)
    sums[0, 0, :, 0, 0] = 0
    n = sums.norm(dim=2)
    direction = sums / n.clamp(min=1e-5).unsqueeze(2)
    batch = CapsuleActivation(4, "relu_batch").double().train()(sums)
    mean, variance = n.mean((0, 2, 3), keepdim=True), n.var((0, 2, 3), keepdim=True, correction=0)
    expected = ((n - mean) / (variance + 1e-5).sqrt()).relu().unsqueeze(2) * direction
    torch.testing.assert_close(batch, expected, rtol=1e-6, atol=1e-6)
    layer = CapsuleActivation(4, "relu_layer")(sums)
    mean, variance = n.mean((1, 2, 3), keepdim=True), n.var((1, 2, 3), keepdim=True, correction=0)
    expected = ((n - mean) / (variance + 1e-5).sqrt()).relu().unsqueeze(2) * direction
    torch.testing.assert_close(layer, expected, rtol=1e-6, atol=1e-6)


@torch.no_grad()
def test_shortcuts() -> None:
    maps = torch.randn(2, 4 * 3, 5, 1)
    plain, mixed = (Shortcut(4, 6, 3, 2, kind) for kind in ("repeat", "mix"))
    assert plain(maps).shape == (2, 18, 3, 1) and count(mixed) == 24
    torch.testing.assert_close(mixed(maps), plain(maps))
    torch.testing.assert_close(plain(maps)[:, 12:], plain(maps)[:, :6])
    assert torch.equal(Shortcut(4, 4, 3, 1, "mix")(maps), maps)


@torch.no_grad()
def test_zero_images_and_grids_of_one_cell() -> None:
    model = create_model("orthcaps_d", img_size=9, types=2, dim=4, blocks=((3, 2, 2), (3, 2, 1), (3, 2, 1))).eval()
    assert model.grid == (1, 1)
    assert model(torch.zeros(2, 3, 9, 9)).isfinite().all()
    assert isinstance(model.stages[2], Block)


@torch.no_grad()
def test_explanations() -> None:
    model = some(blocks=()).float()
    images = torch.rand(2, *model.image_shape)
    explanation = explain(model, images)
    assert explanation.contributions is not None and explanation.contributions.shape == (2, 4)
    length = explanation.contributions.sum(1)
    torch.testing.assert_close(length.square() / (1 + length.square()), explanation.scores.amax(1))
    assert len(parse_trees(observe(model, images))) == 2


def test_dropout_obeys_evaluation() -> None:
    model, images = some(), torch.randn(2, 2, 22, 17, dtype=torch.float64)
    assert torch.equal(model(images), model(images))
    model.head.train()
    assert not torch.equal(model(images), model(images))


def test_recipe() -> None:
    config = apply_recipe("orthcaps", data="cifar10")
    assert (config.optimizer, config.lr, config.weight_decay, config.loss) == ("adamw", 2.5e-3, 5e-4, "margin")
    assert (config.batch_size, config.epochs, config.warmup_epochs) == (128, 300, 5.0)
    assert outline("orthcaps_s").decoder is None and "flip" not in apply_recipe("orthcaps", data="svhn").augment


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="blocks has"):
        some(blocks=((4, 3, 1),))
    with pytest.raises(UsageError, match="activation is 'gelu'"):
        some(activation="gelu")
