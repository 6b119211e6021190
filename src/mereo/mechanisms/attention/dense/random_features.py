"""Linear read-outs of random features: only the read-out is trained, which is ridge regression.

Source: Fu, Guo, Bai, Mei 2023, arXiv:2307.11353.
Cost of a fit to n samples of F features: 2 n^2 F FLOPs for their products and n^3 / 3 for the solution.
"""

import inspect
from abc import abstractmethod
from typing import Self

import torch
from torch import Tensor, nn

from mereo.core.inputs import check_finite
from mereo.core.recompute import recomputed
from mereo.errors import UsageError, check_not_negative, check_positive


def kernel_ridge(gram: Tensor, targets: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """Ridge regression with an intercept, from the products of all pairs of samples (the dual form).

    a = (H K H + n penalty c I)^-1 (y - mean y),   H = I - 1/n,   c = mean_i (H K H)_ii

    f(x) = sum_i a_i k(x, x_i) + b,   b = mean(y - K a)

    The coefficients sum to zero, so centring the features changes nothing but the intercept.

    Args:
        gram: K, the products k(x_i, x_j) of features, or a kernel; the result has its type.
        targets: y.
        penalty: at least 0; it does not depend on the scale of the features.

    Shapes: gram (n, n), targets (n,) or (n, outputs) -> a of the shape of targets, b () or (outputs,).

    Raises:
        UsageError: for shapes that do not fit, no samples, numbers that are NaN or infinite, or a penalty below 0.

    Reference: arXiv:2307.11353 bounds the norm of the weights instead; a penalty is the same problem by duality.
    """
    check_not_negative(penalty=penalty)
    n = len(gram)
    if not n or gram.shape != (n, n) or targets.shape[:1] != (n,):
        raise UsageError(
            f"gram is {tuple(gram.shape)} and targets {tuple(targets.shape)}; they must be (n, n) and (n,) or"
            " (n, outputs), of at least one sample."
        )
    check_finite(gram=gram, targets=targets)
    targets = targets.to(gram.dtype)
    centred = gram - gram.mean(0)
    centred = centred - centred.mean(1, keepdim=True)
    # Samples that are alike leave only rounding, and a penalty of 0 needs a little more than rounding.
    limits = torch.finfo(gram.dtype)
    least = gram.diagonal().mean() * limits.eps**0.5 + limits.tiny**0.5
    added = n * max(penalty, limits.eps) * centred.diagonal().mean().maximum(least)
    factor = torch.linalg.cholesky(centred + added * torch.eye(n, dtype=gram.dtype, device=gram.device))
    rest = (targets - targets.mean(0)).reshape(n, -1)
    alpha = torch.cholesky_solve(rest, factor)
    alpha = (alpha - alpha.mean(0)).view_as(targets)  # without a penalty, rounding adds much of a constant
    return alpha, (targets - (gram - gram.mean(1, keepdim=True)) @ alpha).mean(0)


class RandomFeatures(nn.Module):
    """A trained linear read-out of random features that stay as they are.

    f(x) = sum_k v_k phi_k(x) + b

    Features are made a block of units at a time, so that the memory of a prediction, a fit and a training step does
    not grow with the number of all units.

    Args:
        units: heads or hidden units.
        per_unit: features of a unit.
        outputs: of f; None for a single one without an axis.
        at_once: units of a block.

    Attributes:
        values: v (outputs, units * per_unit), 0 at the start.
        intercept: b (outputs,), 0 at the start.
    """

    def __init__(self, units: int, per_unit: int, outputs: int | None, at_once: int) -> None:
        super().__init__()
        check_positive(at_once=at_once, outputs=1 if outputs is None else outputs)
        self.units, self.per_unit, self.outputs, self.at_once = units, per_unit, outputs, at_once
        self.values = nn.Parameter(torch.zeros(outputs or 1, units * per_unit))
        self.intercept = nn.Parameter(torch.zeros(outputs or 1))

    @abstractmethod
    def block(self, first: int, last: int, *inputs: Tensor | None) -> Tensor:
        """Features of the units from `first` up to `last`: (batch, (last - first) * per_unit)."""

    def blocks(self) -> list[tuple[int, int]]:
        """The first and last unit of each block."""
        return [(first, min(first + self.at_once, self.units)) for first in range(0, self.units, self.at_once)]

    def _term(self, first: int, last: int, *inputs: Tensor | None) -> Tensor:
        columns = slice(first * self.per_unit, last * self.per_unit)
        return self.block(first, last, *inputs) @ self.values[:, columns].T

    def read(self, *inputs: Tensor | None) -> Tensor:
        """f: the inputs of `forward` -> (batch,) or (batch, outputs)."""
        blocks = self.blocks()
        total: Tensor = self.intercept
        again = len(blocks) > 1 and torch.is_grad_enabled() and not torch.compiler.is_compiling()
        for first, last in blocks:
            total = total + (
                recomputed(self._term, first, last, *inputs) if again else self._term(first, last, *inputs)
            )
        return total.squeeze(1) if self.outputs is None else total

    def gram(self, inputs: tuple[Tensor | None, ...], others: tuple[Tensor | None, ...] | None = None) -> Tensor:
        """The empirical kernel of two sets of samples, a sum over features divided by the number of units.

        k(x, x') = 1 / units sum_k phi_k(x) phi_k(x')

        Args:
            inputs, others: arguments of `forward` each; by default the products of the inputs with themselves.

        Shapes: n and m samples -> float64 (n, m).
        """
        total: Tensor | float = 0.0
        for first, last in self.blocks():
            one = self.block(first, last, *inputs).double()
            two = one if others is None else self.block(first, last, *others).double()
            total = total + one @ two.T
        assert isinstance(total, Tensor)
        return total / self.units

    @torch.no_grad()
    def fit(self, *inputs: Tensor | None, targets: Tensor, penalty: float = 1e-3) -> Self:
        """Set values and intercept by `kernel_ridge` in float64, and return this module.

        Args:
            inputs: the arguments of `forward` for all samples.
            targets: (batch,) or (batch, outputs).
            penalty: see `kernel_ridge`.

        Raises:
            UsageError: for no samples, numbers that are NaN or infinite, and targets of another number of outputs.
        """
        if not len(targets):
            raise UsageError("targets are of no sample; give at least one.")
        named = dict(zip(inspect.signature(self.forward).parameters, inputs, strict=False), targets=targets)
        check_finite(**{name: x for name, x in named.items() if x is not None})
        alpha, intercept = kernel_ridge(self.gram(inputs), targets.reshape(len(targets), -1), penalty)
        if alpha.shape[1] != len(self.intercept):
            raise UsageError(
                f"targets are {tuple(targets.shape)} for {len(self.intercept)} outputs; give as many columns."
            )
        self.intercept.copy_(intercept)
        for first, last in self.blocks():
            features = self.block(first, last, *inputs).double()
            products = alpha.T @ (features - features.mean(0)) / self.units  # of large numbers with sum zero
            self.values[:, first * self.per_unit : last * self.per_unit].copy_(products)
        return self


class RandomFeatureMLP(RandomFeatures):
    """A random hidden layer on the query and all keys in a row: the comparison that knows nothing of their roles.

    phi_k = ReLU(w_k . [x_0, ..., x_N, 1]),   w_k ~ N(0, I / (N + 2)),   f = sum_k v_k phi_k + b

    Args:
        dim: d, size of query and keys.
        num_keys: N.
        hidden: units; M (d + 1) of them have the trained weights of attention with M heads.
        outputs, at_once: see `RandomFeatures`.

    Shapes: query (batch, dim), keys (batch, num_keys, dim) -> (batch,), or (batch, outputs).

    Reference: arXiv:2307.11353; with inputs of length 1 each sum has the variance 1.
    """

    weight: Tensor

    def __init__(
        self, dim: int, num_keys: int, hidden: int, outputs: int | None = None, *, at_once: int = 4096
    ) -> None:
        check_positive(dim=dim, num_keys=num_keys, hidden=hidden)
        super().__init__(hidden, 1, outputs, at_once)
        weight = torch.randn(hidden, (num_keys + 1) * dim + 1) * (num_keys + 2) ** -0.5
        self.register_buffer("weight", weight)

    def block(self, first: int, last: int, *inputs: Tensor | None) -> Tensor:
        query, keys = inputs[:2]
        assert query is not None and keys is not None
        flat = torch.cat((query, keys.flatten(1), torch.ones_like(query[:, :1])), 1)
        return (flat @ self.weight[first:last].T).relu()

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return self.read(query, keys)
