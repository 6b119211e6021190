"""Match3: is a number in a triple, with one of each of two other groups, that sums to 0 modulo a number?

Single tokens, and pairs of tokens of two groups, are independent of the answer.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from mereo.data.load import Splits, Wanted, limited, made_splits
from mereo.data.recall import IGNORED, LabelledTokens, read_tokens
from mereo.errors import UsageError


def in_triples(tokens: Tensor, modulus: int) -> Tensor:
    """Whether each number of the first of three groups is in a triple: (count, 3, group) -> bool (count, group)."""
    first, second, third = tokens.unbind(1)
    sums = (second[:, :, None] + third[:, None, :]).flatten(1) % modulus
    made = torch.zeros(len(tokens), modulus, dtype=torch.bool).scatter(1, sums, True)
    return made.gather(1, -first % modulus)


def draw_triples(count: int, modulus: int, group: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Uniform numbers in three groups, and whether each of the first group is in a triple.

    i is in a triple if there are j of the second group and k of the third with x_i + x_j + x_k = 0 modulo M.

    Shapes: -> int64 (count, 3 group), bool (count, group).

    Reference: arXiv:2306.02896, Match3, of three groups in place of one.
    """
    tokens = torch.randint(modulus, (count, 3, group), generator=generator)
    return tokens.flatten(1), in_triples(tokens, modulus)


def make_triples(count: int, modulus: int, group: int, seed: int) -> LabelledTokens:
    """Sequences with the asked group last, so that causal networks have read the others: 1 in a triple, 0 in none."""
    tokens, found = draw_triples(count, modulus, group, torch.Generator().manual_seed(seed))
    return LabelledTokens(tokens.roll(-group, 1), _labels(tokens, found))


def _labels(tokens: Tensor, found: Tensor) -> Tensor:
    labels = torch.full_like(tokens, IGNORED)
    labels[:, -found.shape[1] :] = found.long()
    return labels


def read_triples(text: str, vocab: int) -> tuple[Tensor, Tensor]:
    """The tokens of a sequence such as "1 2 3 4 5 6 7 8 9", the asked group last, and the label of each place.

    Shapes: int64 (1, length) each.

    Raises:
        UsageError: for other words, tokens that are not in the vocabulary, and groups of different sizes.
    """
    example = "such as '1 2 3 4 5 6 7 8 9'"
    tokens = read_tokens(text, vocab, example)
    if tokens.shape[1] % 3:
        raise UsageError(
            f"the sequence {text[:40]!r} has {tokens.shape[1]} numbers; give three equal groups, {example}."
        )
    group = tokens.shape[1] // 3
    return tokens, _labels(tokens, in_triples(tokens.roll(group, 1).unflatten(1, (3, group)), vocab))


def load_triples(wanted: Wanted, modulus: int, group: int, splits: Mapping[str, int]) -> Splits:
    """The splits of made sequences."""
    sizes = limited(splits, wanted.limit)
    return made_splits({
        split: make_triples(sizes[split], modulus, group, number) for number, split in enumerate(sizes)
    })  # fmt: skip
