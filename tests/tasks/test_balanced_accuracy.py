"""Balanced accuracy: the mean over the classes, whatever their sizes."""

import pytest
import torch

from mereo.data import Batch
from mereo.tasks import get_task


def test_it_is_the_mean_of_what_is_correct_in_each_class() -> None:
    task = get_task("classification")(("a", "b", "c"))
    metrics, scores = task.metrics(), torch.eye(3)
    # Of a, 8 of 8 are correct; of b, 1 of 2; there is no c.
    predicted = torch.tensor([0] * 8 + [0, 1])
    labels = torch.tensor([0] * 8 + [1, 1])
    for part in (slice(0, 3), slice(3, None)):
        metrics.update(scores[predicted[part]], Batch(labels=labels[part]))
    figures = metrics.compute()
    assert figures["accuracy"] == pytest.approx(0.9) and figures["balanced_accuracy"] == pytest.approx(0.75)
    rows = dict(task.summary(figures, "last epoch"))
    assert rows["balanced accuracy"].startswith("75.00 %")


def test_soft_labels_count_for_their_largest_class_and_several_objects_not_at_all() -> None:
    task = get_task("classification")(("a", "b"))
    metrics = task.metrics()
    metrics.update(torch.tensor([[0.9, 0.1]]), Batch(labels=torch.tensor([[0.4, 0.6]])))
    assert metrics.compute()["balanced_accuracy"] == 0
    several = task.metrics()
    several.update(torch.tensor([[0.9, 0.8]]), Batch(labels=torch.tensor([[0, 1]])))
    assert "balanced_accuracy" not in several.compute()
    assert task.metrics().compute()["balanced_accuracy"] == 0
