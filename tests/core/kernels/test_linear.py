"""Linear maps as convolutions against PyTorch's own."""

import pytest
import torch
import torch.nn.functional as F

from mereo.core.kernels import linear as kernel
from mereo.core.kernels.linear import Linear, linear
from mereo.layers import FeedForward


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(2, 160, 160), (5, 7, 11, 97), (40000, 3), (1, 4)])
def test_a_convolution_computes_the_same(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], threads: int, bias: bool
) -> None:
    monkeypatch.setattr(kernel, "_FASTER", True)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    layer, x = Linear(shape[-1], 6, bias=bias), torch.randn(shape, requires_grad=True)
    inputs = [x, *layer.parameters()]
    results = []
    for function in (linear, F.linear):
        output = function(x, layer.weight, layer.bias)
        results.append([output, *torch.autograd.grad(output.sin().sum(), inputs)])
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)
    assert torch.equal(layer(x), results[0][0])


def test_views_and_compiled_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_FASTER", True)
    layer, x = Linear(96, 8), torch.randn(4, 96, 100).transpose(1, 2)
    expected = F.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), expected, rtol=1e-4, atol=1e-5)
    assert layer(torch.zeros(0, 5, 96)).shape == (0, 5, 8)


def test_other_types_devices_and_transforms_take_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_FASTER", True)
    x, weight = torch.randn(2, 200, 96), torch.randn(4, 96)
    assert kernel._can_convolve(x, weight)
    assert not kernel._can_convolve(x.double(), weight.double())
    assert not kernel._can_convolve(x.to("meta"), weight)
    assert not kernel._can_convolve(x[:, :9], weight), "small"
    with torch.autocast("cpu", torch.bfloat16):
        assert not kernel._can_convolve(x, weight)
    monkeypatch.setattr(kernel, "_FASTER", False)
    assert not kernel._can_convolve(x, weight)


def test_tokens_in_parts_are_the_tokens_together(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = FeedForward(4, 9).eval(), torch.randn(3, 50, 4)
    expected = layer(x)
    monkeypatch.setattr("mereo.layers.feed_forward._WHOLE", 100)
    monkeypatch.setattr("mereo.layers.feed_forward._PART", 9 * 37)
    parts = []
    layer.first.register_forward_hook(lambda _m, _i, output: parts.append(len(output)))
    torch.testing.assert_close(layer(x), expected)
    assert parts == [3], "with gradients, tokens stay together"
    with torch.no_grad():
        torch.testing.assert_close(layer(x), expected)
        assert parts[1:] == [32] * 4 + [22]
        assert layer(x.transpose(0, 1)).shape == (50, 3, 4)
