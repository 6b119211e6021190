"""Bessel functions of directions: worked numbers, thirty digits, brackets, gradients of two orders, the inverse."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from directional_exact import log_bessel_i_exact, log_c, ratio, ratio_slope
from mereo.errors import UsageError
from mereo.generative.bessel import (
    concentration,
    log_bessel_i,
    log_vmf_normaliser,
    log_vmf_normaliser_and_slope,
    mean_resultant_length,
)

D = torch.float64
DIMENSIONS = [1, 2, 3, 4, 5, 8, 16, 17, 33, 64, 128, 256, 511, 512, 1024]
KAPPAS = [0.0, 1e-8, 1e-3, 0.1, 0.5, 1, 2, 5, 10, 17.9, 31.9, 32.1, 59.0, 61.0, 100, 300, 1e3, 1e4, 1e5]
FUNCTIONS = [log_vmf_normaliser, mean_resultant_length]


def kappas(dtype: torch.dtype = D) -> Tensor:
    return torch.tensor(KAPPAS, dtype=dtype)


def exact(function: Callable[[int, float], float], d: int) -> Tensor:
    return torch.tensor([function(d, k) for k in KAPPAS], dtype=D)


@pytest.mark.parametrize(
    ("d", "kappa", "log_normaliser", "length"),
    [
        (2, 2.0, -2.661870608, 0.6977746580), (3, 2.0, -3.126244439, 0.5373147207),
        (16, 10.0, -4.057299047, 0.4876216680), (64, 100.0, -8.040765439, 0.7323801941),
        (512, 1000.0, 327.7091874, 0.7765309329),
    ],
)  # fmt: skip
def test_worked_numbers(d: int, kappa: float, log_normaliser: float, length: float) -> None:
    k = torch.tensor(kappa, dtype=D)
    assert log_vmf_normaliser(d, k).item() == pytest.approx(log_normaliser, rel=3e-10)
    assert mean_resultant_length(d, k).item() == pytest.approx(length, rel=1e-10)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_thirty_digits(d: int) -> None:
    k = kappas()
    torch.testing.assert_close(log_vmf_normaliser(d, k), exact(log_c, d), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(mean_resultant_length(d, k), exact(ratio, d), rtol=1e-13, atol=0)
    both = log_vmf_normaliser_and_slope(d, k)
    torch.testing.assert_close(both[0], exact(log_c, d), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(both[1] * k, exact(ratio, d), rtol=1e-13, atol=0)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_slopes_to_ten_digits(d: int) -> None:
    k = kappas().requires_grad_()
    (falling,) = torch.autograd.grad(log_vmf_normaliser(d, k).sum(), k)
    torch.testing.assert_close(falling, -exact(ratio, d), rtol=4e-12, atol=0)
    (rising,) = torch.autograd.grad(mean_resultant_length(d, k).sum(), k)
    # For d = 1 it is 1 / cosh^2, which is rounded away next to 1 at large kappa.
    torch.testing.assert_close(rising, exact(ratio_slope, d), rtol=1e-10, atol=1e-15 if d == 1 else 0)


@pytest.mark.parametrize("order", [-0.5, 0.0, 0.5, 1.5, 7.0, 31.0, 200.0])
def test_log_bessel_i(order: float) -> None:
    x = torch.tensor([1e-3, 0.7, 5, 60, 1e3], dtype=D)
    expected = torch.tensor([log_bessel_i_exact(order, v) for v in x.tolist()], dtype=D)
    torch.testing.assert_close(log_bessel_i(order, x), expected, rtol=4e-12, atol=4e-12)
    at_zero = math.inf if order < 0 else -math.inf if order > 0 else 0.0
    assert log_bessel_i(order, torch.zeros((), dtype=D)).item() == pytest.approx(at_zero, abs=1e-14)


def test_closed_forms_of_one_and_three_dimensions() -> None:
    k = torch.tensor([0.1, 1, 7.5, 40, 700], dtype=D)
    torch.testing.assert_close(log_vmf_normaliser(1, k), -(k + (-2 * k).exp().log1p()))
    torch.testing.assert_close(mean_resultant_length(1, k), k.tanh())
    torch.testing.assert_close(
        log_vmf_normaliser(3, k), k.log() - math.log(2 * math.pi) - k - (-torch.expm1(-2 * k)).log()
    )
    torch.testing.assert_close(mean_resultant_length(3, k), 1 / k.tanh() - 1 / k, rtol=1e-12, atol=0)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_at_zero(d: int) -> None:
    k = torch.zeros(3, dtype=D, requires_grad=True)
    area = 2 * math.pi ** (d / 2) / math.gamma(d / 2) if d < 300 else None
    log_normaliser, length = log_vmf_normaliser(d, k), mean_resultant_length(d, k)
    if area is not None:
        torch.testing.assert_close(log_normaliser.exp(), torch.full((3,), 1 / area, dtype=D))
    assert (length == 0).all()
    assert (torch.autograd.grad(log_normaliser.sum(), k)[0] == 0).all()
    torch.testing.assert_close(torch.autograd.grad(length.sum(), k)[0], torch.full((3,), 1 / d, dtype=D))
    torch.testing.assert_close(log_vmf_normaliser_and_slope(d, k)[1], torch.full((3,), 1 / d, dtype=D))


@pytest.mark.parametrize("d", DIMENSIONS[1:])
def test_brackets_and_order(d: int) -> None:
    k, nu = torch.logspace(-3, 5, 400, dtype=D), d / 2 - 1
    a = mean_resultant_length(d, k)
    rounding = 1 + 1e-14
    assert (k / (nu + 0.5 + torch.hypot(k, torch.full_like(k, nu + 1.5))) <= a * rounding).all()
    assert (a <= k / (nu + 0.5 + torch.hypot(k, torch.full_like(k, nu + 0.5))) * rounding).all()
    assert (a.diff() > 0).all() and (log_vmf_normaliser(d, k).diff() < 0).all()
    assert (mean_resultant_length(d + 1, k) < a).all()


@pytest.mark.parametrize("d", DIMENSIONS)
def test_float32(d: int) -> None:
    k = kappas(torch.float32)
    expected = log_vmf_normaliser(d, k.double()), mean_resultant_length(d, k.double())
    single = log_vmf_normaliser(d, k), mean_resultant_length(d, k)
    together = log_vmf_normaliser_and_slope(d, k)
    # The normaliser at kappa 0, which is large in many dimensions, minus a growing term: both are rounded.
    scales = expected[0].abs() + abs(log_c(d, 0.0)) + 1, torch.ones_like(expected[1])
    for found, rounding in ((single, 1e-7), ((together[0], together[1] * k), 1e-6)):
        for x, y, scale in zip(found, expected, scales, strict=True):
            assert x.dtype == torch.float32
            assert ((x - y).abs() <= rounding * scale).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("d", [1, 3, 64])
def test_half_precision(d: int, dtype: torch.dtype) -> None:
    k = kappas()[:-2].to(dtype).requires_grad_()
    wide = k.detach().double().requires_grad_()
    rounding = 2 * torch.finfo(dtype).eps
    for function in FUNCTIONS:
        found, expected = function(d, k), function(d, wide)
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), expected, rtol=rounding, atol=rounding)
        torch.testing.assert_close(
            torch.autograd.grad(found.sum(), k)[0].double(), torch.autograd.grad(expected.sum(), wide)[0],
            rtol=rounding, atol=rounding,
        )  # fmt: skip
    for x, y in zip(log_vmf_normaliser_and_slope(d, k), log_vmf_normaliser_and_slope(d, wide), strict=True):
        assert x.dtype == dtype
        torch.testing.assert_close(x.double(), y, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("d", [1, 2, 3, 16, 100])
def test_gradients_of_two_orders(d: int) -> None:
    k = torch.tensor([0.0, 0.3, 2, 30, 33, 80], dtype=D, requires_grad=True)
    inside = k[1:].detach().clone().requires_grad_()
    for function in FUNCTIONS:
        # The numerical derivative also asks for kappa a little below 0, where the formulas go on.
        assert torch.autograd.gradcheck(lambda x, f=function: f(d, x), k)
    assert torch.autograd.gradcheck(lambda x: log_bessel_i(d / 2 - 1, x), inside)
    assert torch.autograd.gradgradcheck(lambda x: log_vmf_normaliser(d, x), k)


def test_a_third_derivative() -> None:
    k = torch.tensor([0.7, 2.0, 20.0, 40.0], dtype=D, requires_grad=True)

    def slope(x: Tensor) -> Tensor:
        return torch.autograd.grad(mean_resultant_length(3, x).sum(), x, create_graph=True)[0]

    # A = coth k - 1 / k, A' = 1 / k^2 - 1 / sinh^2 k, and A'' in turn.
    (found,) = torch.autograd.grad(slope(k).sum(), k)
    torch.testing.assert_close(found, -2 / k**3 + 2 * k.cosh() / k.sinh() ** 3, rtol=1e-9, atol=0)


@pytest.mark.parametrize("d", [1, 2, 3, 16, 64, 512])
def test_concentration_inverts_the_length(d: int) -> None:
    k = torch.tensor([0.0, 1e-9, 1e-3, 0.2, 1, 3, 10, 200, 5e3, 5e4], dtype=D)
    k = k[k < 15] if d == 1 else k  # beyond, tanh is 1
    r = mean_resultant_length(d, k)
    torch.testing.assert_close(concentration(d, r), k, rtol=2e-7 if d == 2 else 1e-7, atol=0)
    torch.testing.assert_close(mean_resultant_length(d, concentration(d, r)), r, rtol=1e-12, atol=0)


def test_concentration_stops_at_the_largest() -> None:
    r = torch.tensor([0.999999, 1.0])
    for d in (1, 2, 16):
        assert concentration(d, r, largest=7).tolist() == [7, 7]
        assert concentration(d, r[1:]).tolist() == [1e5]


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 1, 3), (20_000,)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    k = (3 * torch.rand(shape, dtype=D)).requires_grad_()
    for function in FUNCTIONS:
        out = function(5, k)
        assert out.shape == shape
        assert torch.autograd.grad(out.sum(), k)[0].shape == shape
        for index in [0, -1] if k.numel() else []:
            assert out.flatten()[index] == function(5, k.flatten()[index])
    assert all(x.shape == shape for x in log_vmf_normaliser_and_slope(5, k))
    assert concentration(5, k / 3).shape == shape and log_bessel_i(1.5, k).shape == shape


def test_layouts_do_not_matter() -> None:
    k = torch.rand(3, 4, 5, dtype=D)
    turned = k.transpose(0, 2)
    for function in FUNCTIONS:
        assert torch.equal(function(7, turned), function(7, k).transpose(0, 2))


@pytest.mark.long
def test_compiled() -> None:
    def both(k: Tensor) -> Tensor:
        return log_vmf_normaliser(8, k) + 2 * mean_resultant_length(8, k)

    # The compiler as far as the graph; what it makes of it is not of this room.
    compiled = torch.compile(both, backend="aot_eager", fullgraph=True)
    k = torch.linspace(0, 40, 9, dtype=D, requires_grad=True)
    torch.testing.assert_close(compiled(k), both(k))
    torch.testing.assert_close(*(torch.autograd.grad(f(k).sum(), k) for f in (compiled, both)))


@pytest.mark.parametrize("dimension", [0, -1, 2.0, "3"])
def test_wrong_dimensions(dimension: int) -> None:
    k = torch.ones(2)
    for function in (*FUNCTIONS, log_vmf_normaliser_and_slope, concentration):
        with pytest.raises(UsageError, match=f"dimension is {dimension!r}"):
            function(dimension, k)


def test_wrong_arguments() -> None:
    whole = torch.ones(2, dtype=torch.int64)
    for function in (*FUNCTIONS, log_vmf_normaliser_and_slope, concentration, log_bessel_i):
        with pytest.raises(UsageError, match=r"type torch\.int64"):
            function(3, whole)
    for order in (-0.6, math.nan):
        with pytest.raises(UsageError, match=f"order is {order}"):
            log_bessel_i(order, torch.ones(2))
    with pytest.raises(UsageError, match="x has a value of -2"):
        log_bessel_i(1, torch.tensor([1.0, -2.0]))
