"""Zeros, half precision, single samples and large inputs: finite outputs and gradients, the same in every execution."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import mereo
from mereo.core import Causal, Coupling, DenseVotes
from mereo.core.distributed import distributed_attention
from mereo.core.distributed.partial import empty_sums, merge
from mereo.core.kernels import exchange, gaussian_passes, routing
from mereo.core.kernels.attention import METHODS, attend
from mereo.core.kernels.gaussians import Floor
from mereo.core.kernels.plain import Routing
from mereo.errors import UsageError
from mereo.mechanisms.attention import clear_attention

INFINITY, NAN = float("inf"), float("nan")
GRID = (5, 5)
LARGEST = {torch.float32: 1e15, torch.float64: 1e15, torch.bfloat16: 1e15, torch.float16: 1e3}
"""Products of two such entries fit the type in which they are added; the gradient of float16 has its own range."""


def attention(computation: str, method: str) -> Callable[..., Tensor]:
    """An execution of attention, of q, k and v (batch, heads, tokens, dim)."""
    if computation == "neighborhood":

        def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            grids = [x.transpose(1, 2).unflatten(1, GRID) for x in (q, k, v)]
            return mereo.neighborhood_attention(*grids, window=3, method=method).flatten(1, 2).transpose(1, 2)

        return run
    if computation == "clear":
        return lambda q, k, v: clear_attention(q, k, v, GRID, 2, method=method)
    return lambda q, k, v: attend(q, k, v, Coupling("senders", topology=Causal()), method=method)


def executions() -> Iterator[tuple[str, str]]:
    for computation, table in (("neighborhood", exchange.METHODS), ("clear", exchange.METHODS), ("dense", METHODS)):
        yield from ((computation, name) for name in table if name != "flex")


REFERENCE = {"neighborhood": "dense", "clear": "dense", "dense": "plain"}


def outputs(run: Callable[..., Tensor], given: list[Tensor]) -> list[Tensor]:
    """The output of some tensors, and their gradients."""
    given = [x.detach().clone().requires_grad_() for x in given]
    out = run(*given)
    out.sum().backward()
    return [out.detach(), *(x.grad for x in given if x.grad is not None)]


@pytest.mark.parametrize("dtype", LARGEST, ids=str)
@pytest.mark.parametrize("kind", ["zeros", "large", "one sample"])
@pytest.mark.parametrize(("computation", "method"), list(executions()))
def test_attention_is_finite_and_the_same_in_every_execution(
    computation: str, method: str, kind: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    given = [torch.randn(1 if kind == "one sample" else 2, 3, 25, 8).to(dtype) for _ in range(3)]
    if kind == "zeros":
        given = [torch.zeros_like(x) for x in given]
    elif kind == "large":
        given = [given[0] * LARGEST[dtype], given[1] * LARGEST[dtype], given[2]]
    try:
        found = outputs(attention(computation, method), given)
    except UsageError:
        assert method == "compiled" and dtype == torch.float64
        return
    # The gradient of PyTorch's fused attention multiplies what rounding leaves of a softmax by the keys.
    finite = found if method in ("compiled", "plain") or kind != "large" else found[:1]
    assert all(x.isfinite().all() for x in finite)
    close = 1e-4 if dtype in (torch.float32, torch.float64) else 0.1
    if kind != "large" or close < 0.1:  # rounding breaks the ties of large scores elsewhere
        expected = outputs(attention(computation, REFERENCE[computation]), given)
        for ours, theirs in zip(found if kind != "large" else found[:1], expected, strict=False):
            torch.testing.assert_close(ours, theirs, rtol=close, atol=close)


@pytest.mark.parametrize("kind", ["zeros", "large", "one sample"])
@pytest.mark.parametrize("method", ["plain", "streamed", "fused"])
def test_routing_is_finite_and_the_same_in_every_execution(method: str, kind: str) -> None:
    torch.manual_seed(0)
    children, weight = torch.randn(1 if kind == "one sample" else 2, 6, 4), torch.randn(3, 6, 4, 5)
    scale = {"zeros": 0.0, "large": 1e30}.get(kind, 1.0)

    def run(name: str) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda u, W: routing.route(Routing(DenseVotes(u, W), Coupling("receivers"), 3), name)

    found = outputs(run(method), [children * scale, weight])
    assert all(x.isfinite().all() for x in found)
    expected = outputs(run("plain"), [children * scale, weight])
    # Gradients of parents of length one are what rounding leaves of a difference.
    for ours, theirs in zip(found[: 1 if kind == "large" else 3], expected, strict=False):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["zeros", "one sample"])
@pytest.mark.parametrize("method", ["stored", "streamed", "compiled"])
def test_gaussians_are_finite_and_the_same_in_every_execution(method: str, kind: str) -> None:
    torch.manual_seed(0)
    given = [torch.randn(1, 6, 2, 3), torch.randn(4, 6, 3, 2), torch.rand(1, 4, 6)]
    if kind == "zeros":
        given = [torch.zeros_like(x) for x in given]

    def run(name: str) -> Callable[..., Tensor]:
        def total(*tensors: Tensor) -> Tensor:
            mean, variance, fit = gaussian_passes.fitted(*tensors, Floor(0.1), method=name)
            assert fit is not None
            return torch.cat((mean.flatten(), variance.flatten(), fit.flatten()))

        return total

    found = outputs(run(method), given)
    assert all(x.isfinite().all() for x in found)
    for ours, theirs in zip(found, outputs(run("stored"), given), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("computation", "method"), list(executions()))
def test_a_nan_reaches_the_tokens_that_attend_to_it(computation: str, method: str) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 25, 8) for _ in range(3))
    k[0, 1, 12, 2] = NAN  # the token in the middle
    out = attention(computation, method)(q, k, v)
    assert out[0, 1, 12].isnan().all()
    assert out[1].isfinite().all() and out[0, [0, 2]].isfinite().all()


def test_scores_that_overflow_half_precision_share_the_weight_equally() -> None:
    scores = torch.tensor([[[[0.0, INFINITY, 1.0, INFINITY]]]], dtype=torch.float16)
    assert Coupling("senders")(scores)[0, 0, 0].tolist() == [0, 0.5, 0, 0.5]


@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize("dtype", LARGEST, ids=str)
def test_attention_over_processes(dtype: torch.dtype, lse: bool) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 25, 8).to(dtype) for _ in range(3))
    for factor in (0.0, LARGEST[dtype]):
        result = distributed_attention(q * factor, k * factor, v, causal=True, return_lse=lse)
        assert all(x.isfinite().all() for x in (result if lse else [result]))


def test_equal_parts_with_a_huge_normaliser_have_half_of_the_weight_each() -> None:
    values = torch.tensor([[[[2.0]]], [[[4.0]]]])
    out, lse = empty_sums(torch.zeros(1, 1, 1, 1), values[:1])
    for part in values:
        merge(out, lse, part.unsqueeze(0), torch.full((1, 1, 1), 1e30))
    assert out.item() == 3 and lse.item() == pytest.approx(1e30)


def test_transforms_and_traces_give_the_same() -> None:
    def run(q: Tensor) -> Tensor:
        return attend(q, q, q, Coupling("senders"), method="plain")

    q = torch.randn(2, 1, 3, 4)
    torch.testing.assert_close(torch.func.vmap(run)(q.unsqueeze(1)).squeeze(1), run(q))
    torch.testing.assert_close(make_fx(run)(q)(q), run(q))
