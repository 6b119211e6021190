"""Layers of vision networks against their equations."""

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
