"""MSPCaps against the paper: counts of every row of its tables, sizes, and a slow forward from its equations."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo import create_model, record
from mereo.core import lengths
from mereo.models import CapsuleClassifier, MSPCaps
from mereo.models.registry import get_model_entry

SHARED_LARGE = {"share_weights": True, "pose_dims": (16, 16, 32), "mid_dim": 32, "out_dim": 64}


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "arguments", "expected", "reported"),
    [
        ("mspcaps_tiny", {}, 344_320, "344.3K"),
        ("mspcaps_large", {}, 10_932_944, "10.9M"),
        ("mspcaps_tiny", {"share_weights": False}, 557_312, "557.3K"),
        ("mspcaps_large", SHARED_LARGE, 7_913_664, "7.9M"),
        ("mspcaps_tiny", {"scales": (0,)}, 92_920, "92.9K"),
        ("mspcaps_tiny", {"scales": (1,)}, 86_904, "86.9K"),
        ("mspcaps_tiny", {"scales": (2,)}, 293_656, "293.6K"),
        ("mspcaps_tiny", {"scales": (0, 1)}, 87_696, "87.6K"),
        ("mspcaps_tiny", {"routing": "dynamic"}, 483_584, "483.5K"),
        ("mspcaps_large", {"routing": "dynamic"}, 14_570_192, "14.6M"),
        ("mspcaps_tiny", {"patch_size": 2}, 899_392, "899.3K"),
        ("mspcaps_tiny", {"patch_size": 3}, 388_712, "388.7K"),
        ("mspcaps_large", {"patch_size": 2}, 39_446_480, "39.4M"),
        ("mspcaps_large", {"patch_size": 3}, 13_702_704, "13.7M"),
    ],
)
def test_counts_of_the_paper(name: str, arguments: dict[str, Any], expected: int, reported: str) -> None:
    with torch.device("meta"):
        model = create_model(name, num_classes=10, in_chans=3, img_size=32, **arguments)
    assert count(model) == expected
    # The paper cuts thousands off after one digit and rounds millions to one.
    unit, cut = (1e3, int(expected / 100) / 10) if reported.endswith("K") else (1e6, round(expected / 1e6, 1))
    assert f"{cut}{'K' if unit == 1e3 else 'M'}" == reported


@pytest.mark.parametrize(("patch_size", "capsules"), [(2, 336), (3, 129), (4, 84)])
def test_capsules_of_the_paper(patch_size: int, capsules: int) -> None:
    model = create_model("mspcaps_tiny", patch_size=patch_size).eval()
    found = model.patch_capsules(torch.rand(1, 3, 32, 32))
    assert sum(c.shape[1] for c in found.values()) == capsules
    assert [c.shape[2] for c in found.values()] == [8, 8, 16]


def test_presets() -> None:
    tiny, large = create_model("mspcaps_tiny"), create_model("mspcaps_large")
    for model, channels, depth in ((tiny, (32, 64, 128), 2), (large, (128, 256, 512), 3)):
        assert tuple(b.entry[0].out_channels for b in model.blocks) == channels
        assert [b.entry[0].stride for b in model.blocks] == [(1, 1), (2, 2), (2, 2)]
        assert [1 + len(b.units) for b in model.blocks] == [depth] * 3
        assert all(m.bias is None for n, m in model.blocks.named_modules() if isinstance(m, nn.Conv2d))
        assert all(model.patchify[i].proj.bias is not None for i in "012")
    assert [tiny.patchify[i].position.shape for i in "012"] == [(64, 8), (16, 8), (4, 16)]
    assert [large.patchify[i].position.shape for i in "012"] == [(64, 16), (16, 32), (4, 64)]
    assert tiny.middle.weight.shape == (16, 16, 8, 16) and tiny.head.weight.shape == (10, 4, 16, 32)
    assert tiny.middle.fine_weight is None and tiny.head.fine_weight is None
    assert large.middle.weight.shape == (16, 16, 32, 64) and large.head.weight.shape == (10, 4, 64, 128)
    assert large.middle.fine_weight.shape == (16, 64, 16, 64) and large.head.fine_weight.shape == (10, 16, 64, 128)
    assert tiny.middle.coupling.dropout == tiny.head.coupling.dropout == 0.1
    assert create_model("mspcaps_tiny", coupling_drop=0.0).head.coupling.dropout == 0
    for name in ("mspcaps_tiny", "mspcaps_large"):
        assert get_model_entry(name).normalisation(1) == ((0.5,), (0.5,))


def test_middle_capsules_are_a_multiple_of_the_coarsest() -> None:
    model = create_model("mspcaps_tiny", patch_size=3)
    assert model.grids == [(10, 10), (5, 5), (2, 2)]
    assert model.middle.weight.shape[:2] == (24, 25) and model.head.members == 6


@pytest.mark.parametrize(
    ("img_size", "patch_size", "grids"),
    [
        (28, 4, [(7, 7), (3, 3), (1, 1)]),
        (28, 2, [(14, 14), (7, 7), (3, 3)]),
        (28, 3, [(9, 9), (4, 4), (2, 2)]),
        (48, 4, [(12, 12), (6, 6), (3, 3)]),
        (48, 3, [(16, 16), (8, 8), (4, 4)]),
        (224, 16, [(14, 14), (7, 7), (3, 3)]),
        ((29, 47), 3, [(9, 15), (5, 8), (2, 4)]),
        ((13, 64), 4, [(3, 16), (1, 8), (1, 4)]),
    ],
)
@pytest.mark.parametrize("routing", ["cross_agreement", "dynamic"])
def test_other_sizes(
    img_size: int | tuple[int, int], patch_size: int, grids: list[tuple[int, int]], routing: str
) -> None:
    model = create_model(
        "mspcaps_tiny", num_classes=3, img_size=img_size, patch_size=patch_size, channels=(4, 4, 4), routing=routing
    ).eval()
    assert model.grids == grids
    images = torch.rand(2, *model.image_shape)
    found = model.patch_capsules(images)
    assert [c.shape[1] for c in found.values()] == [rows * columns for rows, columns in grids]
    scores = model(images)
    assert scores.shape == (2, 3) and (scores > 0).all() and (scores < 1).all()


def test_the_smallest_image_and_one_less() -> None:
    assert create_model("mspcaps_tiny", img_size=13).grids == [(3, 3), (1, 1), (1, 1)]
    with pytest.raises(ValueError, match="at least 13"):
        create_model("mspcaps_tiny", img_size=12)
    assert create_model("mspcaps_tiny", img_size=4, scales=(0,)).grids[0] == (1, 1)


def test_fine_capsules_stand_under_the_coarse_patch_they_lie_in() -> None:
    model = create_model("mspcaps_tiny", img_size=(29, 47), patch_size=3)
    (rows, columns), (coarse_rows, coarse_columns) = model.grids[:2]
    assert (rows, columns, coarse_rows, coarse_columns) == (9, 15, 5, 8)
    # The ratio of the sides is 1 to 1: the border beyond the coarse grid is left out.
    expected = [r * columns + c for r in range(coarse_rows) for c in range(coarse_columns)]
    assert model.order.tolist() == expected
    model = create_model("mspcaps_tiny")
    corners = [2 * row * 8 + 2 * column for row in range(4) for column in range(4)]
    by_hand = [corner + step for corner in corners for step in (0, 1, 8, 9)]
    assert model.order.tolist() == by_hand
    assert "order" not in model.state_dict()


# --- a slow forward, from the equations -----------------------------------------------------------------------------


def slow_norm(x: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    def shaped(v: Tensor) -> Tensor:
        return v.view(1, -1, 1, 1)

    scaled = (x - shaped(norm.running_mean)) / (shaped(norm.running_var) + norm.eps).sqrt()
    return scaled * shaped(norm.weight) + shaped(norm.bias)


def slow_block(x: Tensor, block: nn.Module, stride: int) -> Tensor:
    conv, norm = block.entry
    x = slow_norm(F.conv2d(x, conv.weight, None, stride, 1), norm).relu()
    for conv, norm in block.units:
        x = (x + slow_norm(F.conv2d(x, conv.weight, None, 1, 1), norm)).relu()
    return x


def slow_patches(features: Tensor, patchify: nn.Module, size: int) -> Tensor:
    weight, bias = patchify.proj.weight.flatten(1), patchify.proj.bias
    capsules = []
    for r in range(features.shape[2] // size):
        for c in range(features.shape[3] // size):
            patch = features[:, :, r * size : (r + 1) * size, c * size : (c + 1) * size]
            u = patch.mean((2, 3)) @ weight.T + bias + patchify.position[len(capsules)]
            u = u - u.mean(-1, keepdim=True)
            u = u / (u.square().mean(-1, keepdim=True) + patchify.norm.eps).sqrt()
            capsules.append(u * patchify.norm.weight + patchify.norm.bias)
    return torch.stack(capsules, 1)


def slow_squash(s: Tensor) -> Tensor:
    norm = s.norm(dim=-1, keepdim=True)
    return norm**2 / (1 + norm**2) * s / norm


def slow_routing(groups: list[list[Tensor]], coarse: Tensor, routing: nn.Module, over: str) -> Tensor:
    """`groups[k]` are the fine capsules under coarse capsule k."""
    receivers, _, _, out_dim = routing.weight.shape
    votes, scores = [], []
    for j in range(receivers):
        for k, group in enumerate(groups):
            vote = coarse[:, k] @ routing.weight[j, k]
            agreements = []
            for m, u in enumerate(group):
                fine = routing.fine_weight
                matrix = routing.weight[j, k] if fine is None else fine[j, k * len(group) + m]
                agreements.append(((u @ matrix) * vote).sum(-1) / out_dim**0.5)
            votes.append(vote)
            scores.append(torch.stack(agreements).amax(0))
    shape = (receivers, len(groups))
    agreement = torch.stack(scores, 1).unflatten(1, shape)
    couplings = agreement.softmax(2 if over == "senders" else 1)
    return slow_squash((couplings.unsqueeze(-1) * torch.stack(votes, 1).unflatten(1, shape)).sum(2))


def slow_forward(model: CapsuleClassifier, images: Tensor) -> Tensor:
    arguments = model.config["args"]
    over, patch_size, scales = arguments["coupling_over"], arguments["patch_size"], arguments["scales"]
    capsules, grids, features = {}, {}, images
    for i, block in enumerate(model.blocks):
        features = slow_block(features, block, 1 if i == 0 else 2)
        grids[i] = (features.shape[2] // patch_size, features.shape[3] // patch_size)
        if i in scales:
            capsules[i] = slow_patches(features, model.patchify[str(i)], patch_size)
    if len(scales) == 1:
        (only,) = capsules.values()
        return slow_routing([[u] for u in only.unbind(1)], only, model.head, over).norm(dim=-1)
    fine, coarse = scales[:2]
    q, p = (grids[fine][axis] // grids[coarse][axis] for axis in (0, 1))
    groups = [
        [capsules[fine][:, (r * q + dr) * grids[fine][1] + c * p + dc] for dr in range(q) for dc in range(p)]
        for r in range(grids[coarse][0])
        for c in range(grids[coarse][1])
    ]
    if len(scales) == 2:
        return slow_routing(groups, capsules[coarse], model.head, over).norm(dim=-1)
    middle = slow_routing(groups, capsules[coarse], model.middle, over)
    members = middle.shape[1] // capsules[2].shape[1]
    groups = [[middle[:, k * members + m] for m in range(members)] for k in range(capsules[2].shape[1])]
    return slow_routing(groups, capsules[2], model.head, over).norm(dim=-1)


@torch.no_grad()
@pytest.mark.parametrize("over", ["receivers", "senders"])
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({}, id="three scales"),
        pytest.param({"share_weights": False}, id="unshared"),
        pytest.param({"scales": (0, 1)}, id="two scales"),
        pytest.param({"scales": (0, 2), "share_weights": False}, id="outer scales"),
        pytest.param({"scales": (1,)}, id="one scale"),
        pytest.param({"patch_size": 3, "img_size": (29, 34), "depth": 3}, id="other sizes"),
    ],
)
def test_equals_the_equations(arguments: dict[str, Any], over: str) -> None:
    model = create_model("mspcaps_tiny", num_classes=4, coupling_over=over, **arguments).double().eval()
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            noise = 0.1 * torch.randn_like(tensor)
            tensor.add_(noise.abs() if name.endswith("running_var") else noise)
    images = torch.randn(2, *model.image_shape, dtype=torch.float64)
    expected = slow_forward(model, images)
    assert expected.shape == (2, 4)
    torch.testing.assert_close(model(images), expected, rtol=1e-6, atol=1e-6)


@torch.no_grad()
def test_dynamic_routing_is_done_scale_by_scale_and_once_more() -> None:
    model = create_model("mspcaps_tiny", routing="dynamic").eval()
    images = torch.randn(2, 3, 32, 32)
    parts = model.patch_capsules(images)
    sides = [model.scale_routings[str(i)](parts[i]) for i in range(3)]
    assert [s.shape[1:] for s in sides] == [(4, 16), (16, 16), (4, 16)]
    torch.testing.assert_close(model(images), lengths(model.head(torch.cat(sides, 1))))
    with record(model) as trace:
        model(images)
    assert [len(trace.steps(name)) for name in trace] == [3, 3, 3, 3]
    assert create_model("mspcaps_tiny", routing="dynamic", routing_steps=1).head.steps == 1


def test_coupling_axis_reaches_both_routings() -> None:
    for over in ("senders", "receivers"):
        model = create_model("mspcaps_tiny", coupling_over=over)
        assert model.middle.coupling.over == model.head.coupling.over == over


def test_dropout_of_couplings_acts_only_in_training() -> None:
    model = create_model("mspcaps_tiny", channels=(4, 4, 4), coupling_drop=0.5)
    features = model.forward_features(torch.rand(4, 3, 32, 32))
    assert not torch.equal(model.forward_head(features), model.forward_head(features))
    model.eval()
    assert torch.equal(model.forward_head(features), model.forward_head(features))


def test_start() -> None:
    torch.manual_seed(0)
    model = MSPCaps(channels=(32, 64, 128))
    conv, project = model.blocks[2].units[0][0].weight, model.patchify["2"].proj
    assert conv.std().item() == pytest.approx((2 / (128 * 9)) ** 0.5, rel=0.02)
    assert project.weight.std().item() == pytest.approx((2 / (128 + 16)) ** 0.5, rel=0.05)
    assert (project.bias == 0).all()
    assert model.middle.weight.std().item() == pytest.approx((2 / (16 * 8)) ** 0.5, rel=0.02)


@pytest.mark.long
def test_trains_compiled_with_the_default_backend() -> None:
    model = create_model("mspcaps_tiny", channels=(4, 8, 8), scales=(0, 2), depth=1).eval()
    images = torch.rand(3, 3, 32, 32)
    torch.compiler.reset()
    model(images).sum().backward()
    expected = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    torch.compile(model, fullgraph=True)(images).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_features_are_the_capsules_of_the_last_routing() -> None:
    model = create_model("mspcaps_tiny").eval()
    images = torch.rand(2, 3, 32, 32)
    fine, coarse = model.forward_features(images)
    assert fine.shape == (2, 16, 16) and torch.equal(coarse, model.patch_capsules(images)[2])
    assert torch.equal(model.forward_head((fine, coarse)), model(images))
    assert model.num_features == fine[0].numel() + coarse[0].numel()
    (names,) = (group["names"] for group in model.parameter_groups(0.1) if group["weight_decay"])
    assert not any("position" in name for name in names) and "head.weight" in names
