"""Paired differences of accuracies over images and seeds, with intervals that hold together.

    d_si = (image i right, network a, seed s) - (image i right, network b, seed s),   difference = mean of d_si
    variance = v_seeds / S + v_images / N,   v_seeds of the means over images, v_images of the means over seeds

The degrees of freedom are Satterthwaite's, (v_seeds / S + v_images / N)^2 / ((v_seeds / S)^2 / (S - 1) +
(v_images / N)^2 / (N - 1)), so that few seeds make wide intervals only where seeds differ. The intervals of m
comparisons have the level 1 - 0.05 / m each (Bonferroni).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

LEVEL = 0.05


@dataclass(frozen=True)
class Difference:
    """A mean difference with its interval."""

    mean: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


def paired_difference(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64], comparisons: int = 1) -> Difference:
    """The difference of two networks on the same images.

    Args:
        one, other: 1 where an image was classified correctly, else 0.
        comparisons: how many intervals are to hold together.

    Shapes: one, other (seeds, images).
    """
    apart = one - other
    seeds, images = apart.shape
    of_seeds = apart.mean(1).var(ddof=1) / seeds if seeds > 1 else 0.0
    of_images = apart.mean(0).var(ddof=1) / images
    variance = of_seeds + of_images
    middle = float(apart.mean())
    if variance == 0:
        return Difference(middle, middle, middle)
    parts = of_images**2 / (images - 1) + (of_seeds**2 / (seeds - 1) if seeds > 1 else 0.0)
    reach = stats.t.ppf(1 - LEVEL / comparisons / 2, variance**2 / parts) * variance**0.5
    return Difference(middle, float(middle - reach), float(middle + reach))
