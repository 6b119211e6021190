"""The von Mises-Fisher distribution: integrals, statistics of samples, gradients through them, refusals."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, kl_divergence

from directional_exact import log_c, ratio, ratio_slope
from mereo.errors import UsageError
from mereo.generative.von_mises_fisher import VonMisesFisher

D = torch.float64
PLACES = [
    (d, kappa)
    for d, kappa in itertools.product([1, 2, 3, 4, 16, 128], [0.0, 0.1, 2.0, 40.0, 3e3])
    if d > 1 or kappa < 10
]
COUNT = 20_000


def direction(d: int, seed: int = 0) -> Tensor:
    x = torch.randn(d, dtype=D, generator=torch.Generator().manual_seed(seed))
    return x / x.norm()


def make(d: int, kappa: float, seed: int = 0) -> VonMisesFisher:
    return VonMisesFisher(direction(d, seed), kappa)


def sphere(d: int) -> tuple[Tensor, Tensor]:
    """Points of the unit sphere, and weights with which sums become integrals over it, for d of 1, 2 and 3."""
    if d == 1:
        return torch.tensor([[1.0], [-1.0]], dtype=D), torch.ones(2, dtype=D)
    turn = torch.arange(400, dtype=D) * (2 * math.pi / 400)
    circle = torch.stack((turn.cos(), turn.sin()), -1)
    if d == 2:
        return circle, torch.full((400,), 2 * math.pi / 400, dtype=D)
    heights, weights = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(200))
    wide = (1 - heights.square()).sqrt()[:, None, None] * circle
    points = torch.cat((wide, heights[:, None, None].expand(200, 400, 1)), -1).reshape(-1, 3)
    return points, (weights[:, None] * (2 * math.pi / 400)).expand(200, 400).reshape(-1)


def within(values: Tensor, expected: Any, errors: float = 4) -> None:
    """The mean of values over their first axis is within a few standard errors of the expected value."""
    standard = values.std(0) / len(values) ** 0.5 + 1e-12
    assert ((values.mean(0) - expected).abs() <= errors * standard).all()


@pytest.mark.parametrize("kappa", [0.0, 1.5, 30.0])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_integrals(d: int, kappa: float) -> None:
    own, other = make(d, kappa), make(d, 2.5, seed=1)
    points, weights = sphere(d)
    log_p = own.log_prob(points)
    weighted = weights * log_p.exp()
    assert weighted.sum().item() == pytest.approx(1, abs=1e-10)
    torch.testing.assert_close(weighted @ points, own.mean, atol=1e-10, rtol=0)
    torch.testing.assert_close(weighted @ points.square() - own.mean.square(), own.variance, atol=1e-10, rtol=0)
    assert -(weighted @ log_p).item() == pytest.approx(own.entropy().item(), abs=1e-9)
    apart = weighted @ (log_p - other.log_prob(points))
    assert apart.item() == pytest.approx(kl_divergence(own, other).item(), abs=1e-9)


def test_worked_entropy() -> None:
    assert make(2, 2.0).entropy().item() == pytest.approx(1.266321292, abs=1e-9)


def test_divergence_of_itself_is_zero_and_else_above() -> None:
    own = VonMisesFisher(torch.stack([direction(5, i) for i in range(3)]), torch.tensor([0.0, 2, 70], dtype=D))
    torch.testing.assert_close(kl_divergence(own, own), torch.zeros(3, dtype=D), atol=1e-12, rtol=0)
    for seed, kappa in itertools.product(range(3, 6), (0.1, 1.0, 300.0)):
        assert (kl_divergence(own, make(5, kappa, seed)) > 0).all()


@pytest.mark.parametrize(("d", "kappa"), PLACES)
def test_statistics_of_samples(d: int, kappa: float) -> None:
    own = make(d, kappa)
    x = own.sample((COUNT,))
    torch.testing.assert_close(x.norm(dim=-1), torch.ones(COUNT, dtype=D))
    cosine = x @ own.mean_direction
    a, spread = ratio(d, kappa), ratio_slope(d, kappa)
    within(cosine, a)
    within((cosine - a).square(), spread)
    within(x, own.mean)
    within((x - own.mean).square(), own.variance)
    assert own.variance.sum().item() == pytest.approx(1 - a**2, rel=1e-6)


@pytest.mark.parametrize(("d", "kappa"), [(d, k) for d, k in PLACES if d > 1 and k])
def test_angles_have_their_distribution_function(d: int, kappa: float) -> None:
    """Kolmogorov and Smirnov's distance to the integral of exp(kappa cos a) sin(a)^(d - 2): in 99.9 % below 1.95."""
    own = make(d, kappa)
    angle = (own.sample((COUNT,)) @ own.mean_direction).clamp(-1, 1).acos().sort().values
    mode = 2 * kappa / (d - 2 + math.hypot(2 * kappa, d - 2))
    width = 10 / math.sqrt(max(kappa * mode, d - 2, 1))
    grid = torch.linspace(max(0, math.acos(mode) - width), min(math.pi, math.acos(mode) + width), 40_001, dtype=D)
    log_density = kappa * (grid.cos() - mode) + (d - 2) * grid.sin().clamp(min=1e-300).log()
    density = (log_density - log_density.max()).exp()
    below = torch.cat((torch.zeros(1, dtype=D), ((density[1:] + density[:-1]) / 2).cumsum(0)))
    function = torch.from_numpy(np.interp(angle.numpy(), grid.numpy(), (below / below[-1]).numpy()))
    steps = torch.arange(COUNT + 1, dtype=D) / COUNT
    distance = torch.maximum((function - steps[:-1]).max(), (steps[1:] - function).max())
    assert distance < 1.95 / COUNT**0.5


