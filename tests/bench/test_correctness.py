"""What counts as correct: outputs and gradients compared with the reference's."""

import math

import pytest
import torch

from mereo.bench.correctness import EXACT, Outcome, Step, compare, norm_error, outcome, relative_error
from mereo.bench.suite import Workload
from mereo.bench.suites.routing import einsum_routing
from mereo.mechanisms.routing import dynamic_routing


def agreement_of(function, reference=torch.mul, mode="training"):
    inputs = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0, -4.0], requires_grad=True)
    found, expected = (outcome(Step(Workload(f), inputs, mode)) for f in (function, reference))
    assert all(x.grad is None for x in inputs)
    return compare(found, expected)


def test_the_same_is_exact():
    agreement = agreement_of(lambda a, b: a * b)
    assert (agreement.output, agreement.gradient) == (0.0, 0.0)
    assert agreement.within(0.0)


def test_a_wrong_output_is_measured():
    assert agreement_of(lambda a, b: a * b + 0.8).output == pytest.approx(0.1)  # the largest output is 8


def test_a_right_output_with_a_wrong_gradient_is_wrong():
    agreement = agreement_of(lambda a, b: a.detach() * b + 0 * a)
    assert agreement.output == 0.0
    assert agreement.gradient == pytest.approx(1.0)
    assert not agreement.within(0.5)


@pytest.mark.parametrize("function", [lambda a, b: a, lambda a, b: a * b + math.nan, lambda a, b: (a * b)[:1]])
def test_another_input_unused_nan_or_another_shape_is_wrong(function):
    assert not agreement_of(function).within(0.1)


def test_writing_to_an_input_is_wrong():
    agreement = agreement_of(lambda a, b: a.mul_(2).div_(2) * b, mode="forward")
    assert agreement.gradient is None and agreement.altered and not agreement.within(1.0)


def test_relative_error():
    expected = torch.tensor([0.0, 2.0])
    assert relative_error(torch.tensor([0.0, 2.5]), expected) == 0.25
    assert relative_error(torch.tensor([0.0, 2.5]), expected, floor=5.0) == 0.1
    assert relative_error(None, expected) == math.inf
    assert relative_error(torch.zeros(2), torch.zeros(2)) == 0.0
    assert relative_error(None, None) == 0.0


def test_the_norm_of_all_gradients_together():
    expected = (torch.tensor([3.0, 0.0]), torch.tensor([4.0]), None)
    assert norm_error(expected, expected) == 0.0
    assert norm_error((torch.tensor([3.0, 1.0]), None, torch.zeros(1)), expected) == pytest.approx(math.sqrt(17) / 5)
    assert norm_error(expected[:2], expected) == math.inf
    assert norm_error((torch.zeros(3), *expected[1:]), expected) == math.inf
    assert norm_error((torch.full((2,), math.nan), *expected[1:]), expected) == math.inf
    assert norm_error((torch.ones(1),), (torch.zeros(1),)) == math.inf


def test_rounding_of_small_gradients_is_allowed_by_norm_but_not_an_error_in_float64():
    expected = Outcome((), (torch.tensor([1.0]), torch.tensor([0.01])), False)
    rounded = Outcome((), (torch.tensor([1.0]), torch.tensor([0.02])), False)
    assert not compare(rounded, expected).within(0.1)
    assert compare(rounded, expected, by_norm=True, exact=EXACT).within(0.1)
    assert not compare(rounded, expected, by_norm=True, exact=2 * EXACT).within(0.1)
    assert not compare(rounded, expected, by_norm=True).within(0.001)


def test_the_einsum_baseline_is_dynamic_routing():
    torch.manual_seed(0)
    inputs = torch.randn(3, 7, 4, requires_grad=True), torch.randn(5, 7, 4, 6, requires_grad=True), 3

    def ours(children, weight, steps):
        return dynamic_routing(children, weight, steps, method="plain")

    found, expected = (outcome(Step(Workload(f), inputs, "training")) for f in (ours, einsum_routing))
    assert compare(found, expected).within(1e-5)
