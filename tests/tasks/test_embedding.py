"""Embedding: the loss and the metrics against loops, and the files of a gallery."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from mereo.data import Batch
from mereo.errors import UsageError
from mereo.tasks import Embedding
from mereo.tasks.base import Seen
from mereo.tasks.embedding import EmbeddingMetrics, cluster_agreement, contrastive_loss


def some(count: int = 12, identities: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.nn.functional.normalize(torch.randn(count, 4), dim=1), torch.arange(count) % identities


def test_the_loss_is_that_of_loops() -> None:
    z, labels = some()
    labels[0] = 7  # without another of its identity
    terms = []
    for i in range(len(z)):
        partners = [p for p in range(len(z)) if p != i and labels[p] == labels[i]]
        whole = sum((z[i] @ z[a] / 0.2).exp() for a in range(len(z)) if a != i)
        if partners:
            terms.append(-sum(((z[i] @ z[p] / 0.2).exp() / whole).log() for p in partners) / len(partners))
    torch.testing.assert_close(contrastive_loss(z, labels, 0.2), sum(terms) / len(terms))


def test_a_batch_without_a_pair_has_the_loss_zero_and_a_finite_gradient() -> None:
    z = torch.eye(3, requires_grad=True)
    loss = contrastive_loss(z, torch.arange(3))
    loss.backward()
    assert loss == 0 and z.grad is not None and z.grad.isfinite().all()


def test_retrieval_is_that_of_loops_over_all_batches_in_any_order() -> None:
    z, labels = some(14)
    labels[3] = 9  # a query without an answer
    found = []
    for parts in ((slice(0, 5), slice(5, 14)), (slice(5, 14), slice(0, 5))):
        metrics = EmbeddingMetrics()
        for part in parts:
            metrics.update(z[part], Batch(None, labels[part]))
        found.append(metrics.compute())
    recalls: dict[int, list[bool]] = {1: [], 2: [], 4: [], 5: [], 8: []}
    precisions, nearer = [], []
    for i in range(14):
        order = sorted((j for j in range(14) if j != i), key=lambda j: -float(z[i] @ z[j]))
        hits = [bool(labels[j] == labels[i]) for j in order]
        if any(hits):
            for k, values in recalls.items():
                values.append(any(hits[:k]))
            ranks = [rank for rank, hit in enumerate(hits, 1) if hit]
            pairs = [one < other for one, hit in enumerate(hits) if hit for other, no in enumerate(hits) if not no]
            nearer.append(sum(pairs) / len(pairs))
            precisions.append(sum((n + 1) / rank for n, rank in enumerate(ranks)) / len(ranks))
    expected = {f"recall_at_{k}": sum(values) / 13 for k, values in recalls.items()}
    expected["mean_average_precision"] = sum(precisions) / 13
    expected["triplet_accuracy"] = sum(nearer) / len(nearer)
    assert found[0] == pytest.approx(expected) and found[1] == pytest.approx(expected)
    for name, (low, high) in metrics.intervals().items():
        assert low <= expected[name] <= high and low < high


def test_clusters_are_compared_with_the_identities_in_any_order() -> None:
    z, labels = torch.eye(3).repeat(4, 1), torch.arange(12) % 3
    z = torch.nn.functional.normalize(z + 0.01 * torch.randn(12, 3), dim=1)
    metrics = Embedding((), {"clusters": True}).metrics()
    metrics.update(z, Batch(None, labels))
    assert metrics.compute()["nmi"] == pytest.approx(1)
    z, order = torch.randn(12, 3), torch.randperm(12)
    first = cluster_agreement(z, labels)
    assert 0 <= first < 1 and cluster_agreement(z[order], labels[order]) == first
    assert cluster_agreement(torch.ones(4, 2), torch.arange(4)) == 0 and "nmi" not in Embedding().metrics().compute()


def test_files_of_a_gallery_name_the_nearest_images(tmp_path: Path) -> None:
    z = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    seen = [Seen((4, 4), (0, 0, 4, 4))] * 3
    files = Embedding().write(z, ["a", "b", "c"], tmp_path, seen)
    assert np.array_equal(np.load(tmp_path / "embeddings.npy"), z.numpy()) and len(files) == 2
    rows = list(csv.DictReader((tmp_path / "nearest.csv").read_text().splitlines()))
    assert [row["nearest 1"] for row in rows] == ["b", "a", "b"] and float(rows[0]["similarity 1"]) == 0.8
    assert Embedding(("0", "1")).cell_names == ("0", "1") and Embedding().cells(z)[1] == pytest.approx([0.8, 0.6])


def test_wrong_options_are_refused() -> None:
    with pytest.raises(UsageError, match="temperature"):
        Embedding((), {"temperature": 0})
    with pytest.raises(UsageError, match="whole number"):
        Embedding((), {"dim": 2.5})
