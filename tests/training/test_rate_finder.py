"""The rate finder: averages, where the search ends, and the command."""

import math

import pytest

from mereo.cli.main import main
from mereo.training.rate_finder import HIGHEST, LOWEST, Rates, find_rate, smoothed


def test_averages_by_a_slow_loop():
    losses = [4.0, 2.0, 3.0, 1.0]
    expected = []
    for n in range(1, 5):
        weights = [0.1 * 0.9 ** (n - i) for i in range(1, n + 1)]
        expected.append(sum(w * x for w, x in zip(weights, losses, strict=False)) / sum(weights))
    assert smoothed(losses) == pytest.approx(expected) and smoothed([]) == []


def test_the_suggestion_is_a_tenth_of_the_rate_with_the_lowest_average():
    found = Rates((1e-3, 1.234e-2, 1e-1), (3.0, 1.0, 9.0), (3.0, 2.0, 9.0))
    assert found.lowest == 1.234e-2 and found.suggested == 1.2e-3


def test_rates_rise_until_the_loss_has_grown(small_config, silent):
    found = find_rate(small_config(loss="cross_entropy"), silent, steps=12)
    assert 2 <= len(found.rates) <= 12 and found.rates[0] == LOWEST and found.rates[-1] <= HIGHEST * 1.001
    ratios = [b / a for a, b in zip(found.rates, found.rates[1:], strict=False)]
    assert ratios == pytest.approx([1e6 ** (1 / 11)] * len(ratios))
    assert all(map(math.isfinite, found.losses))
    assert find_rate(small_config(loss="cross_entropy"), silent, steps=12) == found


def test_the_command_prints_a_rate_and_leaves_no_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(find_rate, "__defaults__", (None, 4))
    words = ["--model-args", "channels=[4,8,8]", "patch_size=2", "--img-size", "16", "--limit", "64"]
    assert main(["train", *words, "--batch-size", "16", "--device", "cpu", "--find-lr"]) == 0
    out = capsys.readouterr().out
    assert "suggested: --lr" in out
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["mspcaps_tiny-digits-rates.png"]
