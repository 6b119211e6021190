"""Questions in words, and scenes as images of letters.

Source: arXiv:2401.15030; the sentences are the generator's, IBM/gcog.
"""

import functools
from typing import NoReturn

import torch
from torch import Tensor

from mereo.data.questions.world import (
    CELLS,
    COLOURS,
    EXIST,
    GET_COLOUR,
    GET_SHAPE,
    GO,
    PARITY,
    PRODUCT_EVEN,
    PRODUCT_ODD,
    RULE_ROWS,
    SHAPES,
    SIDE,
    SUM_EVEN,
    SUM_ODD,
    Program,
    decode_rules,
)
from mereo.errors import UsageError, check_count

_ENDS = {
    SUM_EVEN: "sum is even", SUM_ODD: "sum is odd", PRODUCT_EVEN: "product is even", PRODUCT_ODD: "product is odd",
}  # fmt: skip
_ASKED = {"color": GET_COLOUR, "colour": GET_COLOUR, "shape": GET_SHAPE, "loc": GO}
RGB = {
    "red": (230, 25, 75), "green": (60, 180, 75), "blue": (0, 130, 200), "yellow": (255, 225, 25),
    "purple": (145, 30, 180), "orange": (245, 130, 48), "white": (255, 255, 255), "pink": (250, 190, 190),
    "cyan": (70, 240, 240), "brown": (170, 110, 40),
}  # fmt: skip
"""The colours, on black."""


def in_words(rule: Tensor) -> list[str]:
    """Programs as sentences, such as "color of current h ?": rows (programs, rows, 8)."""
    program = decode_rules(rule)
    found = []
    for ops, shapes, colours in zip(*(field.tolist() for field in program), strict=True):
        text = _sentence(ops, shapes, colours, 0)
        found.append(text if text.startswith("[") else f"{text} ?")
    return found


def _sentence(ops: list[int], shapes: list[list[int]], colours: list[list[int]], node: int) -> str:
    kind = ops[node]
    objects = [
        " ".join(("current", *([COLOURS[colour - 1]] if colour else []), SHAPES[shape - 1] if shape else "object"))
        for shape, colour in zip(shapes[node], colours[node], strict=True)
        if shape or colour
    ]
    if kind == EXIST:
        own = f"{objects[0]} exist"
    elif kind in PARITY:
        own = f"{(' + ' if kind in (SUM_EVEN, SUM_ODD) else ' * ').join(objects)} {_ENDS[kind]}"
    else:
        own = f"{next(name for name, asked in _ASKED.items() if asked == kind)} of {objects[0]}"
    if 2 * node + 1 >= len(ops) or not ops[2 * node + 1]:
        return own
    then, other = (_sentence(ops, shapes, colours, 2 * node + side) for side in (1, 2))
    return f"[ if {own} , then {then} , else {other} ]"


