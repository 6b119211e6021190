"""combine and agree without votes: the stored votes' values, adjoint, exact to the second derivative, any tile."""

import pytest
import torch
from torch import Tensor

from mereo.core import DenseVotes, SharedVotes
from mereo.core.kernels.votes import agree, combine

D = torch.float64
both_kinds = pytest.mark.parametrize("shared", [False, True])


def tensors(shared: bool, dtype: torch.dtype = D) -> list[Tensor]:
    """Couplings, children, weight, parents."""
    torch.manual_seed(0)
    B, S, R, d, E = 2, 7, 3, 4, 5
    shapes = ((B, R, S), (B, S, d), (R, d, E) if shared else (R, S, d, E), (B, R, E))
    return [torch.randn(shape, dtype=D).to(dtype).requires_grad_() for shape in shapes]


@both_kinds
@pytest.mark.parametrize("tile", [None, 1, 3, 50])
def test_equal_stored_votes(shared: bool, tile: int | None) -> None:
    c, u, W, v = tensors(shared)
    votes = (SharedVotes if shared else DenseVotes)(u, W)
    torch.testing.assert_close(combine(c, u, W, tile=tile), votes.combine(c.unsqueeze(1)).squeeze(1))
    torch.testing.assert_close(agree(u, W, v, tile=tile), votes.agree(v.unsqueeze(1)).squeeze(1))


@both_kinds
def test_adjoint(shared: bool) -> None:
    c, u, W, v = tensors(shared)
    torch.testing.assert_close((combine(c, u, W) * v).sum(), (c * agree(u, W, v)).sum())


@pytest.mark.long
@both_kinds
def test_first_and_second_derivatives(shared: bool) -> None:
    c, u, W, v = tensors(shared)
    for function, given in ((lambda *a: combine(*a, tile=2), (c, u, W)), (lambda *a: agree(*a, tile=3), (u, W, v))):
        assert torch.autograd.gradcheck(function, given)
        assert torch.autograd.gradgradcheck(function, given)


@both_kinds
def test_compiles_to_one_graph(shared: bool) -> None:
    c, u, W, _ = tensors(shared)
    torch.compiler.reset()

    def call(c: Tensor, u: Tensor, W: Tensor) -> Tensor:
        return agree(u, W, combine(c, u, W))

    results = []
    for function in (call, torch.compile(call, fullgraph=True, backend="aot_eager")):
        out = function(c, u, W)
        results.append((out, *torch.autograd.grad(out.sum(), (c, u, W))))
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # its own, inside opcheck
@both_kinds
def test_the_operator_keeps_its_promises(shared: bool) -> None:
    c, u, W, v = tensors(shared)
    torch.library.opcheck(torch.ops.mereo.vote_form.default, ("v", c, u, W, None, shared, 3))
    torch.library.opcheck(torch.ops.mereo.vote_form.default, ("W", c, u, None, v, shared, 3))


@both_kinds
def test_half_precision_sums_in_float32(shared: bool) -> None:
    c, u, W, _ = tensors(shared, torch.bfloat16)
    out = combine(c, u, W, tile=1)
    expected = combine(c.float(), u.float(), W.float())
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected, rtol=0.01, atol=0.01)


def test_only_the_arguments_are_saved_for_the_gradient() -> None:
    c, u, W, _ = tensors(False)
    saved: set[int] = set()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.add(x.data_ptr()) or x, lambda x: x):
        combine(c, u, W)
    assert saved == {c.data_ptr(), u.data_ptr(), W.data_ptr()}
