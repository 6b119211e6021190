"""Classifiers of frozen features: what an optimum must satisfy, and cases that are known."""

import math

import pytest
import torch

from mereo.errors import UsageError
from mereo.training import probes
from mereo.training.probes import logistic_regression, rbf, support_vector_machine


def rings(count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Three rings around each other, which no line separates."""
    labels = torch.arange(count) % 3
    angles = 2 * math.pi * torch.rand(count, generator=generator, dtype=torch.float64)
    radius = 1 + labels + 0.1 * torch.randn(count, generator=generator, dtype=torch.float64)
    return torch.stack((radius * angles.cos(), radius * angles.sin()), 1), labels


def test_weights_of_the_machine_are_optimal_and_it_separates_rings() -> None:
    generator = torch.Generator().manual_seed(0)
    x, labels = rings(150, generator)
    machine = support_vector_machine(x, labels, 3, inverse_penalty=10.0, gamma=0.5, tolerance=1e-6)
    assert machine.pairs.tolist() == [[0, 1], [0, 2], [1, 2]]
    for (one, other), samples, weights, offset in zip(
        machine.pairs.tolist(), machine.samples, machine.weights, machine.offsets, strict=True
    ):
        y = torch.cat((torch.ones(int((labels == one).sum())), -torch.ones(int((labels == other).sum())))).double()
        a = weights * y
        assert a.min() >= 0 and a.max() <= 10 and abs(weights.sum().item()) < 1e-9
        f = y * (rbf(samples, samples, 0.5) @ weights + offset)
        free = (a > 1e-6) & (a < 10 - 1e-6)
        torch.testing.assert_close(f[free], torch.ones_like(f[free]), atol=1e-5, rtol=0)
        assert (f[a <= 1e-6] >= 1 - 1e-5).all() and (f[a >= 10 - 1e-6] <= 1 + 1e-5).all()
    fresh, truth = rings(300, generator)
    assert (machine(fresh).argmax(1) == truth).double().mean() > 0.98
    linear = logistic_regression(x, labels, 3, penalty=1e-4)
    assert (linear(fresh).argmax(1) == truth).double().mean() < 0.7


def test_kernels_that_are_not_stored_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = rings(60, torch.Generator().manual_seed(0))
    stored = support_vector_machine(x, labels, 3, tolerance=1e-9)
    monkeypatch.setattr(probes, "MOST_STORED", 10)
    again = support_vector_machine(x, labels, 3, tolerance=1e-9)
    torch.testing.assert_close(again.weights, stored.weights, rtol=0, atol=1e-4)


def test_two_samples_have_the_closed_form() -> None:
    # The gap of two samples is 2 and the curvature 2 - 2 k: both weights are 1 / (1 - k).
    x = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    k = math.exp(-0.1 * 2)
    machine = support_vector_machine(x, torch.tensor([0, 1]), 2)
    torch.testing.assert_close(machine.weights, torch.tensor([[1, -1]], dtype=torch.float64) / (1 - k))
    assert machine.offsets.abs().item() < 1e-12
    capped = support_vector_machine(x, torch.tensor([0, 1]), 2, inverse_penalty=1.0)
    assert capped.weights.abs().max() == 1
    near = support_vector_machine(0.05 * x, torch.tensor([0, 1]), 2)
    assert near.weights.tolist() == [[100, -100]], "C is 100 where none is given, as published"


def test_classes_of_different_sizes_and_classes_without_samples() -> None:
    x = torch.tensor([[0.0], [0.1], [0.2], [5.0], [9.0], [9.1]])
    machine = support_vector_machine(x, torch.tensor([0, 0, 0, 2, 3, 3]), 5)
    votes = machine(x)
    assert votes.shape == (6, 5) and votes.argmax(1).tolist() == [0, 0, 0, 2, 3, 3]
    assert not votes[:, 1].any() and not votes[:, 4].any()


def test_logistic_regression_is_where_the_gradient_vanishes() -> None:
    generator = torch.Generator().manual_seed(0)
    x, labels = rings(60, generator)
    linear = logistic_regression(x, labels, 3, penalty=0.01, iterations=500)
    p = linear(x).softmax(1) - torch.nn.functional.one_hot(labels, 3)
    gradient = p.T @ x / 60 + 2 * 0.01 * linear.weight
    assert gradient.abs().max() < 1e-5 and p.mean(0).abs().max() < 1e-5


def test_wrong_arguments() -> None:
    x, labels = torch.rand(4, 2), torch.tensor([0, 1, 0, 1])
    for given, message in (
        ((x, labels[:2], 2), "features are"), ((x, labels, 1), "whole numbers"),
        ((x * math.nan, labels, 2), "not finite"), ((x, torch.zeros(4, dtype=torch.int64), 2), "1 class"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=message):
            support_vector_machine(*given)
    with pytest.raises(UsageError, match="penalty"):
        logistic_regression(x, labels, 2, penalty=-1.0)
