"""The experiments on neighbourhood attention and on dropped patches, as a person runs them, at sizes of a test."""

import json
from pathlib import Path

import pytest
import torch

from mereo.cli.main import main
from mereo.core.kernels import library
from mereo.surgery import evit
from papers.evit import evit as evit_experiment
from papers.evit.patch_transformer import PatchTransformer
from papers.neighborhood import neighborhood


def test_the_transformer_accepts_fewer_patches() -> None:
    model, images = PatchTransformer((1, 16, 16), 3, dim=16, heads=2, depth=4).eval(), torch.randn(2, 1, 16, 16)
    assert model(images).shape == (2, 3) and torch.equal(evit(model, 1.0)(images), model(images))
    assert not torch.allclose(evit(model, 0.5)(images), model(images))


@pytest.mark.long
def test_dropped_patches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evit_experiment, "RATES", (0.5,))
    monkeypatch.setattr(evit_experiment, "ROUNDS", 1)
    few = ["--data", "digits", "--limit", "64", "--epochs", "1", "--images", "50", "--output", str(tmp_path)]
    assert main(["reproduce", "evit", *few]) == 0
    (rows,) = json.loads((tmp_path / "evit-digits" / "results.json").read_text())["tables"].values()
    assert [row["keep rate"] for row in rows] == ["1", "0.5, fused", "0.5, dropped"]
    host, fused, dropped = (row["multiplications, millions"] for row in rows)
    assert dropped < fused < 0.75 * host
    assert all(0 <= row["test %"] <= 100 and row["images a second"] > 0 for row in rows)


def test_times_of_neighborhood_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighborhood, "SIZES", {1: ((40,), (3, 5)), 2: ((8, 8), (3,))})
    monkeypatch.setattr(neighborhood, "ROUNDS", 1)
    assert main(["reproduce", "neighborhood", "--output", str(tmp_path)]) == 0
    times, gains = json.loads((tmp_path / "neighborhood" / "results.json").read_text())["tables"].values()
    assert [row["window"] for row in times] == [3, 5, 3]
    assert len(gains) == (4 if library.missing is None else 2)
    first = times[2]["windows copied, ms"] / times[2]["products of tiles, ms"]
    assert gains[-1]["reported %"] == (581 if library.missing is None else 272)
    assert any(row["faster by %"] == pytest.approx(100 * (first - 1)) for row in gains)
