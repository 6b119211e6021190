"""Routing without votes against the plain form: outputs, gradients, sizes, memory, compilation, and who runs when."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from mereo.core import Coupling, DenseVotes, record
from mereo.core.kernels import backends
from mereo.core.kernels.plain import Routing
from mereo.core.kernels.routing import METHODS, route
from mereo.errors import UsageError
from mereo.mechanisms.routing import DynamicRouting, dynamic_routing

needs_library = pytest.mark.skipif(backends()["fused"] != "available", reason=backends()["fused"])
WITHOUT_VOTES = ["streamed", pytest.param("fused", marks=needs_library)]
every_method = pytest.mark.parametrize("method", WITHOUT_VOTES)

# batch, senders, receivers, d_in, d_out: ones, odd ones, poses of half a vector and of more than one, CapsNet's.
SIZES = [(2, 7, 3, 4, 5), (1, 1, 1, 1, 1), (3, 1, 4, 3, 2), (1, 9, 1, 8, 16), (17, 9, 10, 8, 16), (5, 35, 3, 13, 40)]


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Memory that nobody wrote is NaN: what is read before it is written shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def tensors(sizes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Children, weight, prior and bias."""
    B, S, R, D, E = sizes
    torch.manual_seed(0)
    shapes, spread = ((B, S, D), (R, S, D, E), (R, S), (R, E)), (1, 0.5 / D**0.5, 1, 0.1)
    return [(torch.randn(s) * x).to(dtype).requires_grad_() for s, x in zip(shapes, spread, strict=True)]


def run(method: str, children: Tensor, weight: Tensor, steps: int, **options: Any) -> list[Tensor]:
    """The output and the gradients of all that has one."""
    coupling = Coupling("receivers", options.pop("normaliser", "softmax"))
    call = Routing(DenseVotes(children, weight, tile=options.pop("tile", None)), coupling, steps, **options)
    out = route(call, method)
    asking = [x for x in (children, weight, call.prior, call.bias) if x is not None]
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    return [out, *torch.autograd.grad((out * weights).sum(), asking)]


def check(got: list[Tensor], expected: list[Tensor], forward: float = 1e-5, backward: float = 1e-4) -> None:
    """Against the largest entry: each tensor is a sum of many products."""
    for i, (x, y) in enumerate(zip(got, expected, strict=True)):
        assert x.shape == y.shape and x.dtype == y.dtype
        assert (x - y).abs().max() <= (forward if i == 0 else backward) * y.abs().max().clamp(min=1e-3), i


@every_method
@pytest.mark.parametrize("steps", [1, 2, 3, 4])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_equals_plain(method: str, sizes: tuple[int, ...], steps: int) -> None:
    children, weight, _, bias = tensors(sizes)
    for options in ({}, {"bias": bias}, {"normaliser": "leaky_softmax"}):
        check(run(method, children, weight, steps, **options), run("plain", children, weight, steps, **options))


@every_method
def test_unit_couplings_equal_plain(method: str) -> None:
    children, weight, _, bias = tensors(SIZES[0])
    options = {"normaliser": "none", "bias": bias}
    check(run(method, children, weight, 1, **options), run("plain", children, weight, 1, **options))


@pytest.mark.parametrize("normaliser", ["softmax", "leaky_softmax"])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_learned_prior_streams(sizes: tuple[int, ...], steps: int, normaliser: str) -> None:
    children, weight, prior, bias = tensors(sizes)
    options = {"prior": prior, "bias": bias, "normaliser": normaliser}
    check(run("streamed", children, weight, steps, **options), run("plain", children, weight, steps, **options))


@pytest.mark.parametrize("tile", [1, 2, 7, 100])
def test_the_tile_changes_nothing(tile: int) -> None:
    children, weight, prior, _ = tensors(SIZES[0], torch.float64)
    expected = run("plain", children, weight, 3, prior=prior)
    check(run("streamed", children, weight, 3, prior=prior, tile=tile), expected, 1e-12, 1e-12)


@pytest.mark.parametrize("normaliser", ["softmax", "leaky_softmax"])
def test_streamed_gradients_in_double_precision(normaliser: str) -> None:
    given = [x.detach().double().requires_grad_() for x in tensors((2, 4, 3, 2, 3))]

    def call(children: Tensor, weight: Tensor, prior: Tensor, bias: Tensor) -> Tensor:
        votes = DenseVotes(children, weight, tile=3)
        return route(Routing(votes, Coupling("receivers", normaliser), 3, prior, bias), "streamed")

    assert torch.autograd.gradcheck(call, given)


