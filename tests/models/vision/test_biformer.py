"""BiFormer: exact counts by formula, the authors' layout of weights, routes over the image, sizes of any kind."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

import mereo
from mereo.errors import UsageError
from mereo.mechanisms.attention.sparse import BiLevelRoutingAttention
from mereo.models import get_model_entry
from mereo.models.conversion import to_layout
from mereo.models.layout import LAYOUTS
from mereo.models.vision import BiFormer
from naive_biformer import NaiveBiFormer

SMALL: dict[str, Any] = {
    "widths": (8, 8, 16), "depths": (1, 2, 1), "top_k": (1, 3, 0), "regions": 2, "head_dim": 4, "num_heads": 2,
    "num_classes": 3,
}  # fmt: skip


def small(**changes: Any) -> BiFormer:
    model = mereo.create_model("biformer_tiny", **{"img_size": 32, "drop_path_rate": 0.0, **SMALL, **changes})
    assert isinstance(model, BiFormer)
    return model


def disturb(model: nn.Module) -> None:
    """Every parameter away from its start, and norms with statistics."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(std=0.1)
                module.running_var.uniform_(0.5, 2)


@pytest.mark.parametrize("name", ["biformer_tiny", "biformer_small", "biformer_base"])
def test_counts_follow_from_the_formulas_of_the_parts(name: str) -> None:
    preset = get_model_entry(name).defaults
    widths = preset["widths"]
    half = widths[0] // 2
    total = 27 * half + half + 2 * half + 9 * half * widths[0] + widths[0] + 2 * widths[0]
    total += sum(9 * i * o + 3 * o for i, o in pairwise(widths))
    for width, depth, k in zip(widths, preset["depths"], preset["top_k"], strict=True):
        attention = 3 * width**2 + (3 * width if k else 0) + width**2 + width + 26 * width
        total += depth * (10 * width + 4 * width + attention + 6 * width**2 + 4 * width)
    total += 2 * widths[-1] + 1000 * widths[-1] + 1000
    assert total == get_model_entry(name).parameters


@pytest.mark.parametrize("size", [(32, 32), (50, 39)])
@pytest.mark.parametrize("training", [False, True])
def test_weights_of_the_authors_compute_the_same(size: tuple[int, int], training: bool) -> None:
    naive = NaiveBiFormer(**SMALL)
    disturb(naive)
    model = mereo.convert(naive.state_dict(), model="biformer_tiny", drop_path_rate=0.0, pad="legacy", **SMALL)
    images = torch.randn(2, 3, *size)
    naive.train(training)
    model.train(training)
    maps = model.forward_intermediates(images, intermediates_only=True)
    for ours, theirs in zip(maps, naive.maps(images), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model(images), naive(images), rtol=1e-4, atol=1e-4)
    (layout,) = (layout for layout in LAYOUTS if layout.module is BiFormer)
    back, state = to_layout(model, layout), naive.state_dict()
    assert back.keys() == state.keys()
    fresh = mereo.convert(state, model="biformer_tiny", drop_path_rate=0.0, pad="legacy", **SMALL)
    assert all(torch.equal(tensor, state[name]) for name, tensor in to_layout(fresh, layout).items())


def test_gradients_are_those_of_the_naive_network() -> None:
    naive = NaiveBiFormer(**SMALL)
    disturb(naive)
    model = mereo.convert(naive.state_dict(), model="biformer_tiny", drop_path_rate=0.0, **SMALL).double()
    naive.double()
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    for network in (model, naive.eval()):
        network(images).square().sum().backward()
    (layout,) = (layout for layout in LAYOUTS if layout.module is BiFormer)
    theirs = dict(naive.named_parameters())
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.data = parameter.grad
    # With gradients in place of the weights, the layout names the gradient of each.
    state = to_layout(model, layout)
    for name, parameter in theirs.items():
        torch.testing.assert_close(state[name], parameter.grad, msg=name)


def test_weights_of_another_preset_are_named() -> None:
    state = NaiveBiFormer(**{**SMALL, "widths": (8, 16, 16)}).state_dict()
    with pytest.raises(UsageError, match=r"downsample_layers.1.0.weight is \(16, 8, 3, 3\), not \(8, 8, 3, 3\)"):
        mereo.convert(state, model="biformer_tiny", **SMALL)


def test_folded_for_inference_it_computes_the_same() -> None:
    for layout in (False, True):
        model = small(swin_layout=layout).eval()
        disturb(model)
        images = torch.randn(2, 3, 32, 32)
        torch.testing.assert_close(model.fuse()(images), model(images), rtol=1e-4, atol=1e-4)


def test_couplings_lie_on_the_image() -> None:
    model = small().eval()
    disturb(model)
    with mereo.record(model) as trace:
        model(torch.randn(2, 3, 32, 32))
    shapes = [tuple(trace[name].shape) for name in trace]
    assert shapes == [(2, 2, 64, 64), (2, 2, 16, 16), (2, 2, 16, 16), (2, 2, 4, 4)]
    for name in trace:
        torch.testing.assert_close(trace[name].sum(-1), torch.ones(trace[name].shape[:-1]))
    first = next(iter(trace))
    assert (trace[first] > 0).sum(-1).unique().tolist() == [16], "one region of four"


@pytest.mark.parametrize("swin_layout", [False, True])
def test_images_of_any_size(swin_layout: bool) -> None:
    model = small(swin_layout=swin_layout).eval()
    for height, width in ((32, 32), (31, 50), (5, 9)):
        maps = model.forward_intermediates(torch.randn(1, 3, height, width), intermediates_only=True)
        sides = [(-(-height // r), -(-width // r)) for r in (4, 8, 16)]
        assert [tuple(x.shape[2:]) for x in maps] == sides


@pytest.mark.parametrize("swin_layout", [False, True])
def test_small_images_keep_large_maps(swin_layout: bool) -> None:
    sizes = {"stem_stride": 1, "regions": 4, "top_k": (1, 4, 16), "swin_layout": swin_layout}
    model = small(**sizes).eval()
    maps = model.forward_intermediates(torch.randn(1, 3, 32, 32), intermediates_only=True)
    assert [tuple(x.shape[2:]) for x in maps] == [(32, 32), (16, 16), (8, 8)]
    assert [info["reduction"] for info in model.feature_info] == [1, 2, 4]


def test_the_last_norm_on_request() -> None:
    model = small().eval()
    disturb(model)
    images = torch.randn(1, 3, 32, 32)
    features, maps = model.forward_intermediates(images, norm=True)
    torch.testing.assert_close(maps[-1], features)


def test_arguments_reach_the_attention() -> None:
    model = small(soft=True, pad="zeros", drop_path_rate=0.3)
    routed = [m for m in model.modules() if isinstance(m, BiLevelRoutingAttention)]
    assert [m.top_k for m in routed] == [1, 3, 3] and all(m.soft and m.pad == "zeros" for m in routed)
    rates = [block.drop_path.rate for stage in model.stages for block in stage.blocks]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3])
    assert all(m.scale == m.proj.in_features**-0.5 for m in routed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"top_k": (1, 2)}, "each must have an entry"),
        ({"head_dim": 3}, r"widths\[0\] 8; .* head_dim, 3"),
        ({"num_heads": 5}, r"widths\[2\] 16; .* num_heads, 5"),
        ({"top_k": (1, 5, 0)}, "top_k is 5 with 2 x 2 regions"),
        ({"top_k": (-1, 2, 0)}, r"top_k\[0\] is -1"),
        ({"pad": "reflect"}, "reflect"),
        ({"stem_stride": 3}, "stem_stride is 3"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        small(**arguments)
