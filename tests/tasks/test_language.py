"""Language modelling: metrics against loops, and a run from the command line to a continued text."""

import bz2
import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import mereo
from mereo.cli.main import main
from mereo.data import Batch, TokenWindows, load_splits
from mereo.data.text import END
from mereo.errors import UsageError
from mereo.inference.continuation import continue_text
from mereo.inference.evaluate import evaluate
from mereo.inference.flops import forward_flops
from mereo.models import get_model_entry
from mereo.models.weights import load_tensors
from mereo.tasks import Language
from mereo.tasks.language import LanguageMetrics, compressed_bits
from mereo.tasks.recall import Recall
from mereo.training.config import TrainConfig
from mereo.training.estimate import estimate
from mereo.training.plan import make_plan
from mereo.training.report import Report
from mereo.training.trainer import Trainer, train

TINY = {key: value for key, value in (get_model_entry("tnl_tiny").tiny or {}).items() if key != "vocab_size"}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "counted.txt"
    path.write_text("".join(f"{i} and {i + 1} make {2 * i + 1}.\n" for i in range(150)))
    return path


def config(text: Path, folder: Path, **changes: Any) -> TrainConfig:
    fields = {
        "model": "tnl_tiny", "data": str(text), "model_args": TINY, "batch_size": 32, "epochs": 2, "lr": 1e-2,
        "output": str(folder / "runs"), "tensorboard": False, "device": "cpu",
    }  # fmt: skip
    return TrainConfig().replace(**{**fields, **changes})


def small() -> Any:
    return mereo.create_model("tnl_tiny", **TINY, vocab_size=256).eval()


def test_bits_per_byte_of_loops() -> None:
    scores, tokens = torch.randn(2, 4, 7), torch.randint(7, (2, 5))
    batch = Batch(tokens=tokens, lengths=torch.tensor([5, 3]))
    bits, hits = [], []
    for i, length in enumerate((5, 3)):
        for t in range(length - 1):
            shares = scores[i, t].exp() / scores[i, t].exp().sum()
            bits.append(-math.log2(shares[tokens[i, t + 1]]))
            hits.append(int(scores[i, t].argmax()) == int(tokens[i, t + 1]))
    metrics = LanguageMetrics()
    metrics.update(scores, batch)
    assert metrics.compute() == pytest.approx({"bits_per_byte": sum(bits) / 6, "accuracy": sum(hits) / 6}, rel=1e-5)


def test_an_evaluation_counts_every_byte_once() -> None:
    model, stream = small(), torch.randint(1, 256, (100,)).to(torch.uint8)
    windows = TokenWindows(stream, 16)
    scores = evaluate(model, windows, task=Language(), batch_size=3)
    nats = 0.0
    for start in range(0, 100, 16):
        before = [int(stream[start - 1]) if start else 0, *stream[start : start + 15].tolist()]
        here = stream[start : start + 16].long()
        with torch.no_grad():
            shares = model(torch.tensor([before[: len(here)]]))[0].log_softmax(-1)
        nats -= float(shares.gather(1, here.unsqueeze(1)).sum())
    assert scores.count == 7 and scores.values["bits_per_byte"] == pytest.approx(nats / 100 / math.log(2), rel=1e-5)
    assert scores.values["bits_per_byte"] == pytest.approx(8, abs=0.5)


def test_bits_per_byte_of_compressors() -> None:
    content = b"the same again and " * 50
    bits = compressed_bits(content)
    assert list(bits) == ["gzip", "bz2", "xz"] and all(0 < value < 2 for value in bits.values())
    assert bits["bz2"] == 8 * len(bz2.compress(content, 9)) / len(content)
    windows = TokenWindows(torch.tensor(list(content), dtype=torch.uint8), 8)
    assert Language().references(windows)["gzip"] == {"bits_per_byte": bits["gzip"]}
    assert compressed_bits(b"")["gzip"] > 0


def test_smoothing_acts_in_training_only() -> None:
    task, model = Language(), small()
    batch = task.example(model, 2)
    plain, smooth = (task.objective(model, TrainConfig(label_smoothing=s)) for s in (0.0, 0.5))
    with torch.no_grad():
        loss, outputs = plain(batch)
        assert float(loss) == pytest.approx(float(plain.loss(outputs, batch)), rel=1e-5)
        assert smooth(batch)[0] != loss and smooth.loss(outputs, batch) == plain.loss(outputs, batch)


