"""Correctness before speed: a contender's outputs and gradients compared with the reference's."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mereo.bench.suite import Mode, Workload

FAINT = 1e-3
"""A gradient this much smaller than the largest is measured against that floor: its own rounding is not an error."""
EXACT = 1e-8
"""The relative error of gradients in float64 up to which two networks compute the same function."""


def tensors_of(output: Any) -> tuple[Tensor, ...]:
    """The tensors of an output, tuples and lists opened."""
    if isinstance(output, Tensor):
        return (output,)
    if isinstance(output, tuple | list):
        return tuple(t for part in output for t in tensors_of(part))
    raise TypeError(f"a contender returned a {type(output).__name__}; it must return tensors")


class Step:
    """One call of a workload, forward only or with the backward pass and the workload's last step."""

    def __init__(self, workload: Workload, inputs: tuple[Any, ...], mode: Mode) -> None:
        self.workload, self.inputs, self.mode = workload, inputs, mode
        own = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
        self.leaves = (*own, *workload.leaves)
        self._weights: tuple[Tensor, ...] | None = None

    def _loss_weights(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Weights of the outputs for the backward pass: fixed random numbers, 1 for a scalar."""
        if self._weights is None:
            generator = torch.Generator().manual_seed(0)
            self._weights = tuple(
                torch.ones_like(o) if o.dim() == 0 else torch.randn(o.shape, generator=generator).to(o) for o in outputs
            )
        return self._weights

    def clear(self) -> None:
        """Forget the gradients."""
        for leaf in self.leaves:
            leaf.grad = None

    def run(self) -> tuple[Tensor, ...]:
        """Outputs; in training, gradients are left in the leaves."""
        if self.mode == "forward":
            with torch.no_grad():
                return tensors_of(self.workload.call(*self.inputs))
        outputs = tensors_of(self.workload.call(*self.inputs))
        torch.autograd.backward(outputs, self._loss_weights(outputs))
        return outputs

    def __call__(self) -> None:
        self.run()
        if self.mode == "training":
            if self.workload.finish is not None:
                self.workload.finish()
            self.clear()


@dataclass(frozen=True)
class Outcome:
    """The results of one step; `altered` if an input was written to."""

    outputs: tuple[Tensor, ...]
    gradients: tuple[Tensor | None, ...]
    altered: bool


def outcome(step: Step) -> Outcome:
    """Outputs and gradients of one step from a fixed seed, copied."""
    given = [x for x in step.inputs if isinstance(x, Tensor)]
    versions = [x._version for x in given]
    torch.manual_seed(0)
    outputs = tuple(o.detach().clone() for o in step.run())
    gradients: tuple[Tensor | None, ...] = ()
    if step.mode == "training":
        chosen = step.workload.compared
        gradients = tuple(leaf.grad for leaf in step.leaves) if chosen is None else chosen()
        gradients = tuple(None if gradient is None else gradient.clone() for gradient in gradients)
    step.clear()
    return Outcome(outputs, gradients, [x._version for x in given] != versions)


def relative_error(actual: Tensor | None, expected: Tensor | None, floor: float = 0.0) -> float:
    """max |actual - expected| / max(max |expected|, floor); infinite for another shape, NaN, or None."""
    if expected is None:
        return 0.0 if actual is None else relative_error(actual, torch.zeros_like(actual), floor)
    if actual is None or actual.shape != expected.shape:
        return math.inf
    if expected.numel() == 0:
        return 0.0
    wide = expected.double()
    scale = max(wide.abs().max().item(), floor)
    error = (actual.double() - wide).abs().max().item()
    if math.isnan(error):
        return math.inf
    if scale > 0:
        return error / scale
    return 0.0 if error == 0 else math.inf


@dataclass(frozen=True)
class Agreement:
    """Largest relative errors; `gradient` is None in the forward mode, `exact` if nothing ran in float64."""

    output: float
    gradient: float | None
    altered: bool
    exact: float | None = None

    def within(self, tolerance: float, gradients: float | None = None) -> bool:
        """Whether the contender computes what the reference computes; `gradients` is their own tolerance."""
        allowed = tolerance if gradients is None else gradients
        agree = self.output <= tolerance and (self.gradient or 0.0) <= allowed and (self.exact or 0.0) <= EXACT
        return agree and not self.altered


def norm_error(actual: tuple[Tensor | None, ...], expected: tuple[Tensor | None, ...]) -> float:
    """||actual - expected|| / ||expected|| over all tensors together; infinite if they cannot be compared.

    A missing gradient counts as zeros.
    """
    if len(actual) != len(expected):
        return math.inf
    error = size = 0.0
    for a, b in zip(actual, expected, strict=True):
        if a is not None and b is not None and a.shape != b.shape:
            return math.inf
        wide = [torch.zeros(()) if x is None else x.double() for x in (a, b)]
        error += (wide[0] - wide[1]).square().sum().item()
        size += wide[1].square().sum().item()
    if math.isnan(error) or (size == 0 and error > 0):
        return math.inf
    return math.sqrt(error / size) if size else 0.0


def compare(actual: Outcome, expected: Outcome, *, by_norm: bool = False, exact: float | None = None) -> Agreement:
    """How far a contender is from the reference.

    Args:
        by_norm: compare gradients by the norm of all together instead of each by its largest entry.
        exact: the error of its gradients in float64.
    """

    def worst(some: tuple[Tensor | None, ...], others: tuple[Tensor | None, ...]) -> float:
        if len(some) != len(others):
            return math.inf
        largest = max((o.abs().max().item() for o in others if o is not None and o.numel()), default=0.0)
        return max((relative_error(a, b, FAINT * largest) for a, b in zip(some, others, strict=True)), default=0.0)

    errors = norm_error if by_norm else worst
    gradient = errors(actual.gradients, expected.gradients) if expected.gradients else None
    return Agreement(worst(actual.outputs, expected.outputs), gradient, actual.altered, exact)
