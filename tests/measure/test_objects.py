"""Images of several objects: the figures against loops over the images, and the report of `mereo evaluate`."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import mereo
from mereo.cli.main import main
from mereo.inference.answers import Answers
from mereo.inference.metrics import wilson_interval
from mereo.measure.objects import object_metrics


def test_the_figures_are_those_of_a_loop_over_the_images():
    generator = torch.Generator().manual_seed(0)
    labels = torch.stack([torch.randperm(4, generator=generator)[:2] for _ in range(30)])
    answers = Answers(torch.rand(30, 4, generator=generator), labels)
    model = object_metrics(answers, ("a", "b", "c", "d"))
    both = either = objects = 0
    there, guessed, hit = [0] * 4, [0] * 4, [0] * 4
    for lengths, pair in zip(answers.scores.tolist(), labels.tolist(), strict=True):
        longest = sorted(range(4), key=lambda c: -lengths[c])[:2]
        found = [c for c in pair if c in longest]
        both, either, objects = both + (len(found) == 2), either + (len(found) > 0), objects + len(found)
        for counts, classes in ((there, pair), (guessed, longest), (hit, found)):
            for c in classes:
                counts[c] += 1
    assert (model["count"], model["objects"]) == (30, 2)
    assert model["accuracy"] == pytest.approx(both / 30)
    assert (model["accuracy_low"], model["accuracy_high"]) == wilson_interval(model["accuracy"], 30)
    assert model["mean_hits"] == pytest.approx(objects / 60) and model["any_hit"] == pytest.approx(either / 30)
    for c, scores in enumerate(model["per_class"]):
        assert (scores["class"], scores["support"], scores["predicted"]) == ("abcd"[c], there[c], guessed[c])
        assert scores["recall"] == pytest.approx(hit[c] / there[c])
        assert scores["precision"] == pytest.approx(hit[c] / guessed[c])
        assert scores["f1"] == pytest.approx(2 * hit[c] / (there[c] + guessed[c]))


def test_no_image_is_no_accuracy():
    model = object_metrics(Answers(torch.zeros(0, 3), torch.zeros(0, 2, dtype=torch.int64)), ("a", "b", "c"))
    assert model["accuracy"] == model["mean_hits"] == model["any_hit"] == 0


@pytest.fixture
def digits(tmp_path):
    """A root with an MNIST of a few random images."""
    raw, random = tmp_path / "root" / "MNIST" / "raw", np.random.default_rng(0)
    raw.mkdir(parents=True)
    for prefix, count in (("train", 40), ("t10k", 20)):
        images = random.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        head = struct.pack(">iiii", 2051, count, 28, 28)
        (raw / f"{prefix}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        labels = (np.arange(count) % 10).astype(np.uint8)
        (raw / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">ii", 2049, count) + labels.tobytes())
    return str(tmp_path / "root")


def test_a_network_of_two_digits_is_evaluated(digits, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = mereo.create_model("mspcaps_tiny", channels=(4, 8, 8), in_chans=1, img_size=36)
    mereo.save_weights("pairs.safetensors", model, class_names=tuple("0123456789"), data="multimnist")
    words = ["evaluate", "pairs.safetensors", "--data-root", digits, "--device", "cpu"]
    assert main([*words, "--corruptions", "--limit", "10"]) == 0
    assert "objects predicted" in capsys.readouterr().out
    found = json.loads(Path("evaluation/report.json").read_text())["models"]["pairs"]
    assert found["count"] == 10 and sum(c["support"] for c in found["per_class"]) == 20
    assert found["corruptions"]["noise"][0]["accuracy"] == found["accuracy"]
    text = Path("evaluation/report.md").read_text()
    assert "Each image holds 2 objects" in text and "confusion" not in text and "(corruptions.png)" in text
    for option in (["--attack", "fgsm"], ["--equivariance"]):
        assert main([*words, *option]) == 2
        assert "2 objects each" in capsys.readouterr().err
