"""Triples: loss and accuracies by loops, the loss without senses, and a run that learns, predicts and draws."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mereo
from mereo.cli.main import main
from mereo.data import Batch, load_splits
from mereo.errors import UsageError
from mereo.tasks.triples import Triples
from mereo.training.config import TrainConfig
from mereo.training.trainer import train

SMALL = {"features": 5, "entities": 3, "predicates": 2, "dim": 6, "memory": 4}


def scenes() -> tuple[Any, Batch]:
    torch.manual_seed(0)
    model = mereo.create_model("tensor_brain", **SMALL).eval()
    labels = torch.tensor([[0, 3, 2], [1, 4, 1], [2, 3, 0]])
    return model, Batch(regions=torch.randn(3, 2, 5), labels=labels)


@pytest.mark.parametrize("semantic", [0.0, 0.5])
def test_the_loss_is_the_sum_of_three_cross_entropies(semantic: float) -> None:
    model, batch = scenes()
    assert batch.regions is not None
    task = Triples((), {"semantic": semantic})
    with torch.no_grad():
        value, outputs = task.objective(model, TrainConfig())(batch)
        logs = model.decode(batch.regions, "teacher", batch.labels).log_shares
        prior = model.log_prior(batch.labels)
    expected = 0.0
    for row, concepts in enumerate(batch.labels.tolist()):
        expected -= sum(logs[row, place, concept].item() for place, concept in enumerate(concepts)) / 3
        expected -= semantic * prior[row].item() / 3
    assert value.item() == pytest.approx(expected, rel=1e-5)
    metrics = task.metrics()
    metrics.update(outputs, batch)
    hits = [
        [int(a == b) for a, b in zip(*rows, strict=True)]
        for rows in zip(outputs.chosen.tolist(), batch.labels.tolist(), strict=True)
    ]
    found = metrics.compute()
    assert found["accuracy"] == pytest.approx(sum(all(row) for row in hits) / 3)
    for place, name in enumerate(("subject", "predicate", "object")):
        assert found[name] == pytest.approx(sum(row[place] for row in hits) / 3)


def test_a_prediction_is_the_networks_own_sentence() -> None:
    model, batch = scenes()
    assert batch.regions is not None
    task = Triples(("ant", "bee", "cow", "on", "at"))
    with torch.no_grad():
        outputs = task.apply(model, batch)
        own = model.decode(batch.regions)
    rows = task.predict(task.kept(outputs))
    for row, chosen, chance in zip(rows, own.chosen.tolist(), own.log_probability.exp().tolist(), strict=True):
        assert [row["subject"], row["predicate"], row["object"]] == [task.class_names[k] for k in chosen]
        assert row["probability"] == pytest.approx(chance, rel=1e-5)
    assert task.titles(batch) == ["ant on cow", "bee at bee", "cow on ant"]
    more = mereo.create_model("tensor_brain", **SMALL, attributes=2).eval()
    with torch.no_grad():
        kept = task.kept(task.apply(more, Batch(regions=batch.regions)))
    assert [len(row["also"]) for row in task.predict(kept)] == [2, 2, 2]


def test_wrong_options() -> None:
    model, _ = scenes()
    with pytest.raises(UsageError, match="semantic is -1"):
        Triples((), {"semantic": -1.0})
    with pytest.raises(UsageError, match=r"label_smoothing is 0\.1"):
        Triples().objective(model, TrainConfig(label_smoothing=0.1))


@pytest.mark.long
def test_a_run_learns_predicts_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without noise, three entities and a sure table: subjects and objects are read off after few steps."""
    data = "tensor_brain_scenes:entities=3,predicates=2,features=5,noise=0.1,train=640"
    config = TrainConfig().replace(
        task="triples", model="tensor_brain", model_args=SMALL, epochs=8, lr=2e-2, batch_size=64, data=data,
        output=str(tmp_path), tensorboard=False, device="cpu",
    )  # fmt: skip
    train(config)
    (run,) = tmp_path.iterdir()
    capsys.readouterr()
    test = load_splits(data, length=2).test.batch(torch.arange(12))
    assert test.regions is not None
    np.savez(tmp_path / "seen.npz", regions=test.regions.numpy())
    words = ["predict", str(tmp_path / "seen.npz"), "--weights", str(run), "--out", str(tmp_path / "drawn"), "--json"]
    assert main(words) == 0
    rows = json.loads(capsys.readouterr().out)["predictions"]
    names = load_splits(data, length=2).class_names
    for place, part in ((0, "subject"), (2, "object")):
        right = [row[part] == names[concept] for row, concept in zip(rows, test.labels[:, place].tolist(), strict=True)]
        assert sum(right) >= 11
    with (tmp_path / "drawn" / "predictions.csv").open(encoding="utf-8-sig") as file:
        table = list(csv.DictReader(file))
    assert [row["scene"] for row in table] == [row["path"] for row in rows] == [f"seen-{n}" for n in range(12)]
    assert [row["predicate"] for row in table] == [row["predicate"] for row in rows]
    assert (tmp_path / "drawn" / "predictions.png").stat().st_size
    assert (run / "samples_test.png").stat().st_size and (run / "samples_train.png").stat().st_size
    assert main(["explain", str(tmp_path / "seen.npz"), "--weights", str(run)]) == 2
    assert "of a network that reads regions" in capsys.readouterr().err
    array = mereo.predict(run, test.regions.numpy())
    assert [item.values["subject"] for item in array] == [row["subject"] for row in rows]
