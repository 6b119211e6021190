"""Guided attention and its bottleneck, against their equations."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.errors import UsageError
from mereo.layers import GuidedAttention, SemanticBottleneck
from mereo.mechanisms.attention import ChannelAttention, PositionAttention


def moved(module: Any) -> Any:
    """In float64 and evaluation, with no parameter at its start."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module.double().eval()


def normed(layer: nn.Sequential, maps: Tensor, activation: str) -> Tensor:
    """The layer from its parameters."""
    convolution, norm, slope = layer[0], layer[1], layer[2]
    made = F.conv2d(maps, convolution.weight, convolution.bias, padding=1)
    made = made / (1 + norm.eps) ** 0.5 * norm.weight[:, None, None] + norm.bias[:, None, None]
    return made.clamp(min=0) + (slope.weight * made.clamp(max=0) if activation == "prelu" else 0)


def test_the_block_is_that_of_its_equations() -> None:
    module = moved(GuidedAttention(8))
    maps, guide = torch.randn(2, 2, 8, 3, 4, dtype=torch.float64)
    entered = {name: normed(branch[0], maps, "prelu") for name, branch in module.branches.items()}
    attention = module.branches["position"][1]
    assert isinstance(attention, PositionAttention) and isinstance(module.branches["channel"][1], ChannelAttention)
    q, k, v = F.linear(entered["position"].flatten(2).mT, attention.weight, attention.bias).split((1, 1, 4), -1)
    places = entered["position"] + attention.gamma * ((q @ k.mT).softmax(-1) @ v).mT.view(2, 4, 3, 4)
    x = entered["channel"].flatten(2)
    channels = (x + module.branches["channel"][1].beta * (-x @ x.mT).softmax(-1) @ x).view(2, 4, 3, 4)
    mixed = normed(module.branches["position"][2], places, "prelu")
    mixed = mixed + normed(module.branches["channel"][2], channels, "prelu")
    assert module.gate is not None
    gate = F.conv2d(guide, module.gate.weight, module.gate.bias, padding=1)
    torch.testing.assert_close(module(maps, guide), F.conv2d(mixed * gate, module.out.weight, module.out.bias))


def test_the_bottleneck_is_that_of_its_equations() -> None:
    module = moved(SemanticBottleneck(2))
    maps = torch.randn(1, 2, 8, 4, dtype=torch.float64)
    layers = [*module.encoder, *module.decoder]
    made, codes = maps, []
    for index, layer in enumerate(layers):
        if isinstance(layer, nn.MaxPool2d):
            rows = made.unflatten(2, (-1, 2)).unflatten(4, (-1, 2))
            made = rows.amax((3, 5))
        elif isinstance(layer, nn.ConvTranspose2d):
            made = torch.einsum("bchw,cdij->bdhiwj", made, layer.weight).flatten(2, 3).flatten(3)
            made = made + layer.bias[:, None, None]
        else:
            made = normed(layer, made, "relu")
        codes.append((index, made))
    code, rebuilt = module(maps)
    torch.testing.assert_close(code, dict(codes)[len(module.encoder) - 1])
    torch.testing.assert_close(rebuilt, made)
    assert code.shape == (1, 8, 2, 1) and rebuilt.shape == maps.shape
    assert [t.shape for t in module(torch.randn(1, 2, 5, 6, dtype=torch.float64))] == [(1, 8, 1, 1), (1, 2, 5, 6)]


def test_parameters_of_the_parts_are_those_of_the_published_network() -> None:
    def count(module: nn.Module) -> int:
        return sum(p.numel() for p in module.parameters())

    with torch.device("meta"):
        whole = GuidedAttention(128)
        assert count(whole.branches["position"]) == 116_179 and count(whole.branches["channel"]) == 110_979
        assert count(PositionAttention(64)) == 5_201 and count(ChannelAttention()) == 1
        assert count(SemanticBottleneck(128)) == 6_970_496
        assert list(GuidedAttention(128, attention="channel").branches) == ["channel"]


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="dim is 0"):
        GuidedAttention(0)
    with pytest.raises(UsageError, match=r"attention .*'places'"):
        GuidedAttention(4, attention="places")  # type: ignore[arg-type]
    maps = torch.randn(1, 4, 4, 4)
    with pytest.raises(UsageError, match="guide is None and gated True"):
        GuidedAttention(4)(maps)
    with pytest.raises(UsageError, match=r"guide is \(1, 4, 4, 4\) and gated False"):
        GuidedAttention(4, gated=False)(maps, maps)
