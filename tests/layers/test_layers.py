"""Layers of vision networks against their equations."""

from typing import Any

import pytest
import torch
from torch import nn

from mereo.errors import UsageError
from mereo.layers import (
    ChannelNorm,
    ConvNorm,
    FeedForward,
    LayerScale,
    StochasticDepth,
    linear_rates,
    resize_positions,
)
from mereo.models.folding import folded


def test_layer_scale_multiplies_channels_and_folds_into_the_layer_before() -> None:
    scale, linear, x = LayerScale(3, 1e-5), nn.Linear(4, 3), torch.randn(2, 5, 4)
    assert torch.equal(scale.gain, torch.full((3,), 1e-5))
    nn.init.normal_(scale.gain)
    expected = scale.gain * linear(x)
    scale.fold_into(linear)
    torch.testing.assert_close(linear(x), expected)


def test_stochastic_depth_keeps_the_mean_and_whole_samples() -> None:
    torch.manual_seed(0)
    drop, x = StochasticDepth(0.25), torch.ones(4000, 2, 3)
    out = drop(x)
    per_sample = out.flatten(1)
    assert (per_sample == per_sample[:, :1]).all(), "a sample is kept or left out as a whole"
    assert per_sample[:, 0].unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert abs(out.mean().item() - 1) < 0.05
    assert torch.equal(drop.eval()(x), x) and torch.equal(StochasticDepth()(x), x)
    with pytest.raises(UsageError, match="rate of stochastic depth is 1"):
        StochasticDepth(1.0)
    assert linear_rates(0.3, 4) == pytest.approx([0, 0.1, 0.2, 0.3]) and linear_rates(0.3, 1) == [0]


def test_positions_of_another_grid_are_those_of_timm() -> None:
    timm_layers = pytest.importorskip("timm.layers")
    table = torch.randn(1, 20, 6)
    assert resize_positions(table, (4, 5), (4, 5)) is table
    expected = timm_layers.resample_abs_pos_embed(table, [7, 3], old_size=[4, 5], num_prefix_tokens=0)
    torch.testing.assert_close(resize_positions(table, (4, 5), (7, 3)), expected)
    with pytest.raises(UsageError, match=r"\(1, 20, 6\), and its grid is 3 x 5"):
        resize_positions(table, (3, 5), (7, 3))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_channel_norm_is_a_layer_norm_of_every_cell(layout: torch.memory_format) -> None:
    norm = ChannelNorm(6, eps=1e-6)
    nn.init.normal_(norm.weight)
    maps = torch.randn(2, 6, 3, 4).to(memory_format=layout)
    out = norm(maps)
    for image in range(2):
        for row in range(3):
            for column in range(4):
                cell = maps[image, :, row, column]
                expected = (cell - cell.mean()) / (cell.var(unbiased=False) + 1e-6).sqrt() * norm.weight + norm.bias
                torch.testing.assert_close(out[image, :, row, column], expected)


def test_conv_norm_folds_into_one_convolution() -> None:
    block = ConvNorm(4, 6, 3, 2, groups=2, activation=nn.ReLU)
    assert (ConvNorm(2, 2, norm_weight=0.0)(torch.randn(2, 2, 3, 3)) == 0).all()
    for _ in range(3):
        block(torch.randn(8, 4, 9, 7))
    x = torch.randn(2, 4, 9, 7)
    ready = folded(block)
    assert block.eval()(x).shape == (2, 6, 5, 4)
    torch.testing.assert_close(ready(x), block(x), atol=1e-5, rtol=1e-5)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in ready.modules())


def test_feed_forward_is_two_layers() -> None:
    layer, x = FeedForward(3, 5), torch.randn(2, 4, 3)
    torch.testing.assert_close(layer(x), layer.second(nn.functional.gelu(layer.first(x))))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"kernel": 3, "stride": 2, "activation": nn.ReLU}, {"kernel": 3, "groups": 2}])
def test_without_gradients_the_norm_is_folded_into_each_call(dtype: torch.dtype, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    layer, maps = ConvNorm(4, 8, **options), torch.randn(2, 4, 17, 17)
    with torch.no_grad():
        layer[1].weight.uniform_(0.5, 2)
        layer[1].bias.normal_()
    layer(maps)
    layer, maps = layer.eval().to(dtype), maps.to(dtype)
    expected = layer(maps)
    with torch.inference_mode():
        assert layer._folds(maps) and not layer._folds(maps[:, :, :1, :1])
        tolerance = 0.05 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(layer(maps), expected, rtol=tolerance, atol=tolerance)


def test_hooks_on_a_convolution_or_norm_still_run() -> None:
    layer, seen = ConvNorm(4, 8).eval(), []
    handle = layer[1].register_forward_hook(lambda *_: seen.append(1))
    with torch.no_grad():
        layer(torch.randn(2, 4, 9, 9))
        assert seen == [1]
        handle.remove()
        layer(torch.randn(2, 4, 9, 9))
        assert seen == [1]
        assert layer._folds(torch.randn(2, 4, 9, 9)) and not layer.train()._folds(torch.randn(2, 4, 9, 9))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "changes", [{"bias": True}, {"dilation": 2}, {"padding": (0, 1)}, {"stride": (1, 2)}, {"padding": "same"}]
)
def test_a_convolution_of_another_kind_in_its_place_runs_as_it_is(changes: dict[str, Any], training: bool) -> None:
    torch.manual_seed(0)
    layer, maps = ConvNorm(4, 8, 3, activation=nn.ReLU).train(training), torch.randn(2, 4, 9, 9)
    layer[0] = nn.Conv2d(4, 8, 3, **{"bias": False, **changes})
    with torch.no_grad():
        torch.testing.assert_close(layer(maps), layer[1](layer[0](maps)).relu())
