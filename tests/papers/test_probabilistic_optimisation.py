"""The cross-entropy method, word vectors, and attention to random blocks in its two limits."""

import itertools
from statistics import mean

import pytest
import torch

from papers.probabilistic_optimisation.cross_entropy import (
    Setting,
    cross_entropy_search,
    numbered,
    pairs_within,
    ranking,
    train_vectors,
)
from papers.probabilistic_optimisation.text_attention import dropped
from papers.probabilistic_optimisation.words import greedy_and_best, worked_merges


def test_the_best_of_a_separable_score_is_found_in_ten_rounds_with_every_seed() -> None:
    space = {"a": (0, 1, 2, 3), "b": (0, 1, 2, 3), "c": (0, 1, 2, 3)}

    def score(setting: Setting) -> float:
        return -float(sum((value - best) ** 2 for value, best in zip(setting, (2, 0, 3), strict=True)))

    histories = []
    for seed in range(20):
        best, history = cross_entropy_search(score, space, rounds=9, seed=seed)
        assert best == (2, 0, 3)
        histories.append(history)
    # The mean of the elite over all seeds does not fall; a search that ended keeps its last one.
    means = [mean(each[min(number, len(each) - 1)] for each in histories) for number in range(9)]
    assert all(after >= before - 1e-9 for before, after in itertools.pairwise(means))
    assert means[-1] > -0.01


def test_without_smoothing_one_elite_setting_is_all_that_is_left() -> None:
    asked: list[Setting] = []

    def score(setting: Setting) -> float:
        asked.append(setting)
        return float(setting[0])

    best, history = cross_entropy_search(score, {"a": range(100)}, samples=3, elite=0.1, smoothing=1.0)
    assert len(asked) == 3 and best == max(asked) and history == [best[0]]


def test_pairs_of_words_and_what_vectors_learn() -> None:
    text = numbered(["b", "a", "a", "c", "a", "b"], ["a", "a", "a", "b", "b", "c"], 2)
    assert text.tolist() == [1, 0, 0, 0, 1]
    found = sorted(map(tuple, pairs_within(text, 2).tolist()))
    expected = [(text[i].item(), text[j].item()) for i in range(5) for j in range(5) if 0 < abs(i - j) <= 2]
    assert found == sorted(expected)
    # Words 0, 1 and words 2, 3 stand beside each other in halves of the text.
    draws = torch.Generator().manual_seed(0)
    text = torch.cat([torch.randint(2, (200,), generator=draws), 2 + torch.randint(2, (200,), generator=draws)])
    untrained, trained = (ranking(train_vectors(text, (2, 4, 2, 0.05), steps, 128), text) for steps in (0, 40))
    assert untrained == 0.5 and trained > 0.65


def test_worked_merges_and_the_gap_to_the_best_vocabulary() -> None:
    rows = {row["pair"]: row for row in worked_merges()}
    assert rows["ug"]["count (bpe)"] == 20 and rows["gs"]["wordpiece"] == pytest.approx(0.05)
    gains = {"ug": 28.02, "pu": 22.96, "un": 21.36, "hu": 19.80, "gs": 9.23}
    assert {pair: round(rows[pair]["gain of L"], 2) for pair in gains} == gains
    for row in greedy_and_best():
        assert row["best"] >= max(row["likelihood"], row["bpe"], row["wordpiece"]) - 1e-9


def test_all_blocks_are_attention_and_rescaling_lowers_the_bias() -> None:
    torch.manual_seed(0)
    heads = torch.randn(1, 1, 64, 4), torch.randn(1, 1, 64, 4), torch.randn(1, 1, 64, 4).cumsum(2) / 8
    whole = dropped(heads, "power", 0.0, 3, rescale=True)
    assert whole["blocks %"] == pytest.approx(100) and max(whole["bias %"], whole["deviation %"]) < 1e-4
    drawn, rescaled = (dropped(heads, "power", 1.0, 200, rescale=each) for each in (False, True))
    # The expected share of the 10 blocks below the diagonal and on it: (4 + 3 / 2 + 2 / 3 + 1 / 4) / 10.
    assert drawn["blocks %"] == rescaled["blocks %"] == pytest.approx(64.2, abs=4)
    assert rescaled["bias %"] < 0.9 * drawn["bias %"]