@every_method
def test_second_derivatives_are_those_of_the_plain_form(method: str) -> None:
    children, weight, _, _ = tensors(SIZES[0])

    def second(method: str) -> list[Tensor]:
        out = dynamic_routing(children, weight, method=method)
        (first,) = torch.autograd.grad(out.square().sum(), children, create_graph=True)
        return [first, *torch.autograd.grad(first.square().sum(), (children, weight))]

    check(second(method), second("plain"), 1e-4)


@every_method
@pytest.mark.parametrize(("dtype", "close"), [(torch.bfloat16, 0.02), (torch.float16, 0.003)], ids=str)
def test_half_precision_is_float32_inside(method: str, dtype: torch.dtype, close: float) -> None:
    """Equal to float32 on the same rounded arguments, up to the rounding of what comes out."""
    children, weight, _, bias = tensors(SIZES[4], dtype)
    got = run(method, children, weight, 3, bias=bias)
    wide = [x.detach().float().requires_grad_() for x in (children, weight, bias)]
    expected = run("plain", wide[0], wide[1], 3, bias=wide[2])
    assert all(x.dtype == dtype for x in got)
    check([x.float() for x in got], expected, close, close)


@every_method
def test_children_of_another_type_than_the_weights(method: str) -> None:
    children, weight, _, _ = tensors(SIZES[0])
    got = run(method, children.detach().bfloat16().requires_grad_(), weight, 3)
    assert [x.dtype for x in got] == [torch.bfloat16, torch.bfloat16, torch.float32]


@every_method
def test_tensors_may_lie_anyhow(method: str) -> None:
    B, S, R, D, E = 3, 6, 4, 5, 8
    torch.manual_seed(0)
    turned = (torch.randn(D, B, S).permute(1, 2, 0), torch.randn(S, R, E, D).permute(1, 0, 3, 2))
    expanded = (torch.randn(B, 1, D).expand(B, S, D), torch.randn(R, 1, D, E).expand(R, S, D, E))
    for given in (turned, expanded):
        children, weight = (x.detach().requires_grad_() for x in given)
        assert not children.is_contiguous() or not weight.is_contiguous()
        check(run(method, children, weight, 3), run("plain", children, weight, 3))


@every_method
def test_twice_the_same(method: str) -> None:
    children, weight, _, _ = tensors((40, 200, 5, 8, 16))
    for x, y in zip(run(method, children, weight, 3), run(method, children, weight, 3), strict=True):
        assert torch.equal(x, y)


@every_method
def test_several_threads_agree_with_one(method: str) -> None:
    children, weight, _, _ = tensors((40, 203, 10, 8, 16))
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append(run(method, children, weight, 3))
    finally:
        torch.set_num_threads(before)
    check(*results)


@every_method
def test_arguments_stay_as_they_were(method: str) -> None:
    children, weight, _, _ = tensors((1, 5, 3, 4, 4))
    children = (children.detach() * 1e20).requires_grad_()
    copies = [x.detach().clone() for x in (children, weight)]
    run(method, children, weight, 3)
    assert all(torch.equal(x, y) for x, y in zip((children, weight), copies, strict=True))


@every_method
@pytest.mark.parametrize("size", [0, 1e-20, 1e4, 1e30])
def test_extreme_children(method: str, size: float) -> None:
    children, weight, _, _ = tensors((3, 6, 4, 5, 5))
    children = (children.detach() * size).requires_grad_()
    got, expected = run(method, children, weight, 3), run("plain", children, weight, 3)
    assert got[0].isfinite().all()
    torch.testing.assert_close(got[0], expected[0], rtol=1e-4, atol=1e-5)
    if size < 1e30:
        assert all(x.isfinite().all() for x in got)
    else:
        assert (got[1][children.abs() > 1e16] == 0).all()


@every_method
def test_what_is_not_a_number_stays_so_in_its_image(method: str) -> None:
    children, weight, _, _ = tensors(SIZES[4])
    with torch.no_grad():
        children[2, 3, 1] = torch.nan
        out = dynamic_routing(children, weight, method=method)
    assert out[2].isnan().all() and not out[[0, 1, 3]].isnan().any()


