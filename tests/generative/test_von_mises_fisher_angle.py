"""The angle to the mean: its derivative against the distribution function by quadrature, and the ends of its range."""

import math

import pytest
import torch

from directional_exact import MP
from mereo.errors import MereoError
from mereo.generative import von_mises_fisher_angle
from mereo.generative.von_mises_fisher_angle import angle_slope, draw_angle

D = torch.float64


def slope_by_quadrature(d: int, kappa: float, angle: float) -> float:
    """-(dF / dkappa) / (dF / dangle), F the distribution function as it is defined, in 16 pieces."""
    places = [angle * i / 8 for i in range(9)] + [angle + (MP.pi - angle) * i / 8 for i in range(1, 9)]

    def integrate(function, upper):
        # The factor keeps exp in range; it cancels.
        return MP.quad(
            lambda x: function(x) * MP.exp(kappa * (MP.cos(x) - 1)) * MP.sin(x) ** (d - 2),
            [x for x in places if x <= upper],
        )

    below, whole = (integrate(lambda x: 1, upper) for upper in (angle, MP.pi))
    below_cos, whole_cos = (integrate(MP.cos, upper) for upper in (angle, MP.pi))
    by_kappa = below_cos / whole - below * whole_cos / whole**2
    density = MP.exp(kappa * (MP.cos(angle) - 1)) * MP.sin(angle) ** (d - 2) / whole
    return float(-by_kappa / density)


@pytest.mark.parametrize(
    ("d", "kappa", "angles"),
    [
        (2, 0.0, (0.3, 1.5, 3.0)), (2, 4.0, (0.1, 0.5, 1.5)), (2, 200.0, (0.01, 0.1, 0.25)),
        (3, 0.0, (0.3, 1.5, 3.0)), (3, 4.0, (0.1, 0.5, 2.0)), (5, 10.0, (0.2, 0.6, 1.3)),
        (16, 0.5, (1.0, 1.5, 2.2)), (16, 60.0, (0.3, 0.5, 0.8)), (128, 30.0, (1.2, 1.35, 1.6)),
    ],
)  # fmt: skip
def test_slope(d: int, kappa: float, angles: tuple[float, ...]) -> None:
    found = angle_slope(torch.full((3,), kappa, dtype=D), torch.tensor(angles, dtype=D), d)
    expected = torch.tensor([slope_by_quadrature(d, kappa, a) for a in angles], dtype=D)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=0)


@pytest.mark.parametrize("d", [2, 3, 16, 1024])
def test_ends_of_the_range(d: int) -> None:
    for kappa in (0.0, 1e-9, 1.0, 1e6):
        k = torch.full((3000,), kappa)
        angle = draw_angle(k, d)
        assert angle.dtype == D and (angle >= 0).all() and (angle <= math.pi).all()
        assert angle_slope(k, angle, d).isfinite().all()
    ends = torch.tensor([0.0, 1e-12, math.pi - 1e-12, math.pi], dtype=D)
    for kappa in (0.0, 1.0, 1e6):
        assert angle_slope(torch.full((4,), kappa), ends, d).isfinite().all()


def test_shapes() -> None:
    assert draw_angle(torch.ones(2, 0, 3), 5).shape == (2, 0, 3)
    assert draw_angle(torch.ones(()), 5).shape == ()
    assert angle_slope(torch.ones(2, 0), torch.ones(2, 0, dtype=D), 4).shape == (2, 0)


def test_an_endless_rejection_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(von_mises_fisher_angle, "_MOST_PROPOSALS", 1)
    with pytest.raises(MereoError, match="dimension 4 did not end after 1 proposals"):
        draw_angle(torch.full((1000,), 2.0), 4)
