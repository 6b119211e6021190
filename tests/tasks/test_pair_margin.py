"""The margin loss of pairs: a worked number, loops over triples, and batches without any."""

import pytest
import torch

from mereo.tasks.pair_margin import pair_margin_loss


def test_the_worked_number() -> None:
    vectors = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-0.6, 0.8]])
    assert pair_margin_loss(vectors, torch.tensor([0, 0, 1, 1])).item() == pytest.approx(0.5056, abs=1e-4)


@pytest.mark.parametrize("counts", [(3, 3, 3), (2, 5, 1)])
def test_loops_over_triples_give_the_same(counts: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))[torch.randperm(sum(counts))]
    vectors = torch.nn.functional.normalize(torch.randn(len(labels), 3, dtype=torch.float64), dim=1)
    total, active = 0.0, 0
    for a in range(len(labels)):
        far = [(vectors[a] - v).norm().item() for v in vectors]
        positives = [p for p in range(len(labels)) if p != a and labels[p] == labels[a]]
        others = sorted((n for n in range(len(labels)) if labels[n] != labels[a]), key=lambda n: (far[n] < 0.5, far[n]))
        for p, n in zip(positives, sorted(others[: len(positives)]), strict=False):
            terms = max(0.0, far[p] - 1.2 + 0.2), max(0.0, 1.2 - far[n] + 0.2)
            total, active = total + sum(terms), active + any(terms)
    assert pair_margin_loss(vectors, labels).item() == pytest.approx(total / active, abs=1e-6)


def test_equal_vectors_and_batches_without_a_triple_have_finite_gradients() -> None:
    for labels in (torch.zeros(4, dtype=torch.int64), torch.arange(4), torch.tensor([0, 0, 1, 1])):
        vectors = torch.ones(4, 2, requires_grad=True)
        pair_margin_loss(vectors / vectors.norm(dim=1, keepdim=True), labels).backward()
        assert vectors.grad is not None and vectors.grad.isfinite().all()
