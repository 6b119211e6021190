"""Multi-query associative recall (MQAR): pairs of keys and values, then keys alone; the answer to a key is its value.

Sequences are generated from a seed, with exact answers. Models of language need such recall; a linear mixer of tokens
recalls more pairs the larger its state is.
"""

from typing import Any

from mereo.data.registry import later, register_dataset
from mereo.errors import UsageError, check_count

PAIRS = {64: 4, 128: 8, 256: 16, 512: 64}
"""The lengths of arXiv:2405.15731, each with its number of pairs."""
HELD_OUT = 3000
"""Sequences of the validation and of the test split."""


def configure(*, length: int = 64, pairs: int = 0, vocab: int = 256, train: int = 20000) -> dict[str, Any]:
    """Options: length of a sequence (64), number of pairs (4, 8, 16 and 64 at the lengths 64, 128, 256 and 512, else a
    sixteenth of the length), size of the vocabulary (256; 8192 in the paper), number of training sequences (20000)."""
    check_count(1, train=train)
    pairs = pairs or PAIRS.get(length, length // 16)
    if not 1 <= pairs <= length // 4:
        raise UsageError(
            f"pairs is {pairs} and length {length}; pairs and queries take 4 tokens each: give 1 to {length // 4}."
        )
    if pairs > vocab // 2 - 1:
        raise UsageError(f"vocab is {vocab} and pairs {pairs}; distinct keys need a vocabulary of {2 * pairs + 2}.")
    splits = {"train": train, "validation": HELD_OUT, "test": HELD_OUT}
    made = later("mereo.data.recall:load_sequences", length=length, pairs=pairs, vocab=vocab, splits=splits)
    return {"load": made, "splits": splits, "num_classes": vocab, "network_arguments": {"context": length}}


register_dataset(
    "mqar",
    summary="4 pairs of a key and a value, then each key again, asking for its value; generated when needed",
    source="Arora et al., arXiv:2312.04927; the lengths of arXiv:2405.15731",
    in_chans=1,
    size=None,
    augment=(),
    fields=("tokens", "labels"),
    configure=configure,
    **configure(),
)
