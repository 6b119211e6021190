"""DeepCaps: counts, maps, a slow forward, the decoder, starts."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mereo
from mereo import create_model
from mereo.errors import UsageError
from mereo.explain import explain
from mereo.layers.capsules import ClassIndependentDecoder
from mereo.models import DeepCaps
from mereo.models.capsule.deepcaps import ClassCaps, ConvCaps
from mereo.models.registry import outline

SMALL: dict[str, Any] = {"img_size": (13, 16), "types": 3, "dims": (2, 2, 3, 3), "class_dim": 4, "num_classes": 5}


def count(module: nn.Module | None) -> int:
    return 0 if module is None else sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("name", "encoder", "classes", "decoder"),
    [
        ("deepcaps_64", 6_805_504, 6_553_920, 67_571),
        ("deepcaps_32", 6_805_504, 1_638_720, 66_627),
        ("deepcaps_28", 6_803_200, 1_638_720, 58_417),
    ],
)
def test_counts_of_the_authors_code(name: str, encoder: int, classes: int, decoder: int) -> None:
    model = outline(name)
    assert (count(model.stages), count(model.head), count(model.decoder)) == (encoder, classes, decoder)


def test_counts_of_the_blocks() -> None:
    model = outline("deepcaps_64")
    first = model.stages[0]
    assert count(first[0]) == 3 * 3 * 3 * 128 + 128 + 256
    counts = [count(first[1]), *(count(stage) for stage in list(model.stages)[1:])]
    assert counts == [589_824, 2_064_384, 2_359_296, 1_769_472 + 18_432 + 256]
    assert (model.senders, outline("deepcaps_28").senders) == (2_560, 640)


def some(**arguments: Any) -> DeepCaps:
    torch.manual_seed(0)
    model = create_model("deepcaps_64", **{**SMALL, **arguments}).double()
    with torch.no_grad():
        model(torch.rand(4, *model.image_shape, dtype=torch.float64))
    return model.eval()


def slow_squash(s: Tensor, dim: int) -> Tensor:
    square = (s**2).sum(dim, keepdim=True)
    return square / (1 + square) * s / square.sqrt().clamp(min=1e-30)


def slow_caps(layer: ConvCaps, maps: Tensor, stride: int = 1) -> Tensor:
    rows, columns = maps.shape[2:]
    # With stride 2, zeros are below and right of an even side, and on both sides of an odd one.
    maps = F.pad(maps, (columns % 2, 1, rows % 2, 1) if stride == 2 else (1, 1, 1, 1))
    return slow_squash(F.conv2d(maps, layer.conv.weight, stride=stride).unflatten(1, layer.shape), 2).flatten(1, 2)


@torch.no_grad()
def test_equals_the_equations() -> None:
    model = some()
    images = torch.rand(2, 3, 13, 16, dtype=torch.float64)
    stem, _ = model.stages[0]
    maps = F.conv2d(images, stem[0].weight, stem[0].bias, padding=1).relu()
    norm = stem[2]
    maps = F.batch_norm(maps, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
    kept = []
    for i, block in enumerate([model.stages[0][1], *list(model.stages)[1:]]):
        entered = slow_caps(block.first, maps, 2)
        main = slow_caps(block.third, slow_caps(block.second, entered))
        skip = block.skip(entered.unflatten(1, block.shape)).flatten(1, 2) if i == 3 else slow_caps(block.skip, entered)
        maps = main + skip
        kept.append(maps)
    assert [tuple(x.shape[2:]) for x in kept] == [(7, 8), (4, 4), (2, 2), (1, 1)]
    children = []
    for last in (kept[3], kept[2]):
        for kind in range(3):
            for row in range(last.shape[2]):
                children += [last[:, 3 * kind : 3 * kind + 3, row, column] for column in range(last.shape[3])]
    u = torch.stack(children, 1)
    torch.testing.assert_close(model.forward_features(images), u)
    votes = torch.einsum("bsd,rsde->brse", u, model.head.weight)
    b = torch.zeros(votes.shape[:3], dtype=torch.float64)
    for _ in range(3):
        v = slow_squash((b.softmax(1).unsqueeze(-1) * votes).sum(2) + model.head.bias, -1)
        b = b + (votes * v.unsqueeze(2)).sum(-1)
    torch.testing.assert_close(model.capsules(images).pose, v)
    torch.testing.assert_close(model(images), v.norm(dim=-1))


@torch.no_grad()
@pytest.mark.parametrize("size", [(13, 16), (40, 33)])
def test_the_decoder_sees_one_capsule_whatever_its_class(size: tuple[int, int]) -> None:
    model = some(img_size=size)
    capsules = model.capsules(torch.rand(2, 3, *size, dtype=torch.float64))
    labels = torch.tensor([2, 0])
    image = model.reconstruct(capsules, labels)
    assert image.shape == (2, 3, *size)
    pose = capsules.pose.clone()
    pose[0, 3], pose[1, 4] = 7.0, -7.0
    assert torch.equal(model.reconstruct(capsules._replace(pose=pose), labels), image)
    moved = capsules._replace(pose=capsules.pose.roll(1, 1))
    torch.testing.assert_close(model.reconstruct(moved, labels + 1), image)


def by_scatter(maps: Tensor, layer: nn.ConvTranspose2d) -> Tensor:
    """A transposed convolution of 3x3: each cell adds its kernel; the last rows and columns are kept."""
    images, _, rows, columns = maps.shape
    stride = layer.stride[0]
    whole = maps.new_zeros(images, layer.weight.shape[1], stride * rows + 2, stride * columns + 2)
    for y in range(rows):
        for x in range(columns):
            top, left = stride * y, stride * x
            whole[..., top : top + 3, left : left + 3] += torch.einsum("bi,iokl->bokl", maps[..., y, x], layer.weight)
    return whole[..., 1 : 1 + stride * rows, 1 : 1 + stride * columns] + layer.bias.view(-1, 1, 1)


@torch.no_grad()
@pytest.mark.parametrize("training", [True, False])
def test_decoder_layer_by_layer(training: bool) -> None:
    torch.manual_seed(0)
    decoder = ClassIndependentDecoder(4, (2, 9, 12), (5, 3)).double().train(training)
    nn.init.normal_(decoder.norm.running_mean)
    chosen = torch.randn(3, 4, dtype=torch.float64)
    maps = (chosen @ decoder.project.weight.T + decoder.project.bias).clamp(min=0).view(3, 16, 5, 6)
    mean, variance = decoder.norm.running_mean.clone(), decoder.norm.running_var.clone()
    if training:
        mean, variance = maps.mean((0, 2, 3)), maps.var((0, 2, 3), correction=0)
    kept = 0.8 * decoder.norm.running_mean + 0.2 * maps.mean((0, 2, 3))
    maps = (maps - mean.view(-1, 1, 1)) / (variance.view(-1, 1, 1) + decoder.norm.eps).sqrt()
    for layer in decoder.layers:
        maps = by_scatter(maps, layer)
    expected = maps.clamp(min=0)[..., :9, :12]
    image = decoder(torch.cat((torch.zeros(3, 4, dtype=torch.float64), chosen), 1))
    # Ends of the range only in training; no ReLU between the layers.
    torch.testing.assert_close(image, expected if training else expected.clamp(1e-6, 1 - 1e-6))
    assert (expected == 0).any() and (expected > 0).any()
    if training:
        torch.testing.assert_close(decoder.norm.running_mean, kept)


def test_decoder_of_the_authors_code() -> None:
    decoder = outline("deepcaps_64").decoder
    assert decoder.start == (16, 8, 8) and decoder.norm.momentum == 0.2
    assert [layer.stride[0] for layer in decoder.layers] == [1, 2, 2, 2, 1]
    assert outline("deepcaps_28").decoder.start == (16, 7, 7)


@torch.no_grad()
def test_equal_children_have_equal_couplings_in_the_first_pass() -> None:
    head = ClassCaps(6, 5, 3, 4)
    head.bias.zero_()
    with mereo.record(head) as trace:
        head(torch.ones(1, 6, 3))
    torch.testing.assert_close(trace.steps("coupling")[0], torch.full((1, 1, 5, 6), 0.2))


@torch.no_grad()
def test_children_have_places_but_those_of_the_last_map() -> None:
    model = some()
    images = torch.rand(2, 3, 13, 16, dtype=torch.float64)
    with mereo.record(model) as trace:
        model(images)
    assert trace["stages.3.skip.coupling"].shape == (2, 1, 3, 3)
    assert [len(trace.steps(name)) for name in trace] == [3, 3], "three passes, as published"
    assert explain(model, images).maps["head.coupling"].heat.shape == (2, 13, 16)


def test_starts() -> None:
    torch.manual_seed(0)
    layer = ConvCaps(256, 32, 8)
    assert layer.conv.weight.numel() == 589_824 and 0.0624 < layer.conv.weight.abs().max() <= 0.0625
    head = ClassCaps(640, 10, 8, 32)
    assert head.weight.abs().max().item() == pytest.approx((6 / (40 * 10 * 640)) ** 0.5, rel=1e-3)
    assert 0.95 * (6 / 42) ** 0.5 < head.bias.abs().max() <= (6 / 42) ** 0.5
    stem = create_model("deepcaps_32", types=2, dims=(2, 2, 2, 2), decoder=False).stages[0][0][0]
    assert stem.weight.abs().max().item() == pytest.approx((6 / (9 * (3 + 128))) ** 0.5, rel=1e-2)
    assert (stem.bias == 0).all()


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="dims is"):
        some(dims=(2, 2, 3, 4))
    with pytest.raises(UsageError, match="types is 0"):
        some(types=0)
