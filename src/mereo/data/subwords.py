"""Units of words between characters and whole words, found by merging pairs.

Source: Li 2024, arXiv:2410.18441 (the likelihood of a vocabulary); Sennrich, Haddow, Birch 2016, arXiv:1508.07909 (byte
pair encoding); WordPiece: Schuster, Nakajima 2012.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import combinations, pairwise
from math import comb, inf, log
from typing import Self

from mereo.errors import UsageError, check_choice, check_count

METHODS = ("likelihood", "bpe", "wordpiece")
MOST_SETS, MOST_ROUNDS = 100_000, 100
"""Sets of units that are tried exhaustively, and rounds of segmenting and counting."""

Parts = tuple[str, ...]
Segmented = dict[str, Parts]


def log_likelihood_of(units: Mapping[str, float]) -> float:
    """L = sum_u c(u) log(c(u) / C), C = sum_u c(u), of the counts c of units."""
    total = sum(units.values())
    return sum(count * log(count / total) for count in units.values() if count)


def _merged(parts: Parts, pair: tuple[str, str]) -> Parts:
    """Parts with every occurrence of a pair joined, from the left."""
    joined, place = list[str](), 0
    while place < len(parts):
        here = parts[place : place + 2] == pair
        joined.append("".join(pair) if here else parts[place])
        place += 1 + here
    return tuple(joined)


def _counted(words: Segmented, counts: Mapping[str, int]) -> Counter[str]:
    found: Counter[str] = Counter()
    for word, parts in words.items():
        for part in parts:
            found[part] += counts[word]
    return found


def merge_scores(words: Segmented, counts: Mapping[str, int], method: str) -> dict[tuple[str, str], float]:
    """What each pair of neighbouring units scores; the pair of the highest score is merged.

    bpe: c(ab),   wordpiece: c(ab) / (c(a) c(b)),   likelihood: L after the merge - L before it

    Args:
        words: the parts of each word.
        counts: how often each word occurs.
    """
    check_choice("method", method, METHODS)
    units, pairs, holders = _counted(words, counts), Counter[tuple[str, str]](), dict[tuple[str, str], set[str]]()
    for word, parts in words.items():
        for pair in pairwise(parts):
            pairs[pair] += counts[word]
            holders.setdefault(pair, set()).add(word)
    if method == "bpe":
        return {pair: float(count) for pair, count in pairs.items()}
    if method == "wordpiece":
        return {(a, b): count / (units[a] * units[b]) for (a, b), count in pairs.items()}
    before, scores = log_likelihood_of(units), {}
    for pair, holding in holders.items():
        changed = units.copy()
        for word in holding:
            changed.subtract({part: counts[word] * n for part, n in Counter(words[word]).items()})
            changed.update({part: counts[word] * n for part, n in Counter(_merged(words[word], pair)).items()})
        scores[pair] = log_likelihood_of(changed) - before
    return scores


def segment(word: str, logs: Mapping[str, float]) -> Parts:
    """The parts of a word with the largest sum of log probabilities, by dynamic programming; () if there are none."""
    longest = max(map(len, logs), default=0)
    best: list[tuple[float, int]] = [(0.0, 0)]
    for end in range(1, len(word) + 1):
        starts = range(max(end - longest, 0), end)
        best.append(max((best[start][0] + logs.get(word[start:end], -inf), start) for start in starts))
    if best[-1][0] == -inf:
        return ()
    parts, end = list[str](), len(word)
    while end:
        start = best[end][1]
        parts.append(word[start:end])
        end = start
    return tuple(reversed(parts))


def settle(vocabulary: Iterable[str], counts: Mapping[str, int]) -> Counter[str]:
    """Counts of the units of a vocabulary, once segmenting by them and counting again changes nothing.

    Neither half lowers L. The start counts every occurrence of a unit in the words.
    """
    known, units = sorted(vocabulary), Counter[str]()
    for word, count in counts.items():
        for unit in known:
            starts = sum(word.startswith(unit, place) for place in range(len(word)))
            units[unit] += count * starts
    for _ in range(MOST_ROUNDS):
        total = sum(units.values())
        logs = {unit: log(count / total) for unit, count in units.items() if count}
        found = _counted({word: segment(word, logs) for word in counts}, counts)
        if found == +units:
            break
        units = found
    return +units


class SubwordEncoder:
    """Write words as units of a vocabulary, so that the product of their probabilities is largest.

    Args:
        units: counts; a unit of the vocabulary that was never used has the count 0 and the probability 1 / (2 C).
    """

    def __init__(self, units: Mapping[str, float]) -> None:
        if not units or any(not unit or count < 0 for unit, count in units.items()):
            raise UsageError(f"units are {dict(units)!r}; give at least one, none empty, with counts of at least 0.")
        self.units = dict(units)
        total = sum(units.values()) or 1.0
        self.logs = {unit: log((count or 0.5) / total) for unit, count in units.items()}

    @classmethod
    def fit(cls, counts: Mapping[str, int], vocab_size: int, method: str = "likelihood") -> Self:
        """Merge pairs of neighbouring units until there are `vocab_size` of them, or none is left to merge.

        Args:
            counts: how often each word occurs.
            vocab_size: number of units, all characters included.
            method: "likelihood" merges the pair that raises L most, "bpe" the most frequent one, and "wordpiece" the
                one that is most frequent compared with its halves; see `merge_scores`.

        Of equal scores the first pair in alphabetical order is merged. Pairs are merged up to `vocab_size` even where
        every merge lowers L.

        Reference: arXiv:2410.18441; only its abstract was available, so that the greedy rule is ours.
        """
        check_choice("method", method, METHODS)
        characters = _characters(counts)
        check_count(len(characters), vocab_size=vocab_size)
        words: Segmented = {word: tuple(word) for word in counts}
        vocabulary = set(characters)
        while len(vocabulary) < vocab_size:
            scores = merge_scores(words, counts, method)
            if not scores:
                break
            pair = min(scores, key=lambda each: (-scores[each], each))
            vocabulary.add("".join(pair))
            words = {word: _merged(parts, pair) for word, parts in words.items()}
        return cls(dict.fromkeys(sorted(vocabulary), 0) | settle(vocabulary, counts))

    @classmethod
    def best(cls, counts: Mapping[str, int], vocab_size: int) -> Self:
        """The vocabulary of the highest likelihood, by trying every set of substrings: for few short words only."""
        characters = _characters(counts)
        check_count(len(characters), vocab_size=vocab_size)
        longer = sorted({w[i:j] for w in counts for i in range(len(w)) for j in range(i + 2, len(w) + 1)})
        added = min(vocab_size - len(characters), len(longer))
        if comb(len(longer), added) > MOST_SETS:
            raise UsageError(
                f"vocab_size is {vocab_size}; there are {comb(len(longer), added):,} sets of {added} substrings; give a"
                f" size with at most {MOST_SETS:,}, or use fit."
            )
        sets = ((*characters, *more) for more in combinations(longer, added))
        settled = ((chosen, settle(chosen, counts)) for chosen in sets)
        chosen, units = max(settled, key=lambda each: log_likelihood_of(each[1]))
        return cls(dict.fromkeys(chosen, 0) | units)

    def encode(self, word: str) -> list[str]:
        """The units of a word."""
        parts = segment(word, self.logs)
        if word and not parts:
            raise UsageError(f"word is {word!r}; no units of the vocabulary make it.")
        return list(parts)

    def log_likelihood(self, counts: Mapping[str, int]) -> float:
        """The sum of log probabilities of the units of all words; for the words of `fit` this is L."""
        return sum(count * sum(self.logs[unit] for unit in self.encode(word)) for word, count in counts.items())


def _characters(counts: Mapping[str, int]) -> list[str]:
    for word, count in counts.items():
        if not word or count < 1:
            raise UsageError(f"counts has {word!r}: {count!r}; words must not be empty, nor counts below 1.")
    if not counts:
        raise UsageError("counts is empty; give words and how often each occurs.")
    return sorted({character for word in counts for character in word})
