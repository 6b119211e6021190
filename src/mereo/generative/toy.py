"""The smallest routing by sparse inference: three units, one output, a penalty.

Source: Kiefer, Millidge, Tschantz, Buckley 2022, arXiv:2209.02567, appendix B.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mereo.core import settle
from mereo.errors import MereoError, UsageError, check_choice, check_positive

INPUTS, TARGET = (-1.0, 5.0, 2.0), 2.0
PENALTIES = ("none", "l1", "l2")


class ToyRouting(NamedTuple):
    """The final values of the units, and their path.

    Attributes:
        x: the units (n,) after the last step.
        trace: the units (steps + 1, n) before the first step and after each.
        energy: the energy (steps + 1,) of each row of `trace`.
    """

    x: Tensor
    trace: Tensor
    energy: Tensor


def toy_routing(
    penalty: str = "l1",
    output_only: bool = True,
    method: str = "sgd",
    *,
    weight: float = 1.0,
    steps: int = 500,
    lr: float = 0.01,
    start: Sequence[float] | None = None,
    inputs: Sequence[float] = INPUTS,
    target: float = TARGET,
) -> ToyRouting:
    """Minimise the energy of units x that are to sum to a target, by gradient descent.

        output only:  F = (sum_i x_i - y)^2 + w P(x)
        full:         F = (sum_i x_i - y)^2 + w P(x) + |x - a|^2 + w P(x)

    With P = |x|_1 and only the output's term, x is sparse: the largest input wins. With both terms and w = 1 none is
    zero. The winner is decided by where the descent starts, not by the energy, which every x >= 0 of the right sum
    minimises: the units fall alike until one of them is zero. So L1 does not break a tie, and equal units end equal.

    Args:
        penalty: P: "none", "l1" (the sum of |x_i|) or "l2" (the sum of x_i^2).
        output_only: leave out the term that ties x to its input, and the penalty that comes with it.
        method: "sgd", plain descent along a subgradient, or "prox", a step on the smooth part and then the proximal
            map of the penalty, which makes exact zeros.
        weight: w. Each term of the loss carries the penalty, so the full energy counts it twice; 0.5 counts it once.
        steps, lr: number and size of the steps.
        start: x before the first step; the input when None.
        inputs, target: a and y.

    Shapes: inputs and start (n,) -> x (n,), trace (steps + 1, n), energy (steps + 1,), in float64.

    Raises: MereoError when the descent diverges, which a smaller `lr` cures.

    Reference: arXiv:2209.02567, appendix B, figure 3.
    """
    check_choice("penalty", penalty, PENALTIES)
    check_choice("method", method, ("sgd", "prox"))
    check_positive(steps=steps, lr=lr)
    if not isinstance(steps, int):
        raise UsageError(f"steps is {steps!r}; it must be a whole number.")
    if not (math.isfinite(weight) and weight >= 0):
        raise UsageError(f"weight is {weight!r}; it must be a number of at least 0.")
    a = _vector("inputs", inputs)
    x = a if start is None else _vector("start", start)
    if x.shape != a.shape:
        raise UsageError(f"start has {len(x)} entries and inputs has {len(a)}; give one for each input.")
    if not math.isfinite(target):
        raise UsageError(f"target is {target!r}; it must be a finite number.")

    strength = weight * (1 if output_only else 2)
    trace = [x]

    def step(x: Tensor) -> Tensor:
        gradient = 2 * (x.sum() - target) + (0 if output_only else 2 * (x - a))
        if method == "sgd":
            x = x - lr * (gradient + strength * _slope(x, penalty))
        else:
            x = _proximal(x - lr * gradient, lr * strength, penalty)
        trace.append(x)
        return x

    x = settle(step, x, steps=steps)
    path = torch.stack(trace)
    energy = (path.sum(1) - target).square() + strength * _penalty(path, penalty)
    if not output_only:
        energy = energy + (path - a).square().sum(1)
    # Steps along a subgradient may raise the energy a little for ever; that is not divergence.
    if not energy.isfinite().all() or energy[-1] > 2 * energy[0] + 1:
        raise MereoError(f"the descent diverged with lr {lr}; try a smaller one.")
    return ToyRouting(x, path, energy)


def _vector(argument: str, values: Sequence[float]) -> Tensor:
    try:
        vector = torch.as_tensor(values, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        vector = torch.empty(0)
    if vector.dim() != 1 or not len(vector) or not vector.isfinite().all():
        raise UsageError(f"{argument} is {values!r}; it must be a list of finite numbers.")
    return vector


def _penalty(x: Tensor, kind: str) -> Tensor:
    if kind == "none":
        return x.new_zeros(x.shape[:-1])
    return x.abs().sum(-1) if kind == "l1" else x.square().sum(-1)


def _slope(x: Tensor, kind: str) -> Tensor:
    if kind == "none":
        return torch.zeros_like(x)
    return x.sign() if kind == "l1" else 2 * x


def _proximal(x: Tensor, amount: float, kind: str) -> Tensor:
    """argmin_z |z - x|^2 / 2 + amount P(z)."""
    if kind == "none":
        return x
    return x.sign() * (x.abs() - amount).clamp(min=0) if kind == "l1" else x / (1 + 2 * amount)
