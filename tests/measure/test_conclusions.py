"""Chance, errors and couplings in words."""

import pytest
import torch

from mereo.inference.answers import Answers
from mereo.inference.metrics import chance_accuracy
from mereo.measure.classification import classification_metrics
from mereo.measure.conclusions import (
    beside_first,
    chance_words,
    coupling_rows,
    coupling_verdict,
    coupling_words,
    error_words,
    is_at_chance,
    student_quantile,
)

NAMES = ("cat", "dog")


def metrics(predicted, labels, names=NAMES):
    scores = torch.nn.functional.one_hot(torch.tensor(predicted), len(names)).float()
    return classification_metrics(Answers(scores, torch.tensor(labels)), names)


def test_chance_is_the_accuracy_of_predictions_drawn_without_looking():
    labels, predicted = torch.tensor([0] * 8 + [1] * 2), torch.tensor([0, 0, 0, 1, 1, 1, 1, 0, 1, 0])
    confusion = torch.zeros(2, 2, dtype=torch.int64)
    for true, guess in zip(labels, predicted, strict=True):
        confusion[true, guess] += 1
    pairs = [float(true == guess) for true in labels for guess in predicted]
    assert chance_accuracy(confusion) == pytest.approx(sum(pairs) / len(pairs))
    assert chance_accuracy(torch.tensor([[5, 0], [0, 0]])) is None
    assert chance_accuracy(torch.zeros(2, 2, dtype=torch.int64)) is None


def test_always_the_frequent_class_is_chance_and_finding_the_rare_one_is_not():
    labels = [0] * 95 + [1] * 5
    always = metrics([0] * 100, labels)
    assert always["accuracy"] == always["chance"] == 0.95 and is_at_chance(always)
    assert "net predicts no better than chance (95.00 % of 100 images" in chance_words("net", always)
    # Three points less accurate, and much better than a guess.
    better = metrics([0] * 88 + [1] * 7 + [0] + [1] * 4, labels)
    assert better["accuracy"] < 0.95 and is_at_chance(better) == (better["accuracy_low"] <= better["chance"])
    right = metrics(labels, labels)
    assert not is_at_chance(right) and chance_words("net", right) is None


def test_few_images_are_not_called_chance():
    few = metrics([0, 1, 1], [0, 1, 1])
    assert is_at_chance(few) and "too few images" in chance_words("net", few)


def test_errors_are_named_the_most_frequent_first():
    words = error_words("net", metrics([1, 1, 0, 1], [0, 0, 1, 1]))
    assert words is not None and "3 of 4" in words and words.endswith("cat as dog (2), dog as cat (1)")
    assert error_words("net", metrics([0, 1], [0, 1])) is None and error_words("net", {}) is None


def effect(lost, gained):
    way = {"value": 0.5, "lost": lost, "gained": gained}
    return {"metric": "accuracy", "own": 0.6, "uniform": way, "shuffled": way}


@pytest.mark.parametrize(
    ("lost", "gained", "words"),
    [
        (0, 0, "no clear difference"),
        (6, 4, "no clear difference"),
        (30, 4, "better than uniform, better than shuffled"),
        (4, 30, "worse than uniform, worse than shuffled"),
    ],
)
def test_couplings_in_words(lost, gained, words):
    assert coupling_words(effect(lost, gained)) == words
    models = {"plain": {}, "caps": {"couplings": effect(lost, gained)}}
    columns, rows = coupling_rows(models)
    assert [row[0] for row in rows] == ["caps"] and rows[0][1:4] == ["60.00 %", "50.00 %", "50.00 %"]
    assert "couplings replaced by uniform" in columns and "shuffled" in columns
    assert bool(coupling_verdict(models)) == (lost <= gained or words == "no clear difference")


def test_the_metric_of_another_task_has_no_verdict():
    models = {
        "net": {"couplings": {"metric": "mse", "own": 1.5, "uniform": {"value": 2.25}, "shuffled": {"value": 3.0}}}
    }
    assert coupling_rows(models)[1] == [["net", "1.5", "2.25", "3", "-"]] and coupling_verdict(models) == []


def test_quantiles_of_student_are_those_of_tables():
    for freedom, level, expected in ((1, 0.95, 12.706), (2, 0.95, 4.303), (2, 0.99, 9.925), (9, 0.95, 2.262)):
        assert student_quantile(level, freedom) == pytest.approx(expected, abs=1e-3)


def test_only_a_difference_beyond_the_seeds_counts():
    same = {"plain": [80.0, 81.0, 82.0], "gate": [80.5, 80.9, 82.2]}
    *lines, end = beside_first(same)
    assert end == "Nothing differs from plain beyond the seeds." and lines[0].startswith(
        "plain: 81.00 (78.52 to 83.48)"
    )
    better = {"plain": [80.0, 81.0, 82.0], "gate": [82.0, 83.0, 84.1]}
    assert beside_first(better)[-1] == "Beyond the seeds gate is better than plain."
    assert beside_first(better, least=True)[-1] == "Beyond the seeds gate is worse than plain."
    assert "--seeds" in beside_first({"plain": [1.0], "gate": [2.0]})[0]
