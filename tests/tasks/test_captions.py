"""Captions: CHAIR, recall, length and answers by loops, the loss, decoding, and a run that trains and draws."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mereo
from mereo.cli.main import main
from mereo.data import Batch
from mereo.data.captions import END, FIRST, NO, TOKENS, YES, ask, draw_scenes
from mereo.data.captions import test_set as held_out
from mereo.interventions import vision_aware_heads
from mereo.tasks.captions import Captions, Named, evaluate_captions, generate
from mereo.training.config import TrainConfig
from tiny_decoders import prompts, recomputed, tiny_vl


def batch_of(count: int = 60) -> Batch:
    scenes = draw_scenes(count, 0.5, torch.Generator().manual_seed(0))
    rows, labels = ask(scenes, torch.arange(count) % 9 - 1)
    return Batch(rows=rows, labels=labels)


def test_metrics_by_loops() -> None:
    batch, generator = batch_of(), torch.Generator().manual_seed(1)
    tokens = torch.randint(1, 13, (60, 9), generator=generator)
    first = torch.randn(60, 13, generator=generator)
    metrics = Captions().metrics()
    metrics.update(Named(first[:, None], tokens, first), batch)
    wrong = caption_count = hallucinating = given = found = true = length = 0
    answers: list[tuple[bool, bool]] = []
    for row, label, scores in zip(tokens.tolist(), batch.labels.tolist(), first, strict=True):
        if label[0] in (YES, NO):
            answers.append((bool(scores[YES] > scores[NO]), label[0] == YES))
            continue
        said = row[: row.index(END)] if END in row else row
        names, there = {t for t in said if t >= FIRST}, {t for t in label if t >= FIRST}
        caption_count, length = caption_count + 1, length + len(said)
        hallucinating += bool(names - there)
        wrong, given = wrong + len(names - there), given + len(names)
        found, true = found + len(names & there), true + len(there)
    hits = sum(yes and right for yes, right in answers)
    expected = {
        "chair_s": hallucinating / caption_count, "chair_i": wrong / given, "recall": found / true,
        "length": length / caption_count, "answers": sum(a == b for a, b in answers) / len(answers),
        "precision": hits / sum(yes for yes, _ in answers), "yes_recall": hits / sum(right for _, right in answers),
        "f1": 2 * hits / sum(a + b for a, b in answers), "yes": sum(yes for yes, _ in answers) / len(answers),
    }  # fmt: skip
    assert metrics.compute() == pytest.approx(expected)


def test_the_loss_ends_with_the_first_end() -> None:
    batch = batch_of()
    scores = torch.randn(60, 9, 13)
    loss = Captions().objective(tiny_vl(), TrainConfig()).loss(scores, batch)
    terms = [
        -float(F.log_softmax(scores[n, place], -1)[token])
        for n, row in enumerate(batch.labels.tolist())
        for place, token in enumerate(row[: row.index(END) + 1])
    ]
    assert float(loss) == pytest.approx(sum(terms) / len(terms), rel=1e-5)


def test_captions_are_the_highest_scores_with_a_cache_as_without() -> None:
    model, rows = tiny_vl(), prompts(3)
    with torch.no_grad():
        tokens, first = generate(model, rows, 5)
        scores = recomputed(model, rows, tokens)
    torch.testing.assert_close(scores[:, 0], first, rtol=0, atol=1e-5)
    assert torch.equal(scores[:, :-1].argmax(-1), tokens)


def test_an_intervention_is_opened_for_each_batch() -> None:
    model, split = tiny_vl(), held_out(7, 0.9, 0)
    opened: list[Any] = []

    def change(network: Any) -> Any:
        opened.append(vision_aware_heads(network))
        return opened[-1]

    whole = evaluate_captions(model, split, vision_aware_heads, batch_size=len(split))
    assert evaluate_captions(model, split, change, batch_size=10) == pytest.approx(whole)
    assert len(opened) == -(-len(split) // 10) and evaluate_captions(model, split) != whole


def test_the_bundled_network_captions_a_scene(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model: Any = mereo.load("tinyvl")
    figures = evaluate_captions(model, held_out(200, 0.9, 7))
    assert figures["recall"] > 0.7 and figures["chair_i"] < 0.3 and figures["answers"] > 0.75
    assert model.class_names == TOKENS and model.metadata["data"] == "captions"
    words = ["predict", "--weights", "tinyvl.captions", "--out", str(tmp_path), "--json"]
    words += ["--prompt", "fork, knife, cat"]
    assert main(words) == 0
    (found,) = json.loads(capsys.readouterr().out)["predictions"]
    assert {*found["caption"].split(", ")} & {"fork", "knife", "cat"} and found["true"] == "fork, knife, cat"
    assert (tmp_path / "prompt.png").stat().st_size
    assert main([*words[:-1], "dragon"]) == 2 and "dragon" in capsys.readouterr().err


@pytest.mark.long
def test_a_run_trains_and_evaluates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["train", "--data", "captions:train=96", "--task", "captions", "--device", "cpu", "--no-tensorboard"]
    assert main([*words, "--model-args", "dim=8", "depth=1", "num_heads=2", "--name", "run"]) == 0
    figures = json.loads(Path("runs/run/results.json").read_text())["test_best"]
    assert {"chair_s", "chair_i", "recall", "length", "answers", "f1"} <= figures.keys()
    assert Path("runs/run/samples_test.png").stat().st_size
    assert main(["evaluate", "runs/run", "--out", "report"]) == 0
    report = json.loads(Path("report/report.json").read_text())
    assert report["models"]["run"]["metrics"]["recall"] == pytest.approx(figures["recall"])
