"""Orthogonal matrices that stay orthogonal while they learn: products of Householder reflections.

    H(b) = I - 2 b b^T / |b|^2,      W = H(b_0) H(b_1) ... H(b_{n-1})

Source: Householder 1958, doi:10.1145/320941.320947; the compact form: Schreiber, Van Loan 1989, doi:10.1137/0910005.
"""

from contextlib import nullcontext

import torch
from torch import Tensor, nn

from mereo.core.kernels.transforms import fallback_reason
from mereo.core.squash import accumulation_type
from mereo.errors import check_positive

SMALLEST = 1e-12
"""Least squared length: shorter vectors count as this long, and a vector of zeros reflects nothing."""


def reflect(x: Tensor, vector: Tensor) -> Tensor:
    """x - 2 <x, b> b / |b|^2, along the last axis.

    Shapes: x (..., dim), vector broadcastable to it -> (..., dim).
    """
    scale = 2 / vector.square().sum(-1, keepdim=True).clamp(min=SMALLEST)
    return x - (x * vector).sum(-1, keepdim=True) * scale * vector


def product_of_reflections(vectors: Tensor) -> Tensor:
    """H(b_0) H(b_1) ... H(b_{n-1}), computed in float32 at least.

    Computed in the compact form I - U T U^T with one triangular system, except in exports. U has the unit vectors as
    columns; T^-1 is the part of U^T U above the diagonal, with 1/2 on the diagonal.

    Shapes: vectors (..., reflections, dim) -> (..., dim, dim).
    """
    wide = vectors.to(accumulation_type(vectors))
    dim = wide.shape[-1]
    identity = torch.eye(dim, dtype=wide.dtype, device=wide.device)
    if fallback_reason() is not None:
        matrix = identity.expand(*wide.shape[:-2], dim, dim)
        for vector in wide.unbind(-2):
            matrix = reflect(matrix, vector.unsqueeze(-2))
        return matrix.to(vectors.dtype)
    kind = wide.device.type
    # Products in half precision would lose orthogonality.
    with torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext():
        units = wide * wide.square().sum(-1, keepdim=True).clamp(min=SMALLEST).rsqrt()
        inner = (units @ units.transpose(-1, -2)).triu(1)
        # A vector of zeros gives a row of zeros in `units`, which changes nothing.
        half = torch.full_like(inner[..., 0], 0.5).diag_embed()
        solved = torch.linalg.solve_triangular(inner + half, units, upper=True)
        return (identity - units.transpose(-1, -2) @ solved).to(vectors.dtype)


class HouseholderMatrix(nn.Module):
    """An orthogonal matrix made of learned reflections.

    W = H(b_0) H(b_1) ... H(b_{n-1}),   H(b) = I - 2 b b^T / |b|^2

    Args:
        dim: rows and columns.
        reflections: how many; `dim` of them reach every orthogonal matrix whose determinant is (-1)^dim.
        copies: number of matrices made together; None for one matrix without a leading axis.

    Shapes: () -> (dim, dim), or (copies, dim, dim).

    Reference: arXiv:2403.13351.
    """

    def __init__(self, dim: int, reflections: int | None = None, *, copies: int | None = None) -> None:
        super().__init__()
        reflections = dim if reflections is None else reflections
        check_positive(dim=dim, reflections=reflections, copies=1 if copies is None else copies)
        shape = (reflections, dim) if copies is None else (copies, reflections, dim)
        self.vectors = nn.Parameter(torch.randn(shape))

    def forward(self) -> Tensor:
        return product_of_reflections(self.vectors)

    def for_inference(self) -> nn.Module:
        """The matrix as a constant."""
        return _Constant(product_of_reflections(self.vectors.detach()))

    def extra_repr(self) -> str:
        return f"{self.vectors.shape[-1]}, reflections={self.vectors.shape[-2]}"


class _Constant(nn.Module):
    """A matrix that was computed before."""

    matrix: Tensor

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.register_buffer("matrix", matrix)

    def forward(self) -> Tensor:
        return self.matrix
