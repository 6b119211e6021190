"""Linear maps of tokens, executed by PyTorch's matrix product or, where that is faster, as a convolution of size one.

PyTorch's wheels multiply float32 matrices with MKL, which uses half the width of the vector units of processors that
are not Intel's; its convolutions go through oneDNN, which uses all of it. A convolution of kernel 1 on maps in
channels-last memory is the same sum, without a copy: twice as fast on an AMD EPYC with AVX-512, forward and backward.
"""

from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core.kernels.transforms import steps_aside

_LEAST = 2**15
"""Numbers in the input below which the two take the same time."""


@cache
def _convolutions_are_faster() -> bool:
    """Whether this processor has AVX-512 and is not Intel's."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkldnn.is_available():
        return False
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text()[:4096]
    except (OSError, UnicodeDecodeError):
        return False


_FASTER = _convolutions_are_faster()


def autocasts(x: Tensor) -> bool:
    """Whether layers would convert this tensor under `torch.autocast`."""
    return x.device.type != "meta" and torch.is_autocast_enabled(x.device.type)


def _can_convolve(x: Tensor, weight: Tensor) -> bool:
    if not _FASTER or x.device.type != "cpu" or x.dtype != torch.float32 or weight.dtype != torch.float32:
        return False
    if autocasts(x) or x.dim() < 2:
        return False
    if torch.compiler.is_compiling():
        # Inductor copies maps of one row, whose layout is ambiguous, so that tokens must come as maps.
        return not torch.compiler.is_exporting() and x.dim() == 4
    return x.numel() >= _LEAST and steps_aside() is None


def _cells(x: Tensor) -> Tensor:
    """Tokens as maps: (..., inputs) -> (images, rows, columns, inputs)."""
    if torch.compiler.is_compiling():
        return x
    # One map of one row is fastest; one thread takes oneDNN from 16 maps on.
    count = x.numel() // x.shape[-1]
    images = 1
    if torch.get_num_threads() == 1:
        images = next((number for number in range(16, 65) if count % number == 0), 1)
    return x.reshape(images, 1, -1, x.shape[-1])


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b, as `torch.nn.functional.linear`, to rounding.

    Shapes: x (..., inputs), weight (outputs, inputs), bias (outputs) -> (..., outputs).
    """
    if not _can_convolve(x, weight):
        return F.linear(x, weight, bias)
    out = F.conv2d(_cells(x).permute(0, 3, 1, 2), weight[:, :, None, None], bias).permute(0, 2, 3, 1)
    return out.reshape(*x.shape[:-1], len(weight))


class Linear(nn.Linear):
    """x W^T + b, as `torch.nn.Linear`, by the faster of two implementations: see `linear`.

    Shapes: (..., inputs) -> (..., outputs).
    """

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)
