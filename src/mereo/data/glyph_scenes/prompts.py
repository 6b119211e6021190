"""Prompts such as "a red square left of a blue star": words, tokens, and what a prompt states of each glyph.

    prompt = glyph {connector glyph},   glyph = [colour] shape [top | bottom] [left | right]

A connector is "and", or where the glyph before it stands of the glyph behind it: "left of", "right of", "above",
"below". Both then share a row or a column.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Tensor

from mereo.errors import UsageError, unknown

COLOURS = {
    "red": (0.85, 0.1, 0.1), "green": (0.1, 0.6, 0.15), "blue": (0.1, 0.25, 0.9), "yellow": (0.95, 0.8, 0.05),
    "purple": (0.6, 0.15, 0.75), "black": (0.05, 0.05, 0.05),
}  # fmt: skip
SHAPES = ("square", "circle", "triangle", "star", "cross", "ring")
KINDS = len(COLOURS) * len(SHAPES)
"""Glyphs that differ: kind = colour + 6 shape."""
ROWS, COLUMNS = ("top", "bottom"), ("left", "right")
RELATIONS = ("left-of", "right-of", "above", "below")
PAD, START = 0, 1
VOCABULARY = ("<pad>", "<start>", *COLOURS, *SHAPES, *ROWS, *COLUMNS, *RELATIONS, "and")
NUMBER = {word: number for number, word in enumerate(VOCABULARY)}
MOST, LENGTH = 3, 16
"""Glyphs of a prompt, and tokens of a prompt with the start."""
_FILLERS = {"a", "an", "the", "at", "in", "on", "to", "of", "with", "corner", "side", "is", "photo"}


@dataclass(frozen=True)
class Named:
    """A glyph that a prompt names.

    Attributes:
        colour, shape: in words; None for any colour.
        row, column: 0 or 1 where stated, None for any.
        relation: where it stands of the next glyph, one of RELATIONS; None for anywhere.
    """

    colour: str | None
    shape: str
    row: int | None = None
    column: int | None = None
    relation: str | None = None


def words_of(prompt: str, concepts: Sequence[str] = ()) -> list[str]:
    """The words of a prompt that have a token, in order.

    Args:
        concepts: words beyond VOCABULARY.

    Raises:
        UsageError: for an unknown word, and for more words than a prompt may have.
    """
    text = re.sub(r"\b(left|right) of\b", r"\1_of", re.sub(r"[-,.]", " ", prompt.lower()))
    words = [word.replace("_", "-") for word in text.split() if word not in _FILLERS]
    for word in words:
        if word not in concepts and NUMBER.get(word, PAD) <= START:
            raise unknown("word of a prompt", word, [*VOCABULARY[START + 1 :], *concepts])
    if len(words) >= LENGTH:
        raise UsageError(f"prompt is {prompt!r}, of {len(words)} words; give at most {LENGTH - 1}.")
    return words


def encode(prompts: Sequence[str], concepts: Sequence[str] = ()) -> Tensor:
    """Tokens of prompts, the start first and padded: int64 (prompts, LENGTH)."""
    numbers = NUMBER | {word: len(VOCABULARY) + place for place, word in enumerate(concepts)}
    rows = [[START, *(numbers[word] for word in words_of(prompt, concepts))] for prompt in prompts]
    return torch.tensor([row + [PAD] * (LENGTH - len(row)) for row in rows], dtype=torch.int64).view(-1, LENGTH)


def decode(tokens: Tensor, concepts: Sequence[str] = ()) -> list[str]:
    """Prompts of tokens, int64 (prompts, length), as a sentence each."""
    known = (*VOCABULARY, *concepts)
    prompts = []
    for row in tokens.tolist():
        words = [known[token] for token in row if token > START]
        before = ["", *words]
        text = " ".join(
            f"a {word}" if word in COLOURS or (word in (*SHAPES, *concepts) and last not in COLOURS) else word
            for last, word in zip(before, words, strict=False)
        )
        prompts.append(text.replace("-of", " of"))
    return prompts


def understand(prompt: str) -> list[Named]:
    """What a prompt states of each glyph; UsageError for a prompt that is no sentence of the grammar."""
    words, glyphs = words_of(prompt), list[Named]()
    hint = "write 'a red square left of a blue star', or 'a red square top left and a blue star bottom'"
    while words:
        colour = words.pop(0) if words[0] in COLOURS else None
        if not words or words[0] not in SHAPES:
            raise UsageError(f"prompt is {prompt!r}, without a shape at {' '.join(words[:1])!r}; {hint}.")
        shape = words.pop(0)
        row = ROWS.index(words.pop(0)) if words and words[0] in ROWS else None
        column = COLUMNS.index(words.pop(0)) if words and words[0] in COLUMNS else None
        connector = words.pop(0) if words else None
        if (connector is not None and (connector not in (*RELATIONS, "and") or not words)) or len(glyphs) == MOST:
            raise UsageError(f"prompt is {prompt!r}, which is not understood from {connector!r} on; {hint}.")
        glyphs.append(Named(colour, shape, row, column, connector if connector in RELATIONS else None))
    if not glyphs:
        raise UsageError(f"prompt is {prompt!r}, which names no glyph; {hint}.")
    return glyphs


def placements(glyphs: Sequence[Named]) -> list[tuple[int, ...]]:
    """The quarters in which the glyphs may stand: 0 top left, 1 top right, 2 bottom left, 3 bottom right."""
    return [places for places in permutations(range(4), len(glyphs)) if _agrees(glyphs, places)]


def _agrees(glyphs: Sequence[Named], places: Sequence[int]) -> bool:
    for glyph, place in zip(glyphs, places, strict=True):
        if glyph.row not in (None, place // 2) or glyph.column not in (None, place % 2):
            return False
    wanted = {"left-of": 1, "right-of": -1, "above": 2, "below": -2}  # to the quarter of the next glyph
    for glyph, place, other in zip(glyphs, places, places[1:], strict=False):
        if glyph.relation is None:
            continue
        aligned = place // 2 == other // 2 if glyph.relation.endswith("of") else place % 2 == other % 2
        if not aligned or other - place != wanted[glyph.relation]:
            return False
    return True


def is_glyph(kind: int, glyph: Named) -> bool:
    """Whether a kind of glyph, -1 for none, is one that was named."""
    right = kind >= 0 and SHAPES[kind // len(COLOURS)] == glyph.shape
    return right and glyph.colour in (None, [*COLOURS][kind % len(COLOURS)])
