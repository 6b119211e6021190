"""Huge, infinite and NaN queries and keys: finite results for all but NaN, the same in every execution."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import mereo
from mereo.core import Causal, Coupling
from mereo.core.distributed import distributed_attention
from mereo.core.distributed.partial import merge
from mereo.core.distributed.plan import empty_sums
from mereo.core.kernels import circle, neighborhood
from mereo.core.kernels.attention import METHODS, attend
from mereo.core.kernels.largest import exceeds, largest_entry, within_range
from mereo.errors import UsageError
from mereo.mechanisms.attention import SeaAttention, clear_attention
from mereo.mechanisms.attention.sparse.combiner import combiner_attention

INFINITY, NAN = float("inf"), float("nan")
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
GRID = (5, 5)


def execution(method: str, name: str) -> Callable[..., Tensor]:
    if method == "neighborhood":

        def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            grids = [x.transpose(1, 2).unflatten(1, GRID) for x in (q, k, v)]
            return mereo.neighborhood_attention(*grids, window=3, method=name).flatten(1, 2).transpose(1, 2)

        return run
    if method == "clear":
        return lambda q, k, v: clear_attention(q, k, v, GRID, 2, method=name)
    return lambda q, k, v: attend(q, k, v, Coupling("senders", topology=Causal()), method=name)


def executions() -> Iterator[tuple[str, str]]:
    for method, table in (("neighborhood", neighborhood.METHODS), ("clear", circle.METHODS), ("dense", METHODS)):
        yield from ((method, name) for name in table if name != "flex")


REFERENCE = {"neighborhood": "dense", "clear": "dense", "dense": "plain"}


def tensors(dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 3, 25, 8).to(dtype) for _ in range(3)]


def spoiled(kind: str, dtype: torch.dtype) -> list[Tensor]:
    q, k, v = tensors(dtype)
    if kind == "all at the largest number":
        q, k = (x.sign() * torch.finfo(dtype).max for x in (q, k))
    elif kind == "large":
        q, k = q * 1e4, k * 1e4
    elif kind == "infinite query":
        q[0, 1, 7, 2], k[..., 2] = -INFINITY, k[..., 2].abs() + 0.1  # all scores of the query are -infinity
        k[:, :, 6, 2] = 0.05
    elif kind == "infinite key":
        k[0, 1, 7, 2], k[0, 1, 9, 3] = INFINITY, -INFINITY
    return [q, k, v]


KINDS = ["all at the largest number", "large", "infinite query", "infinite key"]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("method", "name"), list(executions()))
def test_huge_and_infinite_scores(method: str, name: str, kind: str, dtype: torch.dtype) -> None:
    # Gradients of large scores overflow in half precision, and in PyTorch's fused attention.
    differentiable = name in ("compiled", "plain") and dtype != torch.float16
    given = [x.requires_grad_(differentiable) for x in spoiled(kind, dtype)]
    try:
        out = execution(method, name)(*given)
    except UsageError:
        assert name == "compiled" and dtype == torch.float64
        return
    assert out.isfinite().all()
    if out.requires_grad:
        out.sum().backward()
        assert all(x.grad is not None and x.grad.isfinite().all() for x in given)
    if "all" not in kind and dtype in (torch.float32, torch.float64):  # rounding breaks ties of huge scores elsewhere
        expected = execution(method, REFERENCE[method])(*spoiled(kind, dtype))
        torch.testing.assert_close(out.detach(), expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(("method", "name"), list(executions()))
def test_a_nan_reaches_the_tokens_that_attend_to_it(method: str, name: str) -> None:
    q, k, v = tensors(torch.float32)
    k[0, 1, 12, 2] = NAN  # the token in the middle
    out = execution(method, name)(q, k, v)
    assert out[0, 1, 12].isnan().all()
    assert out[1].isfinite().all() and out[0, [0, 2]].isfinite().all()


def test_infinite_scores_share_the_weight_equally() -> None:
    scores = torch.tensor([[[[0.0, INFINITY, 1.0, INFINITY], [0.0, -INFINITY, 0.0, 1.0]]]])
    couplings = Coupling("senders")(scores)
    assert couplings[0, 0, 0].tolist() == [0, 0.5, 0, 0.5]
    torch.testing.assert_close(couplings[0, 0, 1], torch.tensor([0.0, -1e38, 0.0, 1.0]).softmax(0))
    assert Coupling("senders")(torch.tensor([[[[0.0, NAN]]]])).isnan().all()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_sea_combiner_and_attention_over_processes(dtype: torch.dtype) -> None:
    for kind in KINDS:
        q, k, v = spoiled(kind, dtype)
        sea = SeaAttention(3, 8, columns=4, top_k=2).to(dtype)
        assert sea(q, k, v).isfinite().all()
        for plan in ("fixed", "logsparse", "axial_vertical"):
            out = combiner_attention(q, k, v, plan, causal=True)
            assert isinstance(out, Tensor) and out.isfinite().all()
        for lse in (False, True):
            result = distributed_attention(q, k, v, causal=True, return_lse=lse)
            assert all(x.isfinite().all() for x in (result if lse else [result]))


def test_equal_parts_with_a_huge_normaliser_have_half_of_the_weight_each() -> None:
    values = torch.tensor([[[[2.0]]], [[[4.0]]]])
    out, lse = empty_sums(torch.zeros(1, 1, 1, 1), values[:1])
    for part in values:
        merge(out, lse, part.unsqueeze(0), torch.full((1, 1, 1), 1e30))
    assert out.item() == 3 and lse.item() == pytest.approx(1e30)


def test_what_is_in_range_is_untouched() -> None:
    x = torch.randn(2, 3, 4)
    q, k = within_range(x, x)
    assert q is x and k is x
    most = largest_entry(x, 4)
    assert 4 * most**2 < torch.finfo(torch.float32).max and 4 * (2 * most) ** 2 > torch.finfo(torch.float32).max
    assert within_range(x, x * INFINITY)[1].abs().max() == pytest.approx(most)
    assert exceeds(torch.tensor([NAN]), 1.0) and not exceeds(torch.zeros(0), 1.0)


def test_programs_and_transforms_have_no_test_for_it() -> None:
    def run(q: Tensor) -> Tensor:
        return attend(q, q, q, Coupling("senders"), method="plain")

    q = torch.randn(2, 1, 3, 4)
    torch.testing.assert_close(torch.func.vmap(run)(q.unsqueeze(1)).squeeze(1), run(q))

    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return run(x)

    torch.testing.assert_close(make_fx(run)(q)(q), run(q))
    exported = torch.export.export(Module(), (q,))
    assert not [n for n in exported.graph.nodes if "norm" in str(n.target) or "item" in str(n.target)]
    torch.testing.assert_close(exported.module()(q), run(q))
