"""The confidence interval of a share."""

import math

from mereo.errors import UsageError

Z95 = 1.959964


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
