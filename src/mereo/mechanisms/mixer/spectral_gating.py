"""Spectral gating: every channel is multiplied by a learned complex filter in the frequency domain of the map.

Source: Patro, Namboodiri, Agneeswaran 2023, arXiv:2304.06446 (SpectFormer), section 3.1; the filter of Rao, Zhao, Zhu,
    Lu, Zhou 2021, arXiv:2107.00645 (GFNet), eq. 5.
Cost: O(N log N) per channel by Fourier transforms, 2 N (H + W) multiply-adds per channel by matrices (N = H W).
"""

import math
from contextlib import nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import mechanism
from mereo.core.kernels.transforms import fallback_reason
from mereo.core.shapes import image_size
from mereo.errors import UsageError, check_positive

MATRICES_UP_TO = 256
"""Cells of a map up to which transforms as products with small matrices are faster than fast Fourier transforms."""


def dft_matrices(rows: int, columns: int, like: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Orthonormal real transforms of a map as matrices: across and down, and their inverses up and back.

    Complex numbers are two rows, real parts first, but between cells of one column real and imaginary parts alternate:
    across (2 K, columns), down (2 rows, 2 rows), up (2 rows, 2 rows), back (columns, 2 K), with K = columns // 2 + 1.
    """
    device = torch.device("cpu") if like.device.type == "mps" else like.device  # which has no float64
    wide = partial(torch.arange, dtype=torch.float64, device=device)
    half = columns // 2 + 1
    angles = torch.outer(wide(half), wide(columns)) * (2 * math.pi / columns)
    cosines, sines = angles.cos() / columns**0.5, angles.sin() / columns**0.5
    across = torch.cat((cosines, -sines))
    # All frequencies but the first, and the last of an even side, stand for a conjugate pair.
    pairs = 1 + ((wide(half) > 0) & (2 * wide(half) != columns)).double()
    back = torch.cat((cosines.T * pairs, -sines.T * pairs), 1)
    angles = torch.outer(wide(rows), wide(rows)) * (2 * math.pi / rows)
    cosines, sines = angles.cos() / rows**0.5, angles.sin() / rows**0.5
    down = torch.stack((torch.stack((cosines, sines), -1), torch.stack((-sines, cosines), -1))).reshape(2 * rows, -1)
    made = (across, down, down.T, back)
    return tuple(matrix.to(like.device, like.dtype).contiguous() for matrix in made)  # type: ignore[return-value]


def _by_matrices(maps: Tensor, gains: Tensor, tables: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
    batch, rows, columns, channels = maps.shape
    across, down, up, back = tables
    half = columns // 2 + 1
    lines = (across @ maps).reshape(batch, 2 * rows, half * channels)
    real, imaginary = (down @ lines).reshape(batch, 2, rows, half, channels).unbind(1)
    re, im = gains.movedim(-1, 0).contiguous()
    filtered = torch.stack((real * re - imaginary * im, real * im + imaginary * re), 1)
    lines = (up @ filtered.reshape(batch, 2 * rows, half * channels)).reshape(batch, rows, 2 * half, channels)
    return back @ lines


def _by_transforms(maps: Tensor, gains: Tensor) -> Tensor:
    if not torch.compiler.is_compiling() and not maps.numel():
        return maps  # MKL has no transform of an empty batch
    frequencies = torch.fft.rfft2(maps, dim=(1, 2), norm="ortho") * torch.view_as_complex(gains.contiguous())
    return torch.fft.irfft2(frequencies, s=maps.shape[1:3], dim=(1, 2), norm="ortho")


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return SpectralGating(5, (3, 4)), (torch.randn(2, 12, 5),)


@mechanism(
    "spectral_gating",
    family="mixer",
    source="arXiv:2304.06446",
    records="nothing",
    interface="tokens",
    example=_example,
)
class SpectralGating(nn.Module):
    """Multiply the frequencies of each channel by a learned complex filter.

    out = irfft2(rfft2(x) * F), both orthonormal: a circular convolution of every channel with irfft2(F)

    Args:
        dim: channels.
        size: rows and columns of the map that the filter is made for.

    Shapes: tokens (batch, rows * columns, dim), row by row, and `size`, where the map has another one -> the same.

    Deviates: for maps of another size the filter is interpolated over relative frequencies, as GFNet does for its
        weights; the authors' code refuses them.

    Reference: arXiv:2304.06446, section 3.1; the start of the filter, 0.02 times normal, is of the authors' code.
    """

    def __init__(self, dim: int, size: int | tuple[int, int]) -> None:
        super().__init__()
        check_positive(dim=dim)
        self.size = image_size(size)
        rows, columns = self.size
        self.filter = nn.Parameter(0.02 * torch.randn(rows, columns // 2 + 1, dim, 2))
        self._tables: dict[object, tuple[Tensor, Tensor, Tensor, Tensor]] = {}

    def gains(self, size: tuple[int, int]) -> Tensor:
        """The filter for a map of `size`, at least in float32: (rows, columns // 2 + 1, dim, 2)."""
        wide = self.filter.float() if self.filter.dtype in (torch.float16, torch.bfloat16) else self.filter
        if size == self.size:
            return wide
        parts = wide.flatten(2).permute(2, 0, 1).unsqueeze(0)
        parts = F.interpolate(parts, size=(size[0], size[1] // 2 + 1), mode="bilinear", align_corners=True)
        return parts[0].permute(1, 2, 0).unflatten(2, (-1, 2))

    def spectrum(self) -> Tensor:
        """Magnitudes of the filter with the frequency zero in the middle: (dim, rows, columns)."""
        columns = self.size[1]
        half = torch.linalg.vector_norm(self.gains(self.size), dim=-1).permute(2, 0, 1)
        # The other half are the conjugates, at the opposite frequencies.
        mirrored = half[..., 1 : columns - half.shape[2] + 1].flip(1, 2).roll(1, 1)
        return torch.fft.fftshift(torch.cat((half, mirrored), 2), dim=(1, 2))

    def tables(self, size: tuple[int, int], like: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """`dft_matrices`, made once for each size."""
        if torch.compiler.is_compiling():
            return dft_matrices(*size, like)
        key = (size, like.dtype, like.device)
        if key not in self._tables:
            with torch.inference_mode(False), torch.no_grad():
                self._tables[key] = dft_matrices(*size, like)
        return self._tables[key]

    def forward(self, tokens: Tensor, size: tuple[int, int] | None = None) -> Tensor:
        size = self.size if size is None else size
        if tokens.dim() != 3 or tokens.shape[1] != size[0] * size[1]:
            raise UsageError(
                f"tokens are {tuple(tokens.shape)}, and the map is {size[0]} x {size[1]}; give (batch, {size[0]} * "
                f"{size[1]}, dim), or the size that they have."
            )
        wide = tokens.float() if tokens.dtype in (torch.float16, torch.bfloat16) else tokens
        maps, gains = wide.unflatten(1, size), self.gains(size)
        kind = tokens.device.type
        with torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext():
            # Other programs that read an exported model do not support complex numbers.
            if size[0] * size[1] <= MATRICES_UP_TO or fallback_reason():
                out = _by_matrices(maps, gains, self.tables(size, maps))
            else:
                out = _by_transforms(maps, gains)
        return out.flatten(1, 2).to(tokens.dtype)

    def extra_repr(self) -> str:
        return f"{self.filter.shape[2]}, {self.size}"
