"""Confidence intervals: of a share, and of any metrics by drawing their samples anew."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from mereo.errors import UsageError

Z95 = 1.959964
RESAMPLES = 200
"""Resamples of an interval."""


def wilson_interval(share: float, count: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's interval of a share p of n images, 95 % by default; (0, 1) for no image.

    (p + z^2 / 2n  -+  z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)

    Args:
        share: of the images classified correctly, in [0, 1].
        count: of images.
        z: quantile of the normal distribution.

    Reference: Wilson, Journal of the American Statistical Association 22, 1927.
    """
    if not 0 <= share <= 1:
        raise UsageError(f"share is {share}; it must be between 0 and 1.")
    if count < 1:
        return 0.0, 1.0
    spread = z * z / count
    centre = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / count + spread / (4 * count)) / (1 + spread)
    return max(centre - half, 0.0), min(centre + half, 1.0)


def resampled(samples: int, figures: Callable[[Tensor], Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    """The percentiles 2.5 and 97.5 of metrics over samples drawn anew with replacement; none without any sample.

    Args:
        samples: how many there are.
        figures: the metrics by name of the samples at some places, int64 (samples,).
    """
    if samples < 1:
        return {}
    generator = torch.Generator().manual_seed(0)
    draws = [figures(torch.randint(samples, (samples,), generator=generator)) for _ in range(RESAMPLES)]
    bounds = torch.tensor([0.025, 0.975], dtype=torch.float64)
    ends = {name: torch.tensor([each[name] for each in draws]).double().quantile(bounds) for name in draws[0]}
    return {name: (float(low), float(high)) for name, (low, high) in ends.items()}
