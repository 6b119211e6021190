"""Multi-query associative recall: sequences of keys with values, then keys alone, whose values are the answers.

Tokens are whole numbers below a vocabulary of V: 0 fills, 1 .. V / 2 - 1 are keys and V / 2 .. V - 1 values.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mereo.data.batch import Batch
from mereo.data.images import BatchOptions, identity
from mereo.data.load import Splits, Wanted, limited, made_splits
from mereo.data.tensor_set import TensorSet
from mereo.errors import UsageError

IGNORED = -1
"""The label of a place without an answer."""
POWER = 0.01
"""a of the distribution of gaps."""
_AT_ONCE = 2**24


class LabelledTokens(TensorSet):
    """Sequences of tokens with a label at some places.

    Args:
        tokens, labels: of all sequences; -1 is no label.

    Shapes: int64 (sequences, length) each.
    """

    class_names: tuple[str, ...] = ()
    serves = "tokens"
    of_samples = ("tokens", "labels")

    def __init__(self, tokens: Tensor, labels: Tensor) -> None:
        if tokens.dim() != 2 or labels.shape != tokens.shape:
            given = f"tokens are {tuple(tokens.shape)} and labels {tuple(labels.shape)}"
            raise UsageError(f"{given}; both must be (sequences, length).")
        self.tokens, self.labels = tokens, labels

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(1, 1, tokens of a sequence): what a sample takes in memory."""
        return 1, 1, self.tokens.shape[1]

    def describe(self) -> dict[str, Any]:
        """The identity of the data as plain values; it changes if any token or label changes."""
        return identity(len(self), self.tokens.shape[1:], self.tokens, self.labels)

    def make_batch(self, indices: Tensor, options: BatchOptions) -> Batch:
        """The sequences at `indices`; there are no images to crop."""
        chosen = indices[options.share].to(self.tokens.device)
        batch = Batch(tokens=self.tokens[chosen], labels=self.labels[chosen])
        return batch.to(options.device or self.tokens.device)


def read_tokens(text: str, vocab: int, example: str) -> Tensor:
    """Whole numbers of a vocabulary: int64 (1, length); UsageError, with the example, for anything else."""
    words = text.replace(",", " ").split()
    if not words or not all(word.isdecimal() and int(word) < vocab for word in words):
        raise UsageError(f"the sequence is {text[:40]!r}; give whole numbers from 0 to {vocab - 1}, {example}.")
    return torch.tensor([[int(word) for word in words]])


def read_query(text: str, vocab: int) -> tuple[Tensor, Tensor]:
    """The tokens of a sequence written as whole numbers, such as "3 140 7 150 3", and the label of each place.

    Shapes: int64 (1, length) each.

    Raises:
        UsageError: for other words, tokens that are not in the vocabulary, no pair or no query, and as for `answers`.
    """
    half = vocab // 2
    example = f"such as '1 {half} 2 {half + 1} 1'"
    tokens = read_tokens(text, vocab, example)
    keys, values = tokens[0, : 2 * (tokens.shape[1] // 2)].unflatten(0, (-1, 2)).unbind(1)
    pairs = int(((keys > 0) & (keys < half) & (values >= half)).long().cumprod(0).sum())
    if not pairs or not bool(tokens[0, 2 * pairs :].any()):
        what = "asks for no key" if pairs else "does not begin with a pair"
        raise UsageError(
            f"the sequence {text[:40]!r} {what}; give pairs of a key (1 to {half - 1}) and a value ({half} to"
            f" {vocab - 1}), then keys of them, {example}."
        )
    return tokens, answers(tokens, pairs)


def answers(tokens: Tensor, pairs: int) -> Tensor:
    """The label of each place: behind the pairs, the value of the key that stands there; -1 elsewhere.

    Args:
        pairs: of a key and its value, with which each sequence begins.

    Shapes: int64 (sequences, length) -> the same.

    Raises:
        UsageError: for too short sequences, a key of 0, which fills, a key that stands twice among the pairs or is
            asked twice, and a query without a pair.
    """
    if tokens.dim() != 2 or not 1 <= pairs <= tokens.shape[1] // 2:
        raise UsageError(
            f"tokens are {tuple(tokens.shape)} and pairs {pairs}; they must be (sequences, 2 pairs or more)."
        )
    keys, values, asked = tokens[:, : 2 * pairs : 2], tokens[:, 1 : 2 * pairs : 2], tokens[:, 2 * pairs :]
    if bool((keys == 0).any()):
        raise UsageError(f"sequence {int((keys == 0).any(1).nonzero()[0])} has the key 0, which fills; give another.")
    for part, where in ((keys, "among the pairs"), (asked, "among the queries")):
        ordered = part.sort(1).values
        again = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] > 0)
        if bool(again.any()):
            row, place = again.nonzero()[0].tolist()
            raise UsageError(f"sequence {row} has the key {ordered[row, place]} twice {where}; give each key once.")
    same = asked.unsqueeze(2) == keys.unsqueeze(1)  # (sequences, places, pairs)
    if bool(((asked > 0) & ~same.any(2)).any()):
        row, place = ((asked > 0) & ~same.any(2)).nonzero()[0].tolist()
        raise UsageError(f"sequence {row} asks for the key {asked[row, place]}, which no pair has; give a key of one.")
    found = values.gather(1, same.long().argmax(2)).masked_fill(~same.any(2), IGNORED)
    return torch.cat((torch.full_like(tokens[:, : 2 * pairs], IGNORED), found), 1)


def gap_shares(length: int, pairs: int) -> Tensor:
    """Probabilities of the gaps between the pairs and a query, in steps of two tokens: float64 ((length - 2 pairs) / 2,).

    p(g) ~ (g + 1)^(a - 1),   a = 0.01
    """  # noqa: E501
    shares = torch.arange(1, (length - 2 * pairs) // 2 + 1, dtype=torch.float64) ** (POWER - 1)
    return shares / shares.sum()


def make_sequences(length: int, pairs: int, vocab: int, seed: int, count: int) -> LabelledTokens:
    """Sequences with distinct keys and values, each key asked once at a gap drawn without replacement; 0 elsewhere."""
    generator = torch.Generator().manual_seed(seed)
    half, shares = vocab // 2, gap_shares(length, pairs)
    parts = []
    for rows in torch.arange(count).split(max(_AT_ONCE // (half * 2), 1)):
        draw = [
            torch.rand(len(rows), most, generator=generator).topk(pairs, 1).indices for most in (half - 1, vocab - half)
        ]
        keys, values = draw[0] + 1, draw[1] + half
        gaps = torch.multinomial(shares.expand(len(rows), -1), pairs, generator=generator)
        queries = torch.zeros(len(rows), length - 2 * pairs, dtype=torch.int64).scatter(1, 2 * gaps, keys)
        parts.append(torch.cat((torch.stack((keys, values), 2).flatten(1), queries), 1))
    tokens = torch.cat(parts)
    labels = torch.cat([answers(part, pairs) for part in tokens.split(4096)])
    return LabelledTokens(tokens, labels)


def load_sequences(wanted: Wanted, length: int, pairs: int, vocab: int, splits: Mapping[str, int]) -> Splits:
    """The splits of made sequences."""
    sizes = limited(splits, wanted.limit)
    return made_splits({
        split: make_sequences(length, pairs, vocab, number, sizes[split]) for number, split in enumerate(sizes)
    })  # fmt: skip
