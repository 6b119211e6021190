"""Words of a text: what merges gain by three criteria, and the search for settings of word vectors."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from statistics import mean
from typing import Any

import torch

from mereo.data import TokenWindows
from mereo.data.subwords import METHODS, SubwordEncoder, log_likelihood_of, merge_scores
from papers.probabilistic_optimisation.cross_entropy import (
    Setting,
    cross_entropy_search,
    numbered,
    ranking,
    train_vectors,
)

WORKED = {"hug": 10, "pug": 5, "pun": 12, "bun": 4, "hugs": 5}
KNOWN, STEPS = 500, 200
"""Different words that have a vector, and steps of each training."""
SAMPLES, ELITE, ROUNDS = 10, 0.2, 10
"""Of the cross-entropy method."""


def words_of(text: TokenWindows) -> list[str]:
    """The words of a text, letters only, in order."""
    return re.findall("[a-z]+", text.content.decode("latin-1").lower())


def worked_merges() -> list[dict[str, Any]]:
    """What each pair of five words scores as the first merge, by each criterion."""
    words = {word: tuple(word) for word in WORKED}
    scores = {method: merge_scores(words, WORKED, method) for method in METHODS}
    ranked = sorted(scores["likelihood"], key=lambda pair: -scores["likelihood"][pair])
    return [
        {
            "pair": "".join(pair),
            "count (bpe)": int(scores["bpe"][pair]),
            "wordpiece": scores["wordpiece"][pair],
            "gain of L": scores["likelihood"][pair],
        }
        for pair in ranked
    ]


def greedy_and_best() -> list[dict[str, Any]]:
    """L of the five words by greedy merges and by the best set of substrings."""
    first = len({character for word in WORKED for character in word})
    rows = []
    for size in range(first, first + 4):
        row: dict[str, Any] = {"units": size}
        for method in METHODS:
            row[method] = log_likelihood_of(SubwordEncoder.fit(WORKED, size, method).units)
        rows.append({**row, "best": log_likelihood_of(SubwordEncoder.best(WORKED, size).units)})
    return rows


def gains_on_text(train: list[str], test: list[str], words: int, vocabulary: int) -> list[dict[str, Any]]:
    """L, and bits a character and characters a unit of frequent words, by each criterion, and by characters alone."""
    counts = dict(Counter(train).most_common(words))
    held = {word: count for word, count in Counter(test).items() if word in counts}
    characters = len({character for word in counts for character in word})
    rows = []
    for method in ("characters", *METHODS):
        size = characters if method == "characters" else vocabulary
        encoder = SubwordEncoder.fit(counts, size, "bpe" if method == "characters" else method)
        parts = sum(count * len(encoder.encode(word)) for word, count in held.items())
        letters = sum(count * len(word) for word, count in held.items())
        rows.append(
            {
                "criterion": method,
                "units": size,
                "L of a word": encoder.log_likelihood(counts) / sum(counts.values()),
                "bits a character, held out": -encoder.log_likelihood(held) / letters / math.log(2),
                "characters a unit, held out": letters / parts,
            }
        )
    return rows


def search_word_vectors(
    train: list[str],
    test: list[str],
    space: Mapping[str, tuple[Any, ...]],
    searches: int,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Searches by the cross-entropy method and random draws of the same number, by the scores of all settings."""
    text = numbered(train, train, KNOWN)
    held = numbered(test, train, KNOWN)

    @cache
    def score(setting: Setting) -> float:
        return ranking(train_vectors(text, setting, STEPS), held)

    everything = list(itertools.product(*space.values()))
    for number, setting in enumerate(everything):
        say(f"word vectors {number + 1} of {len(everything)}, {setting}: {score(setting):.4f}")
    ordered = sorted(everything, key=score, reverse=True)
    places: dict[str, list[int]] = {"cross-entropy method": [], "at random": []}
    tried: list[int] = []
    for seed in range(searches):
        asked = set[Setting]()

        def noted(setting: Setting, into: set[Setting] = asked) -> float:
            into.add(setting)
            return score(setting)

        best, _ = cross_entropy_search(noted, space, samples=SAMPLES, elite=ELITE, rounds=ROUNDS, seed=seed)
        draws = torch.Generator().manual_seed(seed)
        drawn = torch.randperm(len(everything), generator=draws)[: len(asked)].tolist()
        chosen = max((everything[place] for place in drawn), key=score)
        tried.append(len(asked))
        for name, found in zip(places, (best, chosen), strict=True):
            places[name].append(ordered.index(found) + 1)
    return [
        {
            "search": name,
            "settings trained": mean(tried),
            "best setting found %": 100 * mean(place == 1 for place in found),
            "mean place": mean(found),
            "share ranked right": mean(score(ordered[place - 1]) for place in found),
        }
        for name, found in places.items()
    ] + [
        {
            "search": "all: " + ", ".join(f"{name} {value}" for name, value in zip(space, ordered[0], strict=True)),
            "settings trained": len(everything),
            "best setting found %": 100.0,
            "mean place": 1,
            "share ranked right": score(ordered[0]),
        }
    ]
