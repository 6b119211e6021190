"""Similarities: worked numbers, loops, extremes."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mereo.core.similarity import EPS, SIMILARITIES


def memory_and_query() -> tuple[Tensor, Tensor]:
    memory = torch.tensor([[[1.0, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1]]], dtype=torch.float64)
    return memory, torch.tensor([[[1, 0.8, 0.3, 0]]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dot", (2.1, 0.5, 1.5)),
        ("cosine", (0.798300, 0.190071, 0.570214)),
        ("neg_manhattan", (-1.9, -3.5, -2.5)),
        ("neg_euclidean", (-1.53, -4.73, -2.73)),
    ],
)
def test_worked_numbers(name: str, expected: tuple[float, ...]) -> None:
    memory, query = memory_and_query()
    got = SIMILARITIES[name](query, memory)
    torch.testing.assert_close(got[0, 0], torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-6)


def _kl(p: list[float], q: list[float]) -> float:
    p, q = [x / sum(p) for x in p], [x / sum(q) for x in q]
    return sum(a * (math.log(a + EPS) - math.log(b + EPS)) for a, b in zip(p, q, strict=True))


REFERENCE: dict[str, Callable[[list[float], list[float]], float]] = {
    "dot": lambda m, q: sum(a * b for a, b in zip(m, q, strict=True)),
    "cosine": lambda m, q: sum(a * b for a, b in zip(m, q, strict=True)) / (math.hypot(*m) * math.hypot(*q)),
    "neg_manhattan": lambda m, q: -sum(abs(a - b) for a, b in zip(m, q, strict=True)),
    "neg_euclidean": lambda m, q: -(math.dist(m, q) ** 2),
    "inverse_manhattan": lambda m, q: 1 / (sum(abs(a - b) for a, b in zip(m, q, strict=True)) + EPS),
    "inverse_euclidean": lambda m, q: 1 / (math.dist(m, q) ** 2 + EPS),
    "hamming": lambda m, q: sum((1 + a * b) / 2 for a, b in zip(m, q, strict=True)),
    "neg_kl": lambda m, q: -_kl(m, q),
    "neg_reverse_kl": lambda m, q: -_kl(q, m),
    "neg_symmetric_kl": lambda m, q: -(_kl(m, q) + _kl(q, m)) / 2,
}


@pytest.mark.parametrize("name", list(SIMILARITIES))
def test_every_similarity_equals_loops(name: str) -> None:
    torch.manual_seed(0)
    query, memory = torch.rand(2, 3, 5, dtype=torch.float64), torch.rand(2, 4, 5, dtype=torch.float64)
    got = SIMILARITIES[name](query, memory)
    assert got.shape == (2, 3, 4)
    for b in range(2):
        for q in range(3):
            for n in range(4):
                expected = REFERENCE[name](memory[b, n].tolist(), query[b, q].tolist())
                assert got[b, q, n].item() == pytest.approx(expected, rel=1e-7)


def test_hamming_counts_equal_entries_of_bipolar_patterns() -> None:
    torch.manual_seed(0)
    query, memory = torch.randn(1, 3, 9).sign(), torch.randn(1, 4, 9).sign()
    equal = (query.unsqueeze(2) == memory.unsqueeze(1)).sum(-1)
    assert torch.equal(SIMILARITIES["hamming"](query, memory), equal.float())


@pytest.mark.parametrize("name", list(SIMILARITIES))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_zeros_and_coincidence_have_finite_values_and_gradients(name: str, dtype: torch.dtype) -> None:
    pattern = torch.tensor([[[0.0, 0, 0], [1, 0, 2]]], dtype=dtype)
    query, memory = pattern.clone().requires_grad_(), pattern.clone().requires_grad_()
    scores = SIMILARITIES[name](query, memory)
    scores.sum().backward()
    assert scores.dtype == dtype and scores.isfinite().all()
    for x in (query, memory):
        assert x.grad is not None and x.grad.isfinite().all()


@pytest.mark.parametrize("name", list(SIMILARITIES))
def test_one_memory_serves_a_batch(name: str) -> None:
    torch.manual_seed(0)
    query, memory = torch.rand(3, 2, 5), torch.rand(1, 4, 5)
    torch.testing.assert_close(
        SIMILARITIES[name](query, memory), SIMILARITIES[name](query, memory.expand(3, -1, -1).contiguous())
    )


@pytest.mark.parametrize("name", [n for n in SIMILARITIES if n not in {"dot", "cosine"}])
def test_a_pattern_is_closest_to_itself(name: str) -> None:
    torch.manual_seed(0)
    memory = torch.rand(1, 6, 8, dtype=torch.float64)
    if name == "hamming":
        memory = (memory - 0.5).sign()
    assert SIMILARITIES[name](memory, memory)[0].argmax(-1).tolist() == list(range(6))


def test_expanded_square_never_turns_positive() -> None:
    torch.manual_seed(0)
    memory = 100 * torch.randn(1, 32, 16)
    assert (SIMILARITIES["neg_euclidean"](memory, memory) <= 0).all()