def test_kappa_zero_is_uniform_and_a_large_one_nearly_a_point() -> None:
    x = make(3, 0.0).sample((COUNT,))
    within(x, 0)
    within(x[:, :, None] * x[:, None, :], torch.eye(3, dtype=D) / 3)
    sure = make(16, 1e8)
    torch.testing.assert_close(sure.sample((100,)), sure.mode.expand(100, -1), atol=2e-3, rtol=0)


def test_one_dimension_is_two_points() -> None:
    assert VonMisesFisher(torch.ones(1), 1.0).sample().abs() == 1
    assert VonMisesFisher(-torch.ones(1), 50.0).sample((9,)).tolist() == [[-1.0]] * 9


def test_gradients_of_the_density() -> None:
    x = direction(4)
    k = torch.tensor([0.0, 2, 30], dtype=D, requires_grad=True)

    def all_of(kappa: Tensor) -> tuple[Tensor, ...]:
        own = VonMisesFisher(direction(4, 9), kappa, validate_args=False)
        return own.log_prob(x), own.entropy(), own.mean, own.variance, kl_divergence(own, make(4, 1.0))

    assert torch.autograd.gradcheck(lambda kappa: all_of(kappa)[0], k)
    assert torch.autograd.gradcheck(lambda kappa: all_of(kappa)[1:], k[1:].detach().requires_grad_())


def test_broadcasting_and_expanding() -> None:
    means = torch.stack([direction(3, i) for i in range(4)])
    kappa = torch.tensor([[1.0], [5.0]], dtype=D)
    own = VonMisesFisher(means, kappa)
    assert own.batch_shape == (2, 4) and own.event_shape == (3,)
    assert own.sample((5, 6)).shape == (5, 6, 2, 4, 3) and own.sample().shape == (2, 4, 3)
    assert own.mean.shape == own.variance.shape == own.mode.shape == own.stddev.shape == (2, 4, 3)
    x = direction(3, 7)
    by_hand = [[log_c(3, k.item()) + k.item() * (x @ m).item() for m in means] for k in kappa[:, 0]]
    torch.testing.assert_close(own.log_prob(x), torch.tensor(by_hand, dtype=D))
    larger = own.expand((7, 2, 4))
    assert larger.batch_shape == (7, 2, 4) and larger.sample().shape == (7, 2, 4, 3)
    torch.testing.assert_close(larger.log_prob(x)[3], own.log_prob(x))
    with pytest.raises(UsageError, match="value has a row of length 2"):
        larger.log_prob(2 * x)
    assert Independent(own, 1).log_prob(x).shape == (2,)
    assert repr(own) == "VonMisesFisher(dimension=3, batch_shape=(2, 4))"


