"""Pictures for tests that read image files."""

import numpy as np
from PIL import Image


def picture(seed: int, size: tuple[int, int] = (8, 8), channels: int = 3) -> Image.Image:
    """Noise of a size, grey with one channel and RGB with three."""
    shape = size if channels == 1 else (*size, channels)
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))
