"""RS-CapsNet: counts, maps, a slow forward, starts, places, refusals."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mereo
from mereo import create_model
from mereo.core import squash
from mereo.errors import UsageError
from mereo.explain import explain, observe, parse_trees
from mereo.models import RSCapsNet
from mereo.models.registry import get_model_entry, outline
from mereo.training.recipes import apply_recipe


def count(module: nn.Module | None) -> int:
    return 0 if module is None else sum(p.numel() for p in module.parameters())


def test_counts() -> None:
    model = outline("rs_capsnet")
    stem = model.stages[0][0]
    stages = [count(stage) for stage in model.stages]
    assert count(stem) == 1_856 and [stages[0] - 1_856, *stages[1:]] == [126_864, 503_584, 2_006_592]
    assert (count(model.primary), count(model.combination), count(model.head)) == (1_493_392, 524_288, 327_680)
    assert count(model) == 4_984_256 and count(outline("rs_capsnet", in_chans=1)) == 4_983_104
    decoder = outline("rs_capsnet", decoder=True).decoder
    assert [layer.out_features for layer in decoder.layers if isinstance(layer, nn.Linear)] == [512, 1024, 3072]


def test_sides_of_the_maps_and_numbers_of_capsules() -> None:
    model = outline("rs_capsnet")
    maps = model.forward_intermediates(torch.empty(2, 3, 32, 32, device="meta"), intermediates_only=True)
    assert [tuple(each.shape[1:]) for each in maps] == [(128, 16, 16), (256, 8, 8), (512, 4, 4)]
    assert model.combination.weight.shape == (256, 512 + 1024 + 512)
    assert outline("rs_capsnet_small").combination.weight.shape == (32, 256 + 4 * 64 + 8 * 16)


def some(**changes: Any) -> RSCapsNet:
    torch.manual_seed(0)
    tiny = dict(get_model_entry("rs_capsnet").tiny or {})
    model = create_model("rs_capsnet", **{**tiny, "num_classes": 5, **changes}).double()
    with torch.no_grad():
        model(torch.rand(4, *model.image_shape, dtype=torch.float64))
    return model.eval()


def slow_squash(s: Tensor) -> Tensor:
    square = (s**2).sum(-1, keepdim=True)
    return square / (1 + square) * s / square.sqrt().clamp(min=1e-30)


@torch.no_grad()
@pytest.mark.parametrize(
    "changes", [{}, {"squash_before": False, "normalise": "softmax", "img_size": (9, 14)}], ids=str
)
def test_equals_the_equations(changes: dict[str, Any]) -> None:
    model = some(**changes)
    images = torch.rand(2, *model.image_shape, dtype=torch.float64)
    maps, capsules = images, []
    for stage, convolve in zip(model.stages, model.primary.convs, strict=True):
        maps = stage(maps)
        made = F.conv2d(maps, convolve.weight, convolve.bias, padding=1)
        capsules += [made[:, start : start + 4].flatten(2).mT for start in range(0, made.shape[1], 4)]
    u = torch.cat(capsules, 1)
    u = slow_squash(u) if model.primary.squashed else u
    factors = model.combination.weight
    u = slow_squash((factors.softmax(1) if changes else factors) @ u)
    torch.testing.assert_close(model.forward_features(images), u)
    votes = torch.einsum("bsd,rsde->brse", u, model.head.weight)
    b = torch.zeros(votes.shape[:3], dtype=torch.float64)
    for _ in range(3):
        v = slow_squash((b.softmax(1).unsqueeze(-1) * votes).sum(2))
        b = b + (votes * v.unsqueeze(2)).sum(-1)
    torch.testing.assert_close(model.capsules(images).pose, v)
    scores = model(images)
    torch.testing.assert_close(scores, v.norm(dim=-1))
    assert (scores >= 0).all() and (scores < 1).all()


@torch.no_grad()
def test_the_stem_is_a_convolution_a_norm_and_a_relu_before_the_first_block() -> None:
    model = some()
    images = torch.rand(2, *model.image_shape, dtype=torch.float64)
    (convolution, norm, _), *blocks = model.stages[0]
    maps = F.conv2d(images, convolution.weight, None, padding=1)
    maps = F.batch_norm(maps, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps).relu()
    for block in blocks:
        maps = block(maps)
    torch.testing.assert_close(model.stage(0, images), maps)


@torch.no_grad()
def test_zero_images_have_finite_scores_and_gradients() -> None:
    model = some().train().requires_grad_()
    with torch.enable_grad():
        scores = model(torch.zeros(3, *model.image_shape, dtype=torch.float64))
        scores.sum().backward()
    assert scores.isfinite().all() and all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@torch.no_grad()
def test_recording_shows_which_capsule_of_which_map_makes_which_part() -> None:
    model = some()
    images = torch.rand(2, *model.image_shape, dtype=torch.float64)
    with mereo.record(model, ["combination.coupling", "head.coupling"]) as trace:
        model(images)
    senders = 36 + 2 * 9 + 2 * 4
    assert trace["combination.coupling"].shape == (2, 1, 6, senders) and trace["head.coupling"].shape == (2, 1, 5, 6)
    placed = trace.calls("combination.coupling")[-1].senders
    assert placed is not None and placed.size == senders
    assert [(start, grid.rows, grid.types, grid.step) for start, grid in placed.parts] == [
        (0, 6, 1, 2), (36, 3, 2, 4), (54, 2, 2, 8),
    ]  # fmt: skip


@torch.no_grad()
def test_without_one_scale_only_its_capsules_are_missing() -> None:
    model = some()
    images = torch.rand(2, *model.image_shape, dtype=torch.float64)
    maps = model.forward_intermediates(images, intermediates_only=True)
    capsules = model.primary(maps)
    mask = torch.ones(2, capsules.shape[1], dtype=torch.bool)
    mask[:, :36] = False
    with mereo.intervene(model, {"combination.coupling": lambda c: c * mask[:, None, None]}):
        cut = model.forward_features(images)
    expected = squash(model.combination.weight[:, 36:] @ capsules[:, 36:])
    torch.testing.assert_close(cut, expected)


@torch.no_grad()
@pytest.mark.parametrize("normalise", ["none", "softmax"])
def test_votes_of_places_sum_to_the_class_capsules(normalise: str) -> None:
    model = some(normalise=normalise)
    images = torch.rand(2, *model.image_shape, dtype=torch.float64)
    found = explain(model, images)
    assert found.maps == {}, "the factors of the combination are the same for all images"
    assert [tuple(each.cells.shape) for each in found.contribution_maps] == [(2, 6, 6), (2, 3, 3), (2, 2, 2)]
    assert all(each.heat.shape == (2, 12, 12) for each in found.contribution_maps)
    with mereo.record(model) as trace:
        v = model.capsules(images).pose
    u = model.primary(model.forward_intermediates(images, intermediates_only=True))
    factors = trace["combination.coupling"][:, 0]
    combined = factors @ u
    gains = squash(combined).norm(dim=-1) / combined.norm(dim=-1)
    assert found.contributions is not None
    for b, c in enumerate(found.explained.tolist()):
        direction = v[b, c] / v[b, c].norm()
        expected = torch.zeros(u.shape[1], dtype=torch.float64)
        for n in range(u.shape[1]):
            for k in range(6):
                vote = factors[b, k, n] * gains[b, k] * u[b, n] @ model.head.weight[c, k]
                expected[n] += trace["head.coupling"][b, 0, c, k] * vote @ direction
        cells = torch.cat([each.cells[b].flatten() for each in found.contribution_maps])
        by_place = [expected[:36], expected[36:54].view(2, 9).sum(0), expected[54:].view(2, 4).sum(0)]
        torch.testing.assert_close(cells, torch.cat(by_place))
        torch.testing.assert_close(cells.sum(), found.contributions[b].sum())


@torch.no_grad()
def test_parse_trees_lead_to_patches_of_all_sizes() -> None:
    model = some()
    images = torch.rand(1, *model.image_shape, dtype=torch.float64)
    tree = parse_trees(observe(model, images), keep=100)[0]
    assert len(tree.below(0)) == 6 and tree.nodes[tree.below(0)[0].child].kind == "capsule"
    patches = [tree.nodes[edge.child] for edge in tree.below(tree.below(0)[0].child)]
    assert len(patches) == 36 + 9 + 4 and {patch.kind for patch in patches} == {"patch"}
    boxes = [patch.box for patch in patches]
    sides = sorted(box.right - box.left for box in boxes if box is not None)
    assert sides == [2.0] * 36 + [4.0] * 11 + [8.0] * 2


def test_starts() -> None:
    torch.manual_seed(0)
    model = create_model("rs_capsnet_small")
    convolution = model.stages[1][0].enter[0]
    assert convolution.weight.std().item() == pytest.approx((2 / 32) ** 0.5, rel=0.1)
    assert model.primary.convs[2].weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.05)
    assert model.head.weight.std().item() == pytest.approx(0.1, rel=0.05)
    assert not model.primary.convs[0].bias.any()


def test_recipe_flips_no_house_numbers() -> None:
    photos, numbers = (apply_recipe("rs_capsnet", data=data) for data in ("cifar10", "svhn"))
    assert (photos.optimizer, photos.lr, photos.schedule, photos.batch_size) == ("adam", 1e-3, "cosine", 128)
    assert photos.reconstruction_weight == 0.0005
    assert (photos.augment, numbers.augment) == (("crop=4", "flip"), ("crop=4",))


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="scale is 3"):
        some(scale=3)
    with pytest.raises(UsageError, match="blocks is 101"):
        some(blocks=101)
    with pytest.raises(UsageError, match="normalise is"):
        some(normalise="sum")