@pytest.mark.long
def test_a_training_leaves_everything_in_its_folder_and_learns(text: Path, tmp_path: Path) -> None:
    result = train(config(text, tmp_path, epochs=6), Report(silent=True))
    folder = result.folder
    for path in (folder.best, folder.history, folder.results, folder.curves, folder.train_samples, folder.test_samples):
        assert path.stat().st_size > 0
    assert result.test_best.values["bits_per_byte"] < 5 and result.task.name == "language"
    assert TrainConfig.from_yaml(folder.config).task == "language"
    loaded: Any = mereo.load(folder.path)
    assert loaded.metadata["task"] == "language"
    written = json.loads(folder.results.read_text())
    assert written["test_best"]["bits_per_byte"] == result.test_best.values["bits_per_byte"]
    assert list(csv.DictReader(folder.history.read_text().splitlines()))[0]["val_bits_per_byte"]
    again = train(
        config(text, tmp_path, name="more", weights=str(folder.path), model_args={}, epochs=1), Report(silent=True)
    )
    assert again.test_best.values["bits_per_byte"] < result.test_best.values["bits_per_byte"] + 0.5


@pytest.mark.parametrize("stop_at", [1, 4])
def test_a_stopped_run_goes_on_to_the_same_weights(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_at: int
) -> None:
    class StoppedError(Exception):
        pass

    changes = {"checkpoint_seconds": 1e-9, "limit": 96}
    whole = train(config(text, tmp_path, name="whole", **changes), Report(silent=True))
    optimise, calls = Trainer.optimise, []

    def stopping(self: Trainer, epoch: int, step: int, order: torch.Tensor) -> Any:
        calls.append(step)
        if len(calls) == stop_at + 1:
            raise StoppedError
        return optimise(self, epoch, step, order)

    monkeypatch.setattr(Trainer, "optimise", stopping)
    with pytest.raises(StoppedError):
        train(config(text, tmp_path, name="stopped", **changes), Report(silent=True))
    monkeypatch.setattr(Trainer, "optimise", optimise)
    resumed = train(config(text, tmp_path, name="stopped", resume=True, **changes), Report(silent=True))
    ours, theirs = (load_tensors(result.folder.last)[0] for result in (whole, resumed))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_an_estimate_counts_windows(text: Path, tmp_path: Path) -> None:
    plan = make_plan(config(text, tmp_path))
    estimated = estimate(plan, measure=False)
    model: Any = plan.build_model()
    assert estimated.images == -(-len(load_splits(str(text), length=16).train.content) // 16)  # type: ignore[attr-defined]
    assert estimated.parameters == sum(p.numel() for p in model.parameters())
    linear = sum(p.numel() for n, p in model.named_parameters() if "theta" not in n and "embedding" not in n)
    assert forward_flops(model) == pytest.approx(2 * 16 * linear, rel=0.2)


@pytest.mark.long
def test_the_commands(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [f"{name}={value}" for name, value in TINY.items()]
    common = ["train", "--model", "tnl_tiny", "--data", str(text), "--limit", "64", "--device", "cpu"]
    assert main([*common, "--dry-run", "--model-args", *arguments]) == 0
    assert "windows" in capsys.readouterr().out
    assert main([*common, "--epochs", "1", "--batch-size", "32", "--name", "run", "--model-args", *arguments]) == 0
    assert "bits per byte" in capsys.readouterr().out
    assert main(["evaluate", "runs/run", "--out", "figures"]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("bits_per_byte", "gzip", "bz2", "xz"))
    figures = json.loads(Path("figures/report.json").read_text())["models"]["run"]
    assert figures["references"]["xz"]["bits_per_byte"] > 0 and figures["metrics"]["bits_per_byte"] < 9
    assert main(["predict", "--weights", "runs/run", "--prompt", "1 and ", "--length", "9", "--json"]) == 0
    (prediction,) = json.loads(capsys.readouterr().out)["predictions"]
    assert prediction["text"] == "1 and " and len(prediction["continuation"].encode()) <= 27
    Path("long.txt").write_text("1 and " * 20)
    assert main(["predict", "long.txt", "--weights", "runs/run", "--length", "1"]) == 0
    assert "trained on windows of 16; beyond them it may be worse" in capsys.readouterr().err
    assert main(["predict", "--prompt", "1 and ", "--weights", "runs/run", "--length", "1"]) == 0
    assert "windows" not in capsys.readouterr().err
    assert main(["predict", "runs/run/config.yaml", "--weights", "runs/run", "--length", "5"]) == 0
    assert "model: tnl_tiny" in capsys.readouterr().out
    Path("table.csv").write_text("a,b\n1,2\n")
    assert main(["predict", "table.csv", "--weights", "runs/run", "--length", "1"]) == 0, "a text, no list of images"
    assert "a,b" in capsys.readouterr().out
    assert main(["explain", str(text), "--weights", "runs/run"]) == 2
    assert "reads tokens" in capsys.readouterr().err
    assert main(["export", "runs/run", "--out", "exported"]) == 0
    assert any(Path("exported").iterdir())


def test_texts_are_drawn_where_a_folder_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    model = mereo.create_model("tnl_tiny", **TINY).eval()
    mereo.save_weights("text.safetensors", model, task="language")
    for folder in ("one", "two"):
        Path(folder).mkdir()
        Path(folder, "same.txt").write_text(f"{folder} and " * 40)
    words = ["predict", "one/same.txt", "two/same.txt", "--weights", "text.safetensors", "--length", "3"]
    assert main(words) == 0 and not list(tmp_path.glob("**/*.png"))
    drawn: list[tuple[list[int], list[float]]] = []
    monkeypatch.setattr("mereo.tasks.language.draw_text", lambda rows, bits, path: drawn.append((rows[0], bits[0])))
    capsys.readouterr()
    assert main([*words, "--out", "drawn", "--prompt", "ab"]) == 0
    written = [Path(line.split()[-1]).name for line in capsys.readouterr().err.splitlines() if "written" in line]
    assert written == ["same.png", "same-2.png", "prompt.png"], "files of the same name have a picture each"
    assert [len(row) for row, _ in drawn[:2]] == [288, 288]
    row, bits = drawn[2]
    assert row == [*b"ab", *continue_text(model, b"ab", 3)]
    with torch.inference_mode():
        shares = model(torch.tensor([[END, *row[:-1]]]))[0].double().softmax(-1)
    assert bits == pytest.approx([-math.log2(float(shares[i, byte])) for i, byte in enumerate(row)], rel=1e-4)


def test_bits_of_a_network_that_reads_later_bytes_are_said_to_be_none_of_prediction(
    text: Path, tmp_path: Path, capsys: Any
) -> None:
    sizes = {key: value for key, value in (get_model_entry("pldr_llm_tiny").tiny or {}).items() if key != "vocab_size"}
    line = "bits per byte are not strictly autoregressive"
    for scope, times in (("all", 1), ("prefix", 0)):
        changes = {"model": "pldr_llm_tiny", "model_args": {**sizes, "metric_scope": scope}, "epochs": 1, "limit": 32}
        result = train(config(text, tmp_path, name=scope, **changes), pictures=False)
        assert capsys.readouterr().out.count(line) == times
        assert main(["evaluate", str(result.folder.path), "--out", str(tmp_path / scope), "--limit", "32"]) == 0
        assert capsys.readouterr().out.count(f"{scope}: {line}") == times
        assert (tmp_path / scope / "report.md").read_text().count(line[1:]) == times
        assert Recall().remarks(result.model) == []


def test_a_continuation_is_the_same_for_the_same_seed_and_ends_with_the_text() -> None:
    model = small()
    first, again, other = (continue_text(model, b"abc", 20, seed=seed) for seed in (1, 1, 2))
    assert first == again != other and len(first) <= 20
    with torch.no_grad():
        model.head.weight.zero_()
    assert continue_text(model, b"abc", 20, temperature=0) == b"", "the lowest of equal scores ends the text"
    limited = mereo.create_model("rcmha_tiny", **{**(get_model_entry("rcmha_tiny").tiny or {}), "vocab_size": 256})
    long = b"abc" * 30  # more than the 64 bytes that each may attend to
    assert len(continue_text(limited.eval(), long, 5)) <= 5  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="31 tokens"):
        continue_text(mereo.create_model("tnl_tiny", vocab_size=31), b"", 1)  # type: ignore[arg-type]


def test_what_does_not_fit_together(text: Path, tmp_path: Path) -> None:
    for changes, message in (
        ({"data": "digits"}, "'digits', which is images"),
        ({"img_size": 32}, "img_size is 32, and tnl_tiny reads tokens"),
        ({"augment": ("flip",)}, "augment has flip"),
        ({"mixup": 0.2}, r"mixup is 0\.2"),
        ({"model_args": {"vocab_size": 3}}, "vocab_size, which follows from the data"),
        ({"model_args": {"contxt": 3}}, "unknown argument of tnl_tiny 'contxt'"),
        ({"model_args": {"context": 0}}, "context is 0"),
        ({"model": "mspcaps_tiny", "model_args": {}, "data": "pystdlib"}, "data is 'pystdlib'.*images are needed"),
        ({"model": "mspcaps_tiny", "model_args": {}, "data": "digits", "task": "language"}, "task is 'language'"),
    ):
        with pytest.raises(UsageError, match=message):
            make_plan(config(text, tmp_path, **changes))
