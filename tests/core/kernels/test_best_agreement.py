"""The scores of cross-agreement without votes: the naive form, ties, derivatives, tiles, compilation."""

import pytest
import torch
from torch import Tensor

from mereo.core.kernels.cross_agreement import best_agreement

D = torch.float64
both_kinds = pytest.mark.parametrize("share", [True, False])


def tensors(share: bool) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Fine and coarse capsules, their transforms."""
    torch.manual_seed(0)
    B, J, K, m, d1, d2, E = 2, 3, 5, 2, 4, 4, 6
    fine, coarse, weight = torch.randn(B, K, m, d1, dtype=D), torch.randn(B, K, d2, dtype=D), torch.randn(J, K, d2, E)
    own = None if share else torch.randn(J, K, m, d1, E, dtype=D).requires_grad_()
    return fine.requires_grad_(), coarse.requires_grad_(), weight.to(D).requires_grad_(), own


def naive(fine: Tensor, coarse: Tensor, weight: Tensor, own: Tensor | None) -> Tensor:
    matrices = weight.unsqueeze(2).expand(-1, -1, fine.shape[2], -1, -1) if own is None else own
    votes = torch.einsum("bkmd,jkmde->bjkme", fine, matrices)
    return torch.einsum("bjkme,bkd,jkde->bjkm", votes, coarse, weight).amax(-1)


@both_kinds
@pytest.mark.parametrize("tile", [None, 1, 2, 9])
def test_equals_the_naive_votes(share: bool, tile: int | None) -> None:
    given = tensors(share)
    asking = [x for x in given if x is not None]
    got, expected = best_agreement(*given, tile=tile), naive(*given)
    torch.testing.assert_close(got, expected)
    gradients = [torch.autograd.grad(out.square().sum(), asking) for out in (got, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.long
@both_kinds
def test_first_and_second_derivatives(share: bool) -> None:
    given = [x for x in tensors(share) if x is not None]

    def call(fine: Tensor, coarse: Tensor, weight: Tensor, own: Tensor | None = None) -> Tensor:
        return best_agreement(fine, coarse, weight, own, tile=2)

    assert torch.autograd.gradcheck(call, given)
    assert torch.autograd.gradgradcheck(call, given)


def test_equal_members_share_the_gradient() -> None:
    fine, coarse, weight, _ = tensors(True)
    equal = fine.detach()[:, :, :1].expand(-1, -1, 2, -1).clone().requires_grad_()
    for function in (lambda: best_agreement(equal, coarse, weight, None), lambda: naive(equal, coarse, weight, None)):
        (grad,) = torch.autograd.grad(function().sum(), equal)
        torch.testing.assert_close(grad[:, :, 0], grad[:, :, 1])


@both_kinds
def test_only_capsules_and_forms_are_saved(share: bool) -> None:
    given = tensors(share)
    shapes: list[torch.Size] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: shapes.append(x.shape) or x, lambda x: x):
        best_agreement(*given)
    assert not any(shape[:3] == (2, 3, 5) for shape in shapes)


@both_kinds
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # its own, inside opcheck
def test_the_operator_keeps_its_promises(share: bool) -> None:
    fine, coarse, weight, own = tensors(share)
    forms = weight @ weight.mT if own is None else own @ weight.mT.unsqueeze(2)
    torch.library.opcheck(torch.ops.mereo.best_agreement.default, (fine, coarse, forms.detach(), 2))
