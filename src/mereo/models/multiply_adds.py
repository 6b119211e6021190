"""Multiply-adds of one input of each preset: a table in the package, which `make counts` writes.

Counting all presets takes minutes, so the list of networks reads the table. A network that is not in it, such as one of
your own, is counted when it is listed, if it is small.
"""

import json
from functools import cache
from pathlib import Path

import torch

from mereo.core.operations import forward_operations
from mereo.models.registry import MODELS, outline

TABLE = Path(__file__).with_name("multiply_adds.json")
LARGEST = 5_000_000
"""Parameters up to which a network that is not in the table is counted."""


def count_multiply_adds(name: str) -> int:
    """The multiply-adds of a forward pass of one input: products, convolutions and attention, from shapes alone."""
    model = outline(name)
    return forward_operations(model, torch.zeros_like(model.example_inputs(1))) // 2


@cache
def stored_counts() -> dict[str, int]:
    """The table: the multiply-adds by the name of the preset."""
    return {str(name): int(count) for name, count in json.loads(TABLE.read_text()).items()}


def multiply_adds(name: str) -> int | None:
    """The multiply-adds of a preset; None if its values decide them, or if it is large and not in the table."""
    entry = MODELS[name]
    if not entry.module.counted_from_shapes:
        return None
    if (stored := stored_counts().get(name)) is not None:
        return stored
    if entry.parameters > LARGEST:
        return None
    try:
        return count_multiply_adds(name)
    except Exception:  # a network of one's own may need values, and may raise anything
        return None
