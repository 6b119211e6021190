"""Depthwise attention: a slow reference, and plain self-attention as its special case."""

import math

import pytest
import torch
import torch.nn.functional as F

from mereo import record
from mereo.errors import UsageError
from mereo.layers import SelfAttention
from mereo.mechanisms.routing import DepthwiseAttention


@torch.no_grad()
@pytest.mark.parametrize(("heads", "stride"), [(1, 2), (3, 1)])
def test_equals_the_equations(heads: int, stride: int) -> None:
    route = DepthwiseAttention(6, heads, stride=stride).double()
    capsules = torch.randn(2, 5, 4, 6, dtype=torch.float64)
    maps, read = capsules.permute(0, 3, 1, 2), {}
    for name, step in (("q", 1), ("k", stride), ("v", stride)):
        made = F.conv2d(maps, route.depthwise[name].weight, None, step, 1, groups=6)
        layer = route.linear[name]
        read[name] = made.flatten(2).transpose(1, 2) @ layer.weight.T + layer.bias
    assert read["q"].shape[1] == 20 and read["k"].shape[1] == math.ceil(5 / stride) * math.ceil(4 / stride)
    size = 6 // heads
    expected, shares = torch.zeros(2, 20, 6, dtype=torch.float64), {}
    for b in range(2):
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            for r in range(20):
                fits = torch.stack([read["q"][b, r, part] @ key[part] for key in read["k"][b]]) / 6**0.5
                shares[b, h, r] = fits.softmax(0)
                expected[b, r, part] = shares[b, h, r] @ read["v"][b, :, part]
    expected = (expected @ route.proj.weight.T + route.proj.bias).view(2, 5, 4, 6)
    torch.testing.assert_close(route(capsules), expected)
    with record(route) as trace:
        torch.testing.assert_close(route(capsules), expected)
    for (b, h, r), share in shares.items():
        torch.testing.assert_close(trace["coupling"][b, h, r], share)


@torch.no_grad()
def test_without_depthwise_convolutions_it_is_self_attention() -> None:
    route, plain = DepthwiseAttention(6, stride=1), SelfAttention(6, 1)
    for conv, name in ((route.depthwise[name], name) for name in ("q", "k", "v")):
        conv.weight.zero_()[:, :, 1, 1] = 1
        third = slice(6 * "qkv".index(name), 6 * "qkv".index(name) + 6)
        route.linear[name].weight.copy_(plain.qkv.weight[third])
        route.linear[name].bias.copy_(plain.qkv.bias[third])
    route.proj.load_state_dict(plain.proj.state_dict())
    capsules = torch.randn(2, 3, 4, 6)
    torch.testing.assert_close(route(capsules), plain(capsules))


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="num_heads"):
        DepthwiseAttention(6, 4)
    with pytest.raises(UsageError, match="capsules has the shape"):
        DepthwiseAttention(6)(torch.zeros(2, 5, 6))
