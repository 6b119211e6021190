"""Random numbers as a pure function of (seed, index): there is no state, and the order of calls does not matter.

splitmix64 (Steele, Lea, Flood, OOPSLA 2014): z = seed + n * 0x9E3779B97F4A7C15, then two multiply-xor-shift rounds.
It makes splits and evaluation pairs the same on every machine and with every version of PyTorch.
"""

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_WORD = 0xFFFFFFFFFFFFFFFF


def _mix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def uniform(seed: int, indices: Tensor, count: int) -> Tensor:
    """`count` numbers in [0, 1) for every index.

    Shapes: indices int64 (n,) -> float64 (n, count), on the CPU.
    """
    start = _mix(np.array([(seed + 1) * _GOLDEN & _WORD], dtype=np.uint64))
    places = indices.cpu().numpy().astype(np.uint64)[:, None] * np.uint64(count) + np.arange(count, dtype=np.uint64)
    steps = ((places + np.uint64(1)) * np.uint64(_GOLDEN)).astype(np.uint64)
    words = _mix(start + steps)
    return torch.from_numpy((words >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def normal(uniforms: Tensor) -> Tensor:
    """Numbers of the normal distribution from uniform ones in [0, 1), by its inverse; cut at 5 deviations.

    Shapes: any -> the same.
    """
    return math.sqrt(2) * torch.erfinv((2 * uniforms - 1).clamp(-1 + 6e-7, 1 - 6e-7))
