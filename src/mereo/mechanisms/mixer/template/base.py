"""The template of token mixers: Y = out(norm(M(X) V(X))), with attention, convolution and scans as instances.

Source: arXiv:2302.06218.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def multiply(matrix: Tensor, values: Tensor) -> Tensor:
    """M V for the three kinds of mixing matrices.

    Shapes: matrix (tokens, tokens), (batch, heads, tokens, tokens) or (dim, tokens, tokens), one for each channel;
        values (batch, tokens, dim), divided among the heads -> (batch, tokens, dim).
    """
    if matrix.dim() == 2:
        return matrix @ values
    if matrix.dim() == 3:
        return torch.einsum("dts,bsd->btd", matrix, values)
    parts = values.unflatten(-1, (matrix.shape[1], -1)).transpose(1, 2)
    return (matrix @ parts).transpose(1, 2).flatten(2)


class Mix(nn.Module, ABC):
    """How tokens are mixed: a matrix, and a faster way to multiply by it.

    Attributes:
        depends_on_input: whether the matrix is a function of the tokens.
    """

    depends_on_input: bool

    @abstractmethod
    def matrix(self, tokens: Tensor) -> Tensor:
        """The mixing matrix itself, to inspect or draw it.

        Shapes: tokens (batch, tokens, dim) -> (tokens, tokens), (batch, heads, tokens, tokens), or one for each
            channel, (dim, tokens, tokens).
        """

    @abstractmethod
    def product(self, tokens: Tensor, values: Tensor) -> Tensor:
        """M(tokens) values, without the matrix if that is faster: (batch, tokens, dim) -> the same."""

    @abstractmethod
    def complexity(self, length: int, dim: int) -> int:
        """Multiply-adds of `product` for one sample, to the leading order."""

    def rank_bound(self, length: int) -> int:
        """The largest rank that the matrix of a head or channel can have."""
        return length

    def apply(self, tokens: Any, values: Tensor | None = None) -> Any:
        """`product(tokens, values)`; with a function only, apply it to all submodules, as every module does."""
        return super().apply(tokens) if values is None else self.product(tokens, values)

    def forward(self, tokens: Tensor, values: Tensor) -> Tensor:
        return self.product(tokens, values)


class TokenMixer(nn.Module):
    """Mix tokens: Y = out(norm(M(X) V(X))).

    Args:
        mix: M.
        value: V, a module or function; the tokens themselves by default.
        norm: a function of the product, such as a norm, or the real part of complex numbers.
        out: the projection of the output.

    Shapes: (batch, tokens, dim) -> (batch, tokens, dim of the values).

    Reference: arXiv:2302.06218.
    """

    def __init__(
        self,
        mix: Mix,
        value: Callable[[Tensor], Tensor] | None = None,
        norm: Callable[[Tensor], Tensor] | None = None,
        out: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.mix = mix
        self.value, self.norm, self.out = (nn.Identity() if f is None else f for f in (value, norm, out))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.norm(self.mix.product(tokens, self.value(tokens))))

    def explicit(self, tokens: Tensor) -> Tensor:
        """The same by the matrix itself."""
        values = self.value(tokens)
        matrix = self.mix.matrix(tokens)
        return self.out(self.norm(multiply(matrix.to(torch.promote_types(matrix.dtype, values.dtype)), values)))
