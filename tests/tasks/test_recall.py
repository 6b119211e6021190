"""Recall: its loss and accuracy by loops over labelled places, and a network that learns to recall."""

import json
import re
from pathlib import Path

import pytest
import torch

import mereo
from mereo.cli.main import main
from mereo.data import Batch, load_splits
from mereo.inference.evaluate import evaluate
from mereo.tasks.recall import Recall
from mereo.training.config import TrainConfig
from mereo.training.trainer import train


def test_only_labelled_places_count() -> None:
    scores, tokens = torch.randn(2, 5, 7), torch.randint(7, (2, 5))
    labels = torch.tensor([[-1, 2, -1, -1, 4], [-1, -1, 3, -1, -1]])
    batch, task = Batch(tokens=tokens, labels=labels), Recall()
    losses = [-scores[b, t].log_softmax(-1)[labels[b, t]] for b, t in ((0, 1), (0, 4), (1, 2))]
    objective = task.objective(torch.nn.Identity(), TrainConfig())
    torch.testing.assert_close(objective.loss(scores, batch), sum(losses) / 3)
    metrics = task.metrics()
    metrics.update(scores, batch)
    hits = [scores[b, t].argmax() == labels[b, t] for b, t in ((0, 1), (0, 4), (1, 2))]
    assert metrics.compute()["accuracy"] == pytest.approx(sum(map(int, hits)) / 3)


@pytest.mark.long
def test_a_run_learns_predicts_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two pairs of four keys: guessing one of the values in the sequence gives one half."""
    arguments = {"dim": 32, "depth": 2, "num_heads": 2, "hidden_dim": 16, "context": 16}
    config = TrainConfig().replace(
        task="recall", model="causal_transformer_tiny", model_args=arguments, epochs=12, lr=1e-2, batch_size=32,
        data="mqar:length=16,pairs=2,vocab=16,train=640", output=str(tmp_path), tensorboard=False, device="cpu",
    )  # fmt: skip
    train(config)
    (run,) = tmp_path.iterdir()
    model = mereo.load(run)
    test = load_splits(config.data, length=16).test.subset(torch.arange(500))
    assert evaluate(model, test, task=Recall()).accuracy > 0.6
    capsys.readouterr()
    words = [
        "predict",
        "--weights",
        str(run),
        "--prompt",
        "1 9, 2 8, 2 0 1",
        "--out",
        str(tmp_path / "drawn"),
        "--json",
    ]
    assert main(words) == 0
    predictions = json.loads(capsys.readouterr().out)["predictions"]
    with torch.inference_mode():
        shares = model(torch.tensor([[1, 9, 2, 8, 2, 0, 1]]))[0, [4, 6]].softmax(-1)
    assert [(found["asked"], found["true"]) for found in predictions] == [(2, 8), (1, 9)]
    for found, row in zip(predictions, shares, strict=True):
        assert found["answer"] == int(row.argmax())
        assert found["probability"] == pytest.approx(float(row.max()), rel=1e-4)
    assert main(words[:-1]) == 0 and capsys.readouterr().out.count("prompt: ") == 2
    assert (tmp_path / "drawn" / "prompt.png").stat().st_size
    for prompt, error in (("one two", "prompt: .*whole numbers"), ("1 9 2 8 3", "prompt: .*key 3, which no pair has")):
        assert main([*words[:4], prompt, "--out", str(tmp_path / "none")]) == 2 and re.search(
            error, capsys.readouterr().err
        )
    assert not (tmp_path / "none").exists()
    assert (run / "samples_test.png").stat().st_size and (run / "samples_train.png").stat().st_size
