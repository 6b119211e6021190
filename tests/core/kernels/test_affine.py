"""Linear layers and convolutions by oneDNN against the plain operations."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core.kernels import affine
from mereo.core.kernels.affine import Linear, activated, convolve, linear

ACTIVATIONS = [None, nn.Identity(), nn.ReLU(), nn.SiLU(), nn.GELU(), nn.GELU(approximate="tanh"), nn.Tanh()]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str]]]:
    """The activations with which oneDNN's product ran."""
    calls, product = [], affine.product

    def counted(x: Tensor, weight: Tensor, bias: Tensor | None, activation: tuple[str, str] = ("none", "")) -> Tensor:
        calls.append(activation)
        return product(x, weight, bias, activation)

    monkeypatch.setattr(affine, "product", counted)
    yield calls


needs_onednn = pytest.mark.skipif(not affine._AVAILABLE, reason="PyTorch has no oneDNN here")


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_outputs_are_those_of_the_plain_operations(activation: nn.Module | None, bias: bool) -> None:
    x, weight, b = torch.randn(2, 3, 5), torch.randn(7, 5), torch.randn(7) if bias else None
    plain = F.linear(x, weight, b)
    torch.testing.assert_close(linear(x, weight, b, activation), plain if activation is None else activation(plain))
    maps, kernel = torch.randn(2, 4, 6, 5), torch.randn(4, 1, 3, 3)
    b = torch.randn(4) if bias else None
    plain = F.conv2d(maps, kernel, b, 2, 1, groups=4)
    out = convolve(maps, kernel, b, 2, 1, 4, activation)
    torch.testing.assert_close(out, plain if activation is None else activation(plain))


@needs_onednn
@pytest.mark.parametrize("count", [1, 2])
def test_a_pointwise_convolution_is_a_product_where_that_is_faster(count: int, ran: list[tuple[str, str]]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        maps = torch.randn(2, 4, 6, 5).contiguous(memory_format=torch.channels_last).requires_grad_()
        weight, bias = torch.randn(7, 4, 1, 1, requires_grad=True), torch.randn(7, requires_grad=True)
        plain = F.conv2d(maps, weight, bias).relu()
        with torch.no_grad():
            torch.testing.assert_close(convolve(maps, weight, bias, activation=nn.ReLU()), plain)
        assert ran == [("relu", "")]
        out = convolve(maps, weight, bias, activation=nn.ReLU())
        # With gradients only where PyTorch's convolution is slow: on one thread, with few images.
        assert len(ran) == (2 if count == 1 else 1)
        given = (maps, weight, bias)
        gradients, expected = (torch.autograd.grad(y.square().sum(), given) for y in (out, plain))
        torch.testing.assert_close((out, *gradients), (plain, *expected))
        ran.clear()
        with torch.no_grad():
            for other in ({"stride": 2}, {"padding": 1}):
                torch.testing.assert_close(convolve(maps, weight, bias, **other), F.conv2d(maps, weight, bias, **other))
            contiguous = maps.contiguous()
            torch.testing.assert_close(convolve(contiguous, weight, bias), F.conv2d(contiguous, weight, bias))
        assert not ran
    finally:
        torch.set_num_threads(before)


@needs_onednn
def test_gradients_are_those_of_the_plain_operations(ran: list[tuple[str, str]]) -> None:
    tensors = [torch.randn(2, 3, 5), torch.randn(7, 5), torch.randn(7)]
    for wanted in ((0, 1, 2), (1,), (0,), (2,)):
        given = [x.clone().requires_grad_(i in wanted) for i, x in enumerate(tensors)]
        sums = [
            (way(*given, *rest) * torch.arange(7)).sum() for way, rest in ((linear, (nn.GELU(),)), (plain_gelu, ()))
        ]
        ours, theirs = (torch.autograd.grad(total, [given[i] for i in wanted]) for total in sums)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b)
    assert ran


def plain_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(F.linear(x, weight, bias))


def test_second_derivatives_exist() -> None:
    x, weight = torch.randn(3, 4, requires_grad=True), torch.randn(2, 4, requires_grad=True)
    both = []
    for way in (linear, F.linear):
        (first,) = torch.autograd.grad(way(x, weight).pow(3).sum(), x, create_graph=True)
        both.append(torch.autograd.grad(first.pow(2).sum(), (x, weight)))
    for a, b in zip(*both, strict=True):
        torch.testing.assert_close(a, b)


@needs_onednn
def test_the_activation_is_part_of_the_product_where_nothing_needs_what_comes_before(
    ran: list[tuple[str, str]],
) -> None:
    layer, x = Linear(4, 3), torch.randn(5, 4)
    with torch.inference_mode():
        torch.testing.assert_close(activated(layer, x, nn.GELU()), F.gelu(F.linear(x, layer.weight, layer.bias)))
        activated(layer, x, nn.Tanh())
        seen = layer.register_forward_hook(lambda *_: None)
        activated(layer, x, nn.GELU())
        seen.remove()
    assert ran == [("gelu", "none"), ("none", ""), ("none", "")]
    activated(layer, x, nn.GELU())
    assert ran[3:] == [("none", "")]


@needs_onednn
@pytest.mark.parametrize("why", ["type", "empty", "autocast", "transform", "export", "switched off", "flops"])
def test_the_plain_operations_run_where_onednn_cannot(why: str, ran: list[tuple[str, str]]) -> None:
    layer, x = Linear(4, 3).requires_grad_(False), torch.randn(5, 4)
    if why == "type":
        layer.double()(x.double())
    elif why == "empty":
        assert layer(x[:0]).shape == (0, 3)
    elif why == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16
    elif why == "transform":
        torch.testing.assert_close(torch.vmap(layer)(x), F.linear(x, layer.weight, layer.bias))
    elif why == "export":
        torch.export.export(layer, (x,)).module()(x)
    elif why == "switched off":
        with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
            layer(x)
    else:
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            layer(x)
        assert counter.get_total_flops() == 2 * 5 * 4 * 3
    assert ran == []


@pytest.mark.parametrize("shape", [(2, 4, 4, 12), (5, 7, 11, 12)])
def test_a_compiled_linear_layer_is_a_convolution_where_that_is_faster(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    monkeypatch.setattr(affine, "_FASTER", True)
    layer, x = Linear(12, 8), torch.randn(shape).transpose(0, -2).contiguous().transpose(0, -2)
    graphs: list[str] = []

    def keep(module: torch.fx.GraphModule, _inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(module.code)
        return module

    compiled = torch.compile(layer, fullgraph=True, backend=keep)
    torch.testing.assert_close(compiled(x), F.linear(x, layer.weight, layer.bias), rtol=1e-4, atol=1e-5)
    assert "conv2d" in graphs[0]
    exported = torch.export.export(layer, (x,)).module()
    assert "conv2d" not in exported.code
    torch.testing.assert_close(exported(x), layer(x), rtol=1e-4, atol=1e-5)


@needs_onednn
def test_a_compiled_network_uses_onednn_where_it_needs_no_gradient() -> None:
    layer, x, graphs = Linear(4, 3), torch.randn(5, 4), []

    def keep(graph: torch.fx.GraphModule, _: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append({str(node.target) for node in graph.graph.nodes})
        return graph

    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend=keep)
    torch.testing.assert_close(compiled(x), F.linear(x, layer.weight, layer.bias))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), F.linear(x, layer.weight, layer.bias))
    assert ["affine_product" in str(names) for names in graphs] == [False, True]