@every_method
def test_no_votes_are_saved_for_the_backward_pass(method: str) -> None:
    B, S, R, D, E = 8, 64, 10, 4, 16
    children, weight, _, _ = tensors((B, S, R, D, E))
    saved: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        saved[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        dynamic_routing(children, weight, method=method)
    parameters = saved.pop(weight.untyped_storage().data_ptr())
    assert parameters == weight.nbytes
    # The children, and the parents of three passes.
    assert sum(saved.values()) == 4 * B * (S * D + 3 * R * E)
    assert sum(saved.values()) < 4 * B * S * R * E / 4


@every_method
def test_compiles_to_one_graph_with_its_gradient(method: str) -> None:
    children, weight, _, _ = tensors(SIZES[0])
    torch.compiler.reset()

    def call(children: Tensor, weight: Tensor) -> Tensor:
        return 2 * dynamic_routing(children, weight, method=method)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    results = []
    for function in (call, compiled):
        out = function(children, weight)
        results.append([out, *torch.autograd.grad(out.square().sum(), (children, weight))])
    check(*results)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # its own, inside opcheck
@every_method
def test_the_operator_keeps_its_promises(method: str) -> None:
    children, weight, _, bias = tensors(SIZES[0])
    torch.library.opcheck(torch.ops.mereo.route.default, (children, weight, None, bias, 3, "softmax", method, None))


@pytest.mark.parametrize("options", [{}, {"learned_prior": True, "bias": True}, {"leaky": True}, {"steps": 0}])
def test_the_layer_streams_with_its_options(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = DynamicRouting(6, 3, 4, 5, **options)
    children, mask = torch.randn(2, 6, 4), torch.rand(2, 6) < 0.7
    expected = module(children, mask, method="plain")
    monkeypatch.setitem(METHODS, "plain", (fail, METHODS["plain"][1]))
    torch.testing.assert_close(module(children, mask), expected, rtol=1e-5, atol=1e-6)


def fail(call: Routing) -> Tensor:
    raise AssertionError("the plain form ran")


def test_recording_uses_the_plain_form() -> None:
    module, children = DynamicRouting(6, 3, 4, 5), torch.randn(2, 6, 4)
    with record(module) as trace:
        module(children)
        with pytest.raises(UsageError, match=r"method is 'streamed'.*the couplings are observed; use 'auto'"):
            module(children, method="streamed")
    assert [c.shape for c in trace.steps("coupling")] == [(2, 1, 3, 6)] * 3


def test_exporting_uses_the_plain_form() -> None:
    module, children = DynamicRouting(6, 3, 4, 5), torch.randn(2, 6, 4)
    program = torch.export.export(module, (children,))
    assert not any("mereo" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(children), module(children), rtol=1e-5, atol=1e-6)


def test_transforms_of_functions_use_the_plain_form() -> None:
    children, weight, _, _ = (x.detach() for x in tensors(SIZES[0]))
    each = torch.vmap(lambda one: dynamic_routing(one[None], weight)[0])(children)
    torch.testing.assert_close(each, dynamic_routing(children, weight), rtol=1e-5, atol=1e-6)


def test_detached_routing_uses_the_plain_form() -> None:
    module = DynamicRouting(6, 3, 4, 5, detach_routing=True)
    with pytest.raises(UsageError, match="detach_routing is True"):
        module(torch.randn(2, 6, 4), method="streamed")


def test_refusals() -> None:
    children, weight, prior, _ = tensors(SIZES[0])
    for method, message in (("streemed", "Did you mean 'streamed'"), ("triton", "triton.*cannot run here")):
        if backends().get(method) != "available":
            with pytest.raises(UsageError, match=message):
                dynamic_routing(children, weight, method=method)
    with pytest.raises(UsageError, match=r"method is 'fused'.*(float64|library)"):
        dynamic_routing(children.double(), weight.double(), method="fused")
    with pytest.raises(UsageError, match=r"method is 'streamed'.*float64 and weight is torch.float32"):
        dynamic_routing(children.double(), weight, method="streamed")
    with pytest.raises(UsageError, match=r"method is 'fused'.*(learned prior|library)"):
        route(Routing(DenseVotes(children, weight), Coupling("receivers"), 3, prior), "fused")
    with pytest.raises(UsageError, match="it does not support Coupling"):
        route(Routing(DenseVotes(children, weight), Coupling("receivers", "sparsemax"), 3), "streamed")
    with pytest.raises(UsageError, match=r"senders are \(2, 7, 4\) and weight is \(3, 4, 7, 5\)"):
        dynamic_routing(children, weight.transpose(1, 2))
    with pytest.raises(UsageError, match="tile is 0"):
        dynamic_routing(children, weight, tile=0)
    with pytest.raises(UsageError, match="steps is 0"):
        dynamic_routing(children, weight, 0)