def test_empty_batch() -> None:
    own = VonMisesFisher(torch.ones(0, 3), torch.ones(0))
    assert own.sample((2,)).shape == (2, 0, 3) and own.log_prob(direction(3).float()).shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("d", "kappa"), [(2, 0.0), (3, 1e-40), (3, 40.0), (16, 1e4), (1, 2.0)])
def test_types(d: int, kappa: float, dtype: torch.dtype) -> None:
    own, wide = VonMisesFisher(direction(d).to(dtype), kappa), make(d, float(torch.tensor(kappa, dtype=dtype)))
    x = own.sample((50,))
    assert x.dtype == dtype
    rounding = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(x.norm(dim=-1), torch.ones(50, dtype=dtype), rtol=rounding, atol=0)
    for name in ("mean", "variance", "mean_resultant_length"):
        found, expected = getattr(own, name), getattr(wide, name)
        assert found.dtype == dtype
        torch.testing.assert_close(found.to(D), expected, rtol=40 * rounding, atol=1e-12)
    for found, expected in ((own.entropy(), wide.entropy()), (own.log_prob(x), wide.log_prob(x.to(D)))):
        assert found.dtype == dtype
        torch.testing.assert_close(found.to(D), expected, rtol=rounding, atol=rounding * (1 + kappa))


def test_draws_along_the_mean_do_not_spoil_lengths() -> None:
    """In the plane a normal vector is along the mean often enough, so that what is left of it is mostly rounding."""
    own = VonMisesFisher(torch.tensor([0.6, 0.8]), 1.0)
    assert ((own.sample((300_000,)).norm(dim=-1) - 1).abs() < 1e-6).all()


def test_seeds_repeat() -> None:
    own, drawn = make(5, 3.0), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(own.sample((4,)))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_unchecked_arguments() -> None:
    own = VonMisesFisher(torch.tensor([2.0, 0.0]), -1.0, validate_args=False)
    assert own.log_prob(torch.tensor([3.0, 0.0])).isfinite()


@pytest.mark.parametrize(
    ("mean", "kappa", "message"),
    [
        (torch.eye(3)[0], -1.0, r"kappa has a value of -1\.0"),
        (torch.eye(3)[0], math.nan, "kappa has a value of nan"),
        (torch.eye(3)[0], math.inf, "kappa has a value of inf"),
        (torch.eye(3), torch.tensor([1.0, 2.0, -3.0]), r"kappa has a value of -3\.0"),
        (torch.ones(3), 1.0, r"mean has a row of length 1\.73205"),
        (torch.zeros(3), 1.0, "mean has a row of length 0"),
        (torch.full((3,), math.nan), 1.0, "mean has a row of length nan"),
        (torch.tensor(1.0), 1.0, r"mean has shape \(\)"),
        (torch.ones(2, 0), 1.0, r"mean has shape \(2, 0\)"),
        (torch.eye(3, dtype=torch.int64)[0], 1.0, r"mean has type torch\.int64"),
        (torch.eye(3), torch.ones(2), r"kappa has shape \(2,\)"),
    ],
)
def test_wrong_arguments(mean: Tensor, kappa: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        VonMisesFisher(mean, kappa)


def test_wrong_values() -> None:
    own = make(3, 1.0)
    for value, message in [
        (torch.ones(3, dtype=D), "value has a row of length 1.73"), (torch.full((3,), math.nan, dtype=D), "length nan"),
        (direction(4), r"value has shape \(4,\)"), (direction(1), r"value has shape \(1,\)"),
        (torch.tensor(1.0, dtype=D), r"value has shape \(\)"),
    ]:  # fmt: skip
        with pytest.raises(UsageError, match=message):
            own.log_prob(value)
    with pytest.raises(UsageError, match=r"\(3, 3\).*\(2, 3\)"):
        own.expand((2,)).log_prob(torch.eye(3, dtype=D))
    with pytest.raises(UsageError, match="dimensions 3 and 4"):
        kl_divergence(own, make(4, 1.0))
