"""Match3: three groups of numbers; is a number of the last group in a triple with one of each other that sums to 0?

Sequences are generated from a seed, with exact answers. Neither single numbers nor pairs say anything about the answer:
attention to pairs finds it in one layer.
"""

from typing import Any

from mereo.data.registry import later, register_dataset
from mereo.errors import UsageError, check_count

HELD_OUT = 2000
"""Sequences of the validation and of the test split."""
MOST_NUMBERS, MOST_OF_A_GROUP = 4096, 64
"""Largest options, so that the sums of all pairs fit memory."""


def configure(*, modulus: int = 13, group: int = 3, train: int = 20000) -> dict[str, Any]:
    """Options: the sum is taken modulo this number (13), numbers of each group (3), number of training sequences
    (20000)."""
    check_count(1, train=train)
    if not 2 <= modulus <= MOST_NUMBERS or not 1 <= group <= MOST_OF_A_GROUP:
        raise UsageError(
            f"modulus is {modulus} and group {group}; give a modulus of 2 to {MOST_NUMBERS:,} and a group of 1 to"
            f" {MOST_OF_A_GROUP}."
        )
    splits = {"train": train, "validation": HELD_OUT, "test": HELD_OUT}
    made = later("mereo.data.match3:load_triples", modulus=modulus, group=group, splits=splits)
    return {"load": made, "splits": splits, "num_classes": modulus, "network_arguments": {"context": 3 * group}}


register_dataset(
    "match3",
    summary="three groups of 3 numbers; 1 at a number of the last that sums with one of each other to 0 mod 13, else 0",
    source="Sanford, Hsu and Telgarsky, arXiv:2306.02896 (Match3), of three groups in place of one",
    in_chans=1,
    size=None,
    augment=(),
    fields=("tokens", "labels"),
    configure=configure,
    task_options={"problem": "triples"},
    **configure(),
)
