"""One attention layer with random features against a random MLP: the ordering, the targets and the intervals."""

import math
from pathlib import Path

import pytest
import torch

from papers.common.settings import Settings
from papers.single_attention_layer import random_features
from papers.single_attention_layer.random_features import TARGETS, answers, draw, errors_of, interval


def test_targets_are_averages_over_keys() -> None:
    torch.manual_seed(0)
    query, keys = draw(3)
    torch.testing.assert_close(keys.norm(dim=-1), torch.ones(3, 8, dtype=torch.float64))
    found = answers(query, keys)
    for sample in range(3):
        sums = [0.0] * 4
        for key in keys[sample]:
            along, fit = key[0].item(), sum(a * b for a, b in zip(query[sample].tolist(), key.tolist(), strict=True))
            for place, value in enumerate((along**2, along**4, fit * along, fit**3 * along)):
                sums[place] += value / 8
        assert found[sample].tolist() == pytest.approx(sums)


@pytest.mark.long
def test_attention_learns_an_average_that_the_mlp_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_features, "SAMPLES", (400,))
    errors = errors_of(0)
    square = next(iter(TARGETS))
    assert errors[square, 400, "RFA"] < 0.2 and errors[square, 400, "RFMLP"] > 0.9
    for target in TARGETS:
        assert errors[target, 400, "RFA"] < errors[target, 400, "RFMLP"]
        # Infinitely many heads do a little better than two hundred.
        assert -0.02 < errors[target, 400, "RFA"] - errors[target, 400, "RFA, all heads"] < 0.15


def test_intervals() -> None:
    assert interval([2.0]) == (2, None)
    middle, half = interval([1.0, 2.0, 4.0, 5.0])
    # Student's t of three degrees of freedom is 3.182 at 97.5 %.
    assert middle == 3 and half == pytest.approx(3.18245 * math.sqrt(10 / 3) / 2, rel=1e-5)


def test_the_tables_hold_every_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SAMPLES": (20, 40), "HELD_OUT": 50, "HEADS": 12}.items():
        monkeypatch.setattr(random_features, name, value)
    results = random_features.run(Settings(tmp_path, seeds=2, say=lambda line: None))
    errors, gains = results["tables"].values()
    alone = [errors_of(seed) for seed in range(2)]
    for row, gain in zip(errors, gains, strict=True):
        key = row["target"], row["samples"]
        assert row["BRFA"] == pytest.approx(sum(each[*key, "BRFA"] for each in alone) / 2)
        assert gain["BRFA - RFA"] == pytest.approx(row["BRFA"] - row["RFA"]) and row["RFMLP +-"] > 0
    assert (tmp_path / "errors.png").stat().st_size > 10_000
