"""Products of reflections: worked numbers, orthogonality, gradients, degenerate vectors."""

import pytest
import torch
from torch import Tensor

from mereo.core.householder import HouseholderMatrix, product_of_reflections, reflect
from mereo.errors import UsageError


def by_loops(vectors: Tensor) -> Tensor:
    matrix = torch.eye(vectors.shape[-1], dtype=vectors.dtype)
    for b in vectors:
        matrix = matrix @ (torch.eye(len(b), dtype=b.dtype) - 2 * torch.outer(b, b) / b.dot(b))
    return matrix


def test_worked_numbers() -> None:
    two = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    torch.testing.assert_close(product_of_reflections(two), torch.tensor([[0.0, 1.0], [-1.0, 0.0]]))
    one = torch.tensor([[1.0, 2.0, 2.0]])
    expected = torch.tensor([[7.0, -4, -4], [-4, 1, -8], [-4, -8, 1]]) / 9
    torch.testing.assert_close(product_of_reflections(one), expected)


@pytest.mark.parametrize(("count", "dim"), [(1, 1), (1, 5), (5, 5), (9, 4), (16, 16)])
def test_equals_loops_with_gradients(count: int, dim: int) -> None:
    torch.manual_seed(0)
    vectors = torch.randn(count, dim, dtype=torch.float64, requires_grad=True)
    given = torch.randn(dim, dim, dtype=torch.float64)
    ours, theirs = product_of_reflections(vectors), by_loops(vectors)
    torch.testing.assert_close(ours, theirs)
    for a, b in zip(*(torch.autograd.grad((x * given).sum(), vectors) for x in (ours, theirs)), strict=True):
        torch.testing.assert_close(a, b)
    assert torch.linalg.det(ours).item() == pytest.approx((-1) ** count)
    assert torch.autograd.gradgradcheck(product_of_reflections, vectors) if dim < 5 else True


@pytest.mark.filterwarnings("ignore:.*jit.script.*:FutureWarning")  # of the first jvp in a process
def test_the_plain_operations_give_the_same() -> None:
    vectors = torch.randn(3, 6, 5, dtype=torch.float64)
    plain, tangent = torch.func.jvp(product_of_reflections, (vectors,), (torch.ones_like(vectors),))
    torch.testing.assert_close(plain, product_of_reflections(vectors))
    step = 1e-6
    slope = (product_of_reflections(vectors + step) - product_of_reflections(vectors - step)) / (2 * step)
    torch.testing.assert_close(tangent, slope, rtol=1e-5, atol=1e-7)


def test_stays_orthogonal_while_it_learns() -> None:
    torch.manual_seed(0)
    matrix = HouseholderMatrix(16)
    optimiser, x, y = torch.optim.Adam(matrix.parameters(), 0.05), torch.randn(32, 16), torch.randn(32, 16)
    first = (x @ matrix() - y).square().mean().item()
    for _ in range(20):
        loss = (x @ matrix() - y).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.9 * first
    for made in (matrix(), matrix.for_inference()()):
        torch.testing.assert_close(made.T @ made, torch.eye(16), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_degenerate_vectors(dtype: torch.dtype) -> None:
    vectors = torch.randn(4, 3)
    vectors[1] = 0
    expected = by_loops(vectors[[0, 2, 3]])
    given = vectors.to(dtype).requires_grad_()
    matrix = product_of_reflections(given)
    matrix.float().sum().backward()
    torch.testing.assert_close(matrix.float(), expected, rtol=0, atol=1e-6 if dtype == torch.float32 else 0.03)
    assert given.grad is not None and given.grad.isfinite().all()
    parallel = torch.ones(64, 64) + 1e-3 * torch.randn(64, 64)
    made = product_of_reflections(parallel)
    torch.testing.assert_close(made.T @ made, torch.eye(64), rtol=0, atol=1e-4)


def test_a_reflection_keeps_lengths_and_undoes_itself() -> None:
    x, b = torch.randn(5, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    torch.testing.assert_close(reflect(x, b).norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(reflect(reflect(x, b), b), x)
    torch.testing.assert_close(reflect(b, b), -b)


def test_copies_and_wrong_arguments() -> None:
    made = HouseholderMatrix(4, 2, copies=3)
    assert made.vectors.shape == (3, 2, 4) and made().shape == (3, 4, 4)
    torch.testing.assert_close(made()[1], product_of_reflections(made.vectors[1]))
    with pytest.raises(UsageError, match="reflections is 0"):
        HouseholderMatrix(4, 0)
