"""Questions: accuracy by operator and chance by loops, and a run that trains, predicts and draws."""

import json
from pathlib import Path

import pytest
import torch

import mereo
from mereo.cli.main import main
from mereo.data import Batch
from mereo.data.questions.programs import Split
from mereo.data.questions.scenes import Questions as Set
from mereo.data.questions.scenes import generate
from mereo.data.questions.world import ANSWERS, join_rows
from mereo.tasks.questions import ASKED, CHANCE, Questions
from mereo.training.config import TrainConfig


def test_accuracy_by_the_operator_that_answers() -> None:
    made = generate("systematic_trees", 120, 0)
    batch = Batch(rows=join_rows(made["rule"], made["stim"]), labels=made["target"])
    scores = torch.randn(120, 138).log_softmax(-1)
    scores[::2].scatter_(1, batch.labels[::2, None], 9.0)
    right = [int(row.argmax()) == label for row, label in zip(scores, batch.labels.tolist(), strict=True)]
    metrics = Questions().metrics()
    metrics.update(scores, batch)
    found = metrics.compute()
    assert found["accuracy"] == pytest.approx(sum(right) / 120)
    for name in ASKED:
        own = [hit for hit, operator in zip(right, made["meta"]["operator"], strict=True) if operator == name]
        assert found[f"accuracy_{name}"] == pytest.approx(sum(own) / max(len(own), 1)), name
    assert found["accuracy_depth_3"] == found["accuracy"] and found["accuracy_depth_1"] == 0
    objective = Questions().objective(torch.nn.Identity(), TrainConfig())
    expected = -sum(row[label] for row, label in zip(scores.log_softmax(-1), batch.labels, strict=True)) / 120
    torch.testing.assert_close(objective.loss(scores, batch), expected)


def test_chance_is_the_most_frequent_answer_of_each_operator() -> None:
    programs = Split().draw("train", 4000, torch.Generator().manual_seed(0))
    found = Questions().references(Set(programs, 0, 5))[CHANCE]
    assert found["accuracy_producteven"] == pytest.approx(0.75, abs=0.06)
    assert found["accuracy_productodd"] == pytest.approx(0.75, abs=0.06)
    assert 0.5 <= found["accuracy_exist"] < 0.56 and 0.01 < found["accuracy_go"] < 0.04
    assert 0.1 < found["accuracy_getcolor"] < 0.15 and 0.1 < found["accuracy_getshape"] < 0.15


@pytest.mark.long
def test_a_run_trains_predicts_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["train", "--data", "gcog:split=productive,programs=8", "--task", "questions", "--device", "cpu"]
    words += ["--model-args", "dim=8", "hidden=8", "--epochs", "1", "--no-tensorboard", "--name", "run"]
    assert main(words) == 0
    figures = json.loads(Path("runs/run/results.json").read_text())["test_best"]
    assert {"accuracy", "accuracy_go", "accuracy_exist"} <= figures.keys()
    assert Path("runs/run/samples_test.png").stat().st_size and Path("runs/run/samples_train.png").stat().st_size
    capsys.readouterr()
    asked = "[ if red a exist , then color of h , else shape of white object ]"
    words = ["predict", "--weights", "runs/run", "--out", "drawn", "--json", "--seed", "3"]
    assert main([*words, "--prompt", asked]) == 0
    (found,) = json.loads(capsys.readouterr().out)["predictions"]
    assert found["question"].startswith("[ if current red a exist") and found["answer"] in ANSWERS
    assert found["true"] in ANSWERS[102:] and Path("drawn/prompt.png").stat().st_size
    made = generate("distractor", 2, 0)
    Path("some.json").write_text(json.dumps({name: made[name].tolist() for name in ("rule", "stim")}))
    assert main([*words, "some.json"]) == 0
    predictions = json.loads(capsys.readouterr().out)["predictions"]
    assert [each["true"] for each in predictions] == [ANSWERS[target] for target in made["target"].tolist()]
    with torch.inference_mode():
        scores = mereo.load("runs/run")(join_rows(made["rule"], made["stim"]))
    assert [each["answer"] for each in predictions] == [ANSWERS[best] for best in scores.argmax(1).tolist()]
    assert main([*words[:-3], "--prompt", "what is h"]) == 2 and "asks for nothing" in capsys.readouterr().err
    assert main(["evaluate", "runs/run", "--out", "report"]) == 0
    report = json.loads(Path("report/report.json").read_text())
    assert report["models"]["run"]["metrics"]["accuracy"] == pytest.approx(figures["accuracy"])
