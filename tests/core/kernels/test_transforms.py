"""Every derivative of what our operators compute: forward mode, `torch.func`, nested; never dropped without a word."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

from mereo.core import DenseVotes, SharedVotes
from mereo.errors import UsageError
from mereo.generative import bessel
from mereo.mechanisms.routing import CrossAgreementRouting, DynamicRouting

B, S, R, D, E = 2, 4, 3, 3, 2
Function = Callable[[Tensor], Tensor]


def functions() -> dict[str, tuple[Function, Tensor]]:
    """Each function of one tensor in float64, and where its derivatives are taken."""
    torch.manual_seed(0)
    u, W, shared = torch.randn(B, S, D), torch.randn(R, S, D, E), torch.randn(R, D, E)
    c, v, k = torch.rand(B, 1, R, S), torch.randn(B, 1, R, E), torch.rand(5) * 3 + 0.1
    u, W, shared, c, v, k = (x.double() for x in (u, W, shared, c, v, k))
    routing, crossed = DynamicRouting(S, R, D, E).double(), CrossAgreementRouting(4, 2, R, D, D, E).double().eval()
    return {
        "combine of senders": (lambda x: DenseVotes(x, W).combine(c), u),
        "combine of couplings": (lambda x: DenseVotes(u, W).combine(x), c),
        "agree of weights": (lambda x: DenseVotes(u, x).agree(v), W),
        "agree of receivers": (lambda x: DenseVotes(u, W).agree(x), v),
        "shared combine": (lambda x: SharedVotes(u, x).combine(c), shared),
        "dynamic routing": (routing, u),
        "cross-agreement": (lambda x: crossed(x, u[:, :2] + 0.1), u),
        "von Mises-Fisher normaliser": (lambda x: bessel.log_vmf_normaliser(5, x), k),
        "mean resultant length": (lambda x: bessel.mean_resultant_length(5, x), k),
        "Bessel": (lambda x: bessel.log_bessel_i(1.5, x), k),
    }


# PyTorch compiles its own decompositions for forward mode when the first dual number is made.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")
CASES = sorted(functions())
every_case = pytest.mark.parametrize("case", CASES)


def differences(function: Function, x: Tensor, direction: Tensor, step: float = 1e-5) -> Tensor:
    with torch.no_grad():
        return (function(x + step * direction) - function(x - step * direction)) / (2 * step)


@every_case
def test_forward_mode_equals_differences(case: str) -> None:
    function, x = functions()[case]
    direction = torch.randn_like(x)
    expected = differences(function, x, direction)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(function(forward_ad.make_dual(x, direction))).tangent
    torch.testing.assert_close(tangent, expected, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(jvp(function, (x,), (direction,))[1], expected, rtol=1e-6, atol=1e-7)


@every_case
def test_transforms_equal_reverse_mode(case: str) -> None:
    function, x = functions()[case]
    expected = torch.autograd.functional.jacobian(function, x)
    assert (expected != 0).any()
    for transform in (jacfwd, jacrev):
        torch.testing.assert_close(transform(function)(x), expected)

    def total(x: Tensor) -> Tensor:
        return function(x).sin().sum()

    leaf = x.clone().requires_grad_()
    torch.testing.assert_close(grad(total)(x), torch.autograd.grad(total(leaf), leaf)[0])
    together = vmap(function)(torch.stack((x, x.flip(0))))
    torch.testing.assert_close(together, torch.stack((function(x), function(x.flip(0)))))


@every_case
def test_second_derivatives_in_every_order(case: str) -> None:
    function, x = functions()[case]

    def total(x: Tensor) -> Tensor:
        return function(x).square().sum()

    expected = torch.autograd.functional.hessian(total, x)
    for second in (hessian(total), jacrev(jacrev(total)), jacrev(jacfwd(total))):
        torch.testing.assert_close(second(x), expected, rtol=1e-6, atol=1e-8)


@every_case
def test_forward_over_reverse_by_dual_numbers(case: str) -> None:
    function, x = functions()[case]
    direction = torch.randn_like(x)
    expected = torch.autograd.functional.hvp(lambda x: function(x).square().sum(), x, direction)[1]
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.clone().requires_grad_(), direction)
        (gradient,) = torch.autograd.grad(function(dual).square().sum(), dual)
        tangent = forward_ad.unpack_dual(gradient).tangent
    torch.testing.assert_close(tangent, expected, rtol=1e-6, atol=1e-8)


@every_case
def test_forward_over_forward_is_right_or_refused(case: str) -> None:
    function, x = functions()[case]

    def total(x: Tensor) -> Tensor:
        return function(x).square().sum()

    try:
        second = jacfwd(jacfwd(total))(x)
    except UsageError as error:
        assert "reverse mode" in str(error)
    else:
        torch.testing.assert_close(second, torch.autograd.functional.hessian(total, x), rtol=1e-6, atol=1e-8)
