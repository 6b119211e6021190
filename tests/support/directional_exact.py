"""Bessel functions and von Mises-Fisher normalisers to thirty digits, as they are defined."""

from functools import cache

import mpmath

MP = mpmath.MPContext()  # of its own: other libraries compute with the shared one
MP.dps = 30


@cache
def log_bessel_i_exact(order: float, x: float) -> float:
    return float(MP.log(MP.besseli(order, x)))


@cache
def log_c(d: int, kappa: float) -> float:
    """log C_d(kappa)."""
    half = MP.mpf(d) / 2
    if kappa == 0:
        return float(MP.loggamma(half) - MP.log(2) - half * MP.log(MP.pi))
    k = MP.mpf(kappa)
    return float((half - 1) * MP.log(k) - half * MP.log(2 * MP.pi) - MP.log(MP.besseli(half - 1, k)))


@cache
def ratio(d: int, kappa: float) -> float:
    """A_d(kappa)."""
    half = MP.mpf(d) / 2
    return float(MP.besseli(half, kappa) / MP.besseli(half - 1, kappa)) if kappa else 0.0


@cache
def ratio_slope(d: int, kappa: float) -> float:
    """A_d'(kappa) = 1 - A^2 - (d - 1) A / kappa, with digits for the difference to lose."""
    if kappa == 0:
        return 1 / d
    with MP.workdps(60):
        half = MP.mpf(d) / 2
        a = MP.besseli(half, kappa) / MP.besseli(half - 1, kappa)
        return float(1 - a**2 - (d - 1) * a / MP.mpf(kappa))


def slope_over_kappa(d: int, kappa: float) -> float:
    """A_d(kappa) / kappa, 1 / d at 0."""
    return ratio(d, kappa) / kappa if kappa else 1 / d
