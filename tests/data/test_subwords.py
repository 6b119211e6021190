"""Sub-word units: worked scores, segmentation against brute force, greedy merges against every vocabulary."""

import math
import random
from itertools import combinations

import pytest

from mereo.data.subwords import METHODS, SubwordEncoder, log_likelihood_of, merge_scores, segment, settle
from mereo.errors import UsageError

COUNTS = {"hug": 10, "pug": 5, "pun": 12, "bun": 4, "hugs": 5}
CHARACTERS = {word: tuple(word) for word in COUNTS}


def test_the_first_merge_of_each_method() -> None:
    units = {"h": 15, "u": 36, "g": 20, "p": 17, "n": 16, "b": 4, "s": 5}
    assert sum(units.values()) == 113 and log_likelihood_of(units) == pytest.approx(-198.534, abs=5e-4)
    pairs = merge_scores(CHARACTERS, COUNTS, "bpe")
    assert max(pairs, key=pairs.__getitem__) == ("u", "g") and pairs["u", "g"] == 20
    pieces = {"".join(pair): score for pair, score in merge_scores(CHARACTERS, COUNTS, "wordpiece").items()}
    assert pieces.pop("gs") == pytest.approx(0.05)
    assert all(score == pytest.approx(0.0278, abs=5e-5) for score in pieces.values())
    gains = {"".join(pair): round(gain, 2) for pair, gain in merge_scores(CHARACTERS, COUNTS, "likelihood").items()}
    expected = {"ug": 28.02, "pu": 22.96, "un": 21.36, "hu": 19.80, "gs": 9.23}
    assert {pair: gains[pair] for pair in expected} == expected and gains.keys() - expected == {"bu"}
    assert max(gains.values()) == 28.02


def test_a_vocabulary_of_each_method() -> None:
    added = {method: {u for u in SubwordEncoder.fit(COUNTS, 9, method).units if len(u) > 1} for method in METHODS}
    assert "ug" in added["bpe"] and "ug" in added["likelihood"] and "gs" in added["wordpiece"]
    assert all(len(units) == 2 for units in added.values())
    # With all merges made, every word is a unit.
    whole = SubwordEncoder.fit(COUNTS, 1000, "bpe")
    assert [whole.encode(word) for word in COUNTS] == [[word] for word in COUNTS]


def test_repeated_letters_are_merged_from_the_left() -> None:
    assert merge_scores({"aaa": ("a", "a", "a")}, {"aaa": 2}, "bpe") == {("a", "a"): 4}
    # Two words of a a a: 6 units a become 2 units aa and 2 units a, which are log 1/2 each.
    (gain,) = merge_scores({"aaa": ("a", "a", "a")}, {"aaa": 2}, "likelihood").values()
    assert gain == pytest.approx(4 * math.log(1 / 2))
    assert "aa" in SubwordEncoder.fit({"aaa": 2}, 2).units


def ways(word: str) -> list[tuple[str, ...]]:
    cuts = [c for n in range(len(word)) for c in combinations(range(1, len(word)), n)]
    return [tuple(word[a:b] for a, b in zip((0, *cut), (*cut, len(word)), strict=True)) for cut in cuts]


def test_segmentation_is_the_best_of_all() -> None:
    draws = random.Random(0)
    for _ in range(50):
        word = "".join(draws.choices("ab", k=7))
        units = {part for way in ways(word) for part in way}
        logs = {unit: -draws.random() * len(unit) ** 0.5 for unit in sorted(units) if draws.random() < 0.6}
        sums = [sum(logs[part] for part in way) for way in ways(word) if logs.keys() >= set(way)]
        found = segment(word, logs)
        if sums:
            assert "".join(found) == word and sum(logs[part] for part in found) == pytest.approx(max(sums))
        else:
            assert found == ()


def test_counting_again_never_lowers_the_likelihood() -> None:
    for added in combinations(["hu", "ug", "pu", "hug", "un"], 2):
        units = settle({*"hugpnbs", *added}, COUNTS)
        total = sum(units.values())
        logs = {unit: math.log(count / total) for unit, count in units.items()}
        again = {word: segment(word, logs) for word in COUNTS}
        found = sum(COUNTS[word] * sum(logs[part] for part in parts) for word, parts in again.items())
        assert found == pytest.approx(log_likelihood_of(units))


@pytest.mark.parametrize("vocab_size", [7, 8, 9, 10])
def test_greedy_merges_against_every_vocabulary(vocab_size: int) -> None:
    best = SubwordEncoder.best(COUNTS, vocab_size).log_likelihood(COUNTS)
    found = {m: SubwordEncoder.fit(COUNTS, vocab_size, m).log_likelihood(COUNTS) for m in METHODS}
    assert all(value <= best + 1e-9 for value in found.values())
    if vocab_size == 7:
        assert all(value == pytest.approx(-198.534, abs=5e-4) for value in (best, *found.values()))
        return
    assert found["likelihood"] > found["wordpiece"]
    # No pair reaches "hug", which the best vocabulary has first.
    assert best > found["likelihood"] + 10
    if vocab_size == 8:
        assert found["likelihood"] == pytest.approx(-198.534 + 28.017, abs=1e-3)


def test_unused_units_and_unknown_words() -> None:
    encoder = SubwordEncoder.fit({"ab": 3}, 3)
    assert encoder.units == {"a": 0, "b": 0, "ab": 3} and encoder.encode("abba") == ["ab", "b", "a"]
    assert encoder.encode("") == [] and encoder.log_likelihood({"ab": 3}) == 0
    with pytest.raises(UsageError, match="'abc'"):
        encoder.encode("abc")


def test_wrong_arguments() -> None:
    for counts in ({}, {"": 2}, {"a": 0}):
        with pytest.raises(UsageError, match="counts"):
            SubwordEncoder.fit(counts, 3)
    with pytest.raises(UsageError, match="vocab_size"):
        SubwordEncoder.fit(COUNTS, 6)
    with pytest.raises(UsageError, match="method"):
        SubwordEncoder.fit(COUNTS, 9, "unigram")
    with pytest.raises(UsageError, match="sets"):
        SubwordEncoder.best({"abcdefghijklmnop": 1}, 30)
    with pytest.raises(UsageError, match="units"):
        SubwordEncoder({})
