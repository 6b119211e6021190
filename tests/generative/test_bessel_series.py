"""g and q: power series summed by loops, edges, threads and layouts."""

import math

import pytest
import torch

from mereo.generative.bessel import _growth_and_ratio, log_vmf_normaliser_and_slope

D = torch.float64
BOTH = pytest.mark.parametrize("dtype", [torch.float32, D], ids=["float32", "float64"])
ROUNDING = {torch.float32: 1e-6, D: 1e-13}


def by_power_series(order: float, k: float) -> tuple[float, float]:
    """g and q from I_nu(k) = (k/2)^nu / Gamma(nu + 1) sum_m (k^2/4)^m / (m! (nu + 1) ... (nu + m))."""

    def total(nu: float) -> float:
        terms = [1.0]
        while terms[-1] > 1e-20 * terms[0] or len(terms) < 3 * k:
            m = len(terms)
            terms.append(terms[-1] * k * k / (4 * m * (nu + m)))
        return math.fsum(terms)

    return math.log(total(order)), total(order + 1) / total(order)


@BOTH
@pytest.mark.parametrize("order", [-0.5, 0.0, 0.5, 3.0, 7.0, 17.5, 18.0, 31.0, 255.0])
def test_power_series(order: float, dtype: torch.dtype) -> None:
    k = torch.tensor([0, 1e-12, 1e-4, 0.3, 0.999, 1, 1.001, 4, 17, 32, 60], dtype=dtype)
    g, q = _growth_and_ratio(order, k)
    exact = torch.tensor([by_power_series(order, x) for x in k.tolist()], dtype=D)
    assert g.dtype == q.dtype == dtype
    assert ((g - exact[:, 0]).abs() <= ROUNDING[dtype] * (1 + exact[:, 0])).all()
    assert ((q - exact[:, 1]).abs() <= ROUNDING[dtype] * exact[:, 1]).all()


@BOTH
@pytest.mark.parametrize("count", [0, 1, 7, 64, 127, 129, 1025])
def test_any_number_of_values_each_by_itself(count: int, dtype: torch.dtype) -> None:
    k = (30 * torch.rand(count, dtype=D)).to(dtype)
    g, q = _growth_and_ratio(2.5, k)
    assert g.shape == q.shape == (count,)
    for i in range(0, count, 31):
        alone = _growth_and_ratio(2.5, k[i : i + 1].clone())
        assert g[i] == alone[0] and q[i] == alone[1]


@BOTH
def test_several_threads_give_the_same(dtype: torch.dtype) -> None:
    k = (50 * torch.rand(300_001, dtype=D)).to(dtype)
    one = _growth_and_ratio(7.0, k)
    torch.set_num_threads(3)
    try:
        assert all(map(torch.equal, _growth_and_ratio(7.0, k), one))
    finally:
        torch.set_num_threads(1)


@BOTH
@pytest.mark.parametrize("order", [-0.5, 0.0, 7.0, 40.0])
def test_huge_and_missing_values(order: float, dtype: torch.dtype) -> None:
    k = torch.tensor([1e6, 1e9, 1e17, 1e19, 1e30, 1e38], dtype=dtype)
    g, q = _growth_and_ratio(order, k)
    # I_nu(k) is exp(k) / sqrt(2 pi k) there, and its ratio is 1 - (nu + 1/2) / k.
    expected = k - (order + 0.5) * k.log() + math.lgamma(order + 1) + order * math.log(2) - math.log(2 * math.pi) / 2
    torch.testing.assert_close(g, expected, rtol=5 * ROUNDING[dtype], atol=(order + 1) ** 2 * 1e-6)
    torch.testing.assert_close(q * k / (2 * (order + 1)), 1 - (order + 0.5) / k, rtol=5 * ROUNDING[dtype], atol=1e-9)
    g, q = _growth_and_ratio(order, torch.tensor([math.inf, math.nan], dtype=dtype))
    assert g[0] == math.inf and q[0] == 0 and g[1].isnan() and q[1].isnan()


@BOTH
def test_layouts_do_not_matter(dtype: torch.dtype) -> None:
    k = torch.rand(40, dtype=dtype)
    assert all(map(torch.equal, _growth_and_ratio(1.0, k[::3]), _growth_and_ratio(1.0, k[::3].clone())))


def test_compiled() -> None:
    torch.compiler.reset()
    whole = torch.compile(lambda k: log_vmf_normaliser_and_slope(8, k), backend="aot_eager", fullgraph=True)
    k = torch.rand(3, 4)
    for x, y in zip(whole(k), log_vmf_normaliser_and_slope(8, k), strict=True):
        torch.testing.assert_close(x, y)
