"""The digamma function, also for exporters that lack it."""

import torch
from torch import Tensor

SHIFT = 6
"""How far arguments are shifted up before the asymptotic series."""
SERIES = (-1 / 12, 1 / 120, -1 / 252, 1 / 240, -1 / 132, 691 / 32760, -1 / 12)
"""Coefficients of x^-2, x^-4, ...: the Bernoulli numbers -B_2n / (2 n)."""


def digamma(x: Tensor) -> Tensor:
    """psi(x), the derivative of log Gamma(x), for x above 0: any shape -> the same."""
    if torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export():
        return digamma_series(x)
    return torch.digamma(x)


def digamma_series(x: Tensor) -> Tensor:
    """psi(x) = psi(x + n) - sum_{k < n} 1 / (x + k), the first by its asymptotic series; plain operations.

    Shapes: any -> the same.

    Reference: Abramowitz, Stegun 1964, 6.3.6 and 6.3.18.
    """
    below = sum((1 / (x + k) for k in range(1, SHIFT)), 1 / x)
    y = x + SHIFT
    inverse, tail = 1 / y.square(), torch.zeros_like(y)
    for factor in reversed(SERIES):
        tail = inverse * (factor + tail)
    return y.log() - 0.5 / y + tail - below
