"""Capsule pruning: worked numbers, loops, and what must not matter."""

import pytest
import torch

from mereo.errors import UsageError
from mereo.mechanisms.select import CapsulePruning, prune


def test_worked_numbers() -> None:
    u = torch.tensor([[3.0, 0.0], [0.0, 2.0], [2.9, 0.3], [0.1, 1.0], [-1.0, 0.2]])
    pruned, kept = prune(u.unsqueeze(0), 0.7)
    assert kept.tolist() == [[True, True, False, False, True]]
    assert torch.equal(pruned[0], u * kept[0].unsqueeze(1))


def test_a_chain_of_directions() -> None:
    angles, norms = torch.tensor([0.0, 0.6, 1.2]), torch.tensor([3.0, 2.0, 1.0])
    u = torch.stack((angles.cos(), angles.sin()), 1) * norms.unsqueeze(1)
    assert prune(u.unsqueeze(0), 0.7)[1].tolist() == [[True, False, False]]
    assert prune(u.unsqueeze(0), 0.7, greedy=True)[1].tolist() == [[True, False, True]]


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("theta", [-0.5, 0.0, 0.3, 0.9])
def test_equals_loops(theta: float, greedy: bool) -> None:
    torch.manual_seed(0)
    capsules = torch.randn(6, 9, 3, dtype=torch.float64)
    _, kept = prune(capsules, theta, greedy=greedy)
    for image, row in zip(capsules, kept, strict=True):
        order = sorted(range(9), key=lambda i: -image[i].norm().item())
        stay: list[int] = []
        for place, i in enumerate(order):
            rivals = stay if greedy else order[:place]
            alike = [image[i] @ image[j] / (image[i].norm() * image[j].norm()) > theta for j in rivals]
            stay += [] if any(alike) else [i]
        assert sorted(stay) == row.nonzero().flatten().tolist()


def test_theta_1_removes_nothing_and_equal_capsules_leave_the_first() -> None:
    capsules = torch.randn(2, 1, 4).expand(2, 3, 4)
    assert torch.equal(prune(capsules, 1.0)[0], capsules)
    for greedy in (False, True):
        assert prune(capsules, 0.7, greedy=greedy)[1].tolist() == [[True, False, False]] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_zero_and_huge_capsules(dtype: torch.dtype) -> None:
    assert prune(torch.zeros(2, 3, 4, dtype=dtype))[1].all(), "zeros resemble nothing"
    for scale in (1e30, 1e-30):
        pruned, kept = prune(torch.tensor([[[1.0, 0.0], [2.0, 0.1], [0.0, 1.0]]], dtype=dtype) * scale)
        assert kept.tolist() == [[False, True, True]] and pruned.isfinite().all()
    assert prune(torch.randn(2, 1, 4))[1].all() and prune(torch.randn(0, 3, 4))[0].shape == (0, 3, 4)


def test_gradients_are_those_of_the_kept_capsules() -> None:
    capsules = torch.randn(2, 6, 3, requires_grad=True)
    pruned, kept = prune(capsules, 0.2)
    pruned.sum().backward()
    assert not kept.all()
    assert capsules.grad is not None and torch.equal(capsules.grad, kept.unsqueeze(-1).expand(2, 6, 3).float())


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="theta is"):
        CapsulePruning(float("nan"))
    with pytest.raises(UsageError, match="capsules are"):
        prune(torch.randn(3, 4))