def read_question(text: str) -> Program:
    """The program of a sentence that `in_words` writes; "current" and the question mark may be left out.

    Raises:
        UsageError: for anything else.
    """

    def refuse(why: str) -> NoReturn:
        raise UsageError(
            f"question is {text[:80]!r}: {why}; write such as 'color of h', 'white a exist', 'red a + blue b sum is"
            " odd' or '[ if red a exist , then loc of blue b , else shape of white object ]'."
        )

    words = text.lower().replace(",", " , ").replace("[", " [ ").replace("]", " ] ").replace("?", " ").split()
    words = [word for word in words if word != "current"]
    nodes: dict[int, tuple[int, list[tuple[int, int]]]] = {}

    def take(*expected: str) -> None:
        for word in expected:
            if not words or words.pop(0) != word:
                refuse(f"{word!r} is missing")

    def selected(part: list[str]) -> tuple[int, int]:
        shape = colour = 0
        for word in part:
            if word in COLOURS and not colour:
                colour = COLOURS.index(word) + 1
            elif word in SHAPES and not shape:
                shape = SHAPES.index(word) + 1
            elif word != "object":
                refuse(f"{word!r} is no colour and no letter, or one too many")
        return shape, colour

    def phrase(node: int) -> None:
        part: list[str] = []
        while words and words[0] not in "[],":
            part.append(words.pop(0))
        kind, objects = 0, part
        if part[:1] and part[0] in _ASKED and part[1:2] == ["of"]:
            kind, objects = _ASKED[part[0]], part[2:]
        elif part[-1:] == ["exist"]:
            kind, objects = EXIST, part[:-1]
        elif (ending := " ".join(part[-3:])) in _ENDS.values():
            kind, objects = next(each for each, end in _ENDS.items() if end == ending), part[:-3]
        if not kind:
            refuse(f"{' '.join(part)!r} asks for nothing")
        joint = "+" if kind in (SUM_EVEN, SUM_ODD) else "*"
        split = objects.index(joint) if joint in objects and kind in PARITY else len(objects)
        chosen = [selected(each) for each in (objects[:split], objects[split + 1 :]) if each]
        needed = {GET_COLOUR: (True, False), GET_SHAPE: (False, True)}.get(kind, (True, True))
        if not chosen or any((shape > 0, colour > 0) != needed for shape, colour in chosen):
            wanted = {GET_COLOUR: "a letter alone", GET_SHAPE: "a colour alone"}.get(kind, "a colour and a letter")
            refuse(f"{' '.join(objects)!r} must be {wanted}")
        nodes[node] = kind, chosen

    def tree(node: int) -> None:
        if node >= 2 ** len(RULE_ROWS) - 1:
            refuse(f"it is deeper than {max(RULE_ROWS)}")
        if words[:1] != ["["]:
            phrase(node)
            return
        take("[", "if")
        phrase(node)
        if nodes[node][0] not in (EXIST, *PARITY):
            refuse("a condition must be true or false")
        for word, side in (("then", 1), ("else", 2)):
            take(",", word)
            tree(2 * node + side)
        take("]")

    tree(0)
    if words:
        refuse(f"{words[0]!r} stands behind its end")
    if (len(nodes) + 1) & len(nodes) or max(nodes) != len(nodes) - 1:
        refuse("its branches differ in depth")
    program = Program(*(torch.zeros(1, len(nodes), *more, dtype=torch.int64) for more in ((), (2,), (2,))))
    for node, (kind, chosen) in nodes.items():
        program.ops[0, node] = kind
        for slot, (shape, colour) in enumerate(chosen):
            program.shapes[0, node, slot], program.colours[0, node, slot] = shape, colour
    return program


@functools.cache
def _letters(side: int) -> Tensor:
    """Every letter in a square of pixels, float in [0, 1]: (27, side, side), the first one empty."""
    import numpy as np
    from PIL import Image, ImageDraw, ImageFont

    letters = [torch.zeros(side, side)]
    for letter in SHAPES:
        image = Image.new("L", (side, side))
        font = ImageFont.load_default(0.9 * side)
        ImageDraw.Draw(image).text((side / 2, 0.74 * side), letter, fill=255, font=font, anchor="ms")
        letters.append(torch.from_numpy(np.array(image)).float() / 255)
    return torch.stack(letters)


def draw_scenes(codes: Tensor, cell: int = 10) -> Tensor:
    """Images of scenes, letters in their colours on black.

    Args:
        codes: the cells of scenes.
        cell: side of a cell in pixels, at least 7.

    Shapes: int64 (scenes, 100) -> uint8 (scenes, 3, 10 cell, 10 cell).

    Deviates: the letters are Pillow's, in place of OpenCV's.
    """
    check_count(7, cell=cell)
    if codes.dim() != 2 or codes.shape[1] != CELLS:
        raise UsageError(f"codes are {tuple(codes.shape)}; they must be (scenes, {CELLS}).")
    there, kinds = codes > 0, (codes - 1).clamp(min=0)
    colours = torch.tensor([RGB[name] for name in COLOURS], dtype=torch.float32)[kinds // len(SHAPES)]
    letters = _letters(cell)[torch.where(there, kinds % len(SHAPES) + 1, 0)]
    pixels = (letters.unsqueeze(2) * colours[..., None, None]).round().to(torch.uint8)
    return pixels.unflatten(1, (SIDE, SIDE)).permute(0, 3, 1, 4, 2, 5).reshape(len(codes), 3, SIDE * cell, SIDE * cell)
