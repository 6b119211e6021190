"""The world of gCOG: objects on a grid, operators, the numbers that encode them, and the answers of these numbers.

A program is a binary tree of operators in the order of a heap: the children of operator j, which a switch chooses
between, are 2 j + 1 if it is true and 2 j + 2 if it is false. A scene has a number for each cell, row by row: 0 if it
is empty, else 1 + 26 colour + shape, both from 0.

Source: arXiv:2401.15030.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.errors import UsageError

SIDE, CELLS = 10, 100
SHAPES = tuple("abcdefghijklmnopqrstuvwxyz")
COLOURS = ("red", "green", "blue", "yellow", "purple", "orange", "white", "pink", "cyan", "brown")
OPERATORS = ("exist", "go", "getcolor", "getshape", "sumeven", "producteven", "productodd", "sumodd", "switch")
"""The operators, whose numbers count from 1."""
EXIST, GO, GET_COLOUR, GET_SHAPE, SUM_EVEN, PRODUCT_EVEN, PRODUCT_ODD, SUM_ODD, SWITCH = range(1, 10)
PARITY = (SUM_EVEN, PRODUCT_EVEN, PRODUCT_ODD, SUM_ODD)
PLACES, FIRST_SHAPE, FIRST_COLOUR = 2, 102, 128
ANSWERS = (
    "true", "false", *(f"row {row} column {column}" for column in range(SIDE) for row in range(SIDE)),
    *SHAPES, *COLOURS,
)  # fmt: skip
"""The 138 answers: true, false, the places column by column, the shapes, the colours."""
RULE, SCENE = 8, 3
"""Numbers of a row of a program and of a row of a scene."""
ROW = RULE + SCENE
SCENE_ROWS = CELLS + 1
RULE_ROWS = {1: 2, 3: 5, 5: 11, 7: 23}
"""Rows of a program by its depth, with the row that ends it."""
NO_ANSWER = -1
_AT_ONCE = 1024


class Program(NamedTuple):
    """What programs ask for, as it can be read from their rows.

    Shapes:
        ops: int64 (programs, operators), in the order of a heap; 0 for none.
        shapes, colours: int64 (programs, operators, 2), of the one or two objects that are selected, counted from 1; 0
            for an attribute that is not given. The second object has neither if there is one.
    """

    ops: Tensor
    shapes: Tensor
    colours: Tensor


def heap_rows(operators: int) -> list[tuple[int, bool]]:
    """The rows of a tree of operators, level by level: (operator in the heap, whether it is its switch)."""
    rows, start = [], 0
    while start < operators:
        level = range(start, 2 * start + 1)
        rows += [(place, False) for place in level]
        start = 2 * start + 1
        if start < operators:
            rows += [(place, True) for place in level]
    return rows


def encode_rules(program: Program) -> Tensor:
    """The rows of programs: operator, shape, colour and screen of two objects, end.

    The attribute that is asked for and the only screen have the number 1. A switch follows the level of its condition;
    a row that ends the program stands behind the last one, and rows of zeros behind that.

    Shapes: -> float32 (programs, rows, 8).
    """
    ops, shapes, colours = program
    rows = heap_rows(ops.shape[1])
    out = torch.zeros(len(ops), len(rows) + 1, RULE, device=ops.device)
    there = (shapes > 0) | (colours > 0)
    for place, (node, switch) in enumerate(rows):
        if switch:
            out[:, place, 0] = (ops[:, 2 * node + 1] > 0) * float(SWITCH)
            continue
        objects = torch.stack((shapes[:, node].clamp(min=1), colours[:, node].clamp(min=1), there[:, node].long()), -1)
        out[:, place, 0] = ops[:, node].float()
        out[:, place, 1:7] = (objects * there[:, node].unsqueeze(-1)).flatten(1).float()
    ends = (out[..., 0] > 0).sum(1)
    out[torch.arange(len(ops)), ends, RULE - 1] = 1
    return out


def encode_scenes(codes: Tensor) -> Tensor:
    """The rows of scenes: colour, shape, end; int64 (scenes, 100) -> float32 (scenes, 101, 3)."""
    out = torch.zeros(len(codes), SCENE_ROWS, SCENE, device=codes.device)
    there, kinds = codes > 0, (codes - 1).clamp(min=0)
    out[:, :CELLS, 0] = (kinds // len(SHAPES) + 1) * there
    out[:, :CELLS, 1] = (kinds % len(SHAPES) + 1) * there
    out[:, CELLS, SCENE - 1] = 1
    return out


def join_rows(rule: Tensor, stim: Tensor) -> Tensor:
    """One sequence of a program and its scene: (batch, n, 8) and (batch, 101, 3) -> (batch, n + 101, 11)."""
    return torch.cat((F.pad(rule, (0, SCENE)), F.pad(stim, (RULE, 0))), 1)


def split_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The program and the scene of `join_rows`."""
    return rows[:, :-SCENE_ROWS, :RULE], rows[:, -SCENE_ROWS:, RULE:]


# --- what the numbers mean ------------------------------------------------------------------------------------------


def _whole(name: str, values: Tensor, axes: tuple[int | None, ...]) -> Tensor:
    shown = ", ".join("n" if size is None else str(size) for size in axes)
    fits = values.dim() == len(axes) and all(s in (None, f) for s, f in zip(axes, values.shape, strict=True))
    if not fits:
        raise UsageError(f"{name} is {tuple(values.shape)}; it must be ({shown}).")
    whole = values.round().long()
    if bool((whole != values).any()):
        raise UsageError(f"{name} has a number that is not whole; its numbers count from 1, and 0 is nothing.")
    return whole


def decode_rules(rule: Tensor) -> Program:
    """What programs ask for, read from their rows alone.

    Shapes: (programs, rows, 8), padded with rows of zeros at the end.

    Raises:
        UsageError: for rows that are not a program.
    """
    rows = _whole("rule", rule, (None, None, RULE))
    operators = 1
    while len(heap_rows(operators)) + 1 < rows.shape[1]:
        operators = 2 * operators + 1
    places = heap_rows(operators)
    rows = F.pad(rows, (0, 0, 0, len(places) + 1 - rows.shape[1]))
    ends = (rows[..., 0] > 0).sum(1)
    expected = F.one_hot(ends, rows.shape[1]) if len(rows) else rows[..., 7]
    wrong_ends = (rows[..., 7] != expected).any(1)
    if bool(wrong_ends.any()):
        wrong = int(wrong_ends.nonzero()[0])
        raise UsageError(f"rule {wrong} does not end behind its last operator; its 8th number must be 1 there alone.")
    last = torch.tensor([9, 26, 10, 1, 26, 10, 1, 1], device=rows.device)
    if bool(((rows < 0) | (rows > last)).any()):
        sample, row = ((rows < 0) | (rows > last)).any(-1).nonzero()[0].tolist()
        raise UsageError(f"row {row} of rule {sample} is {rows[sample, row].tolist()}; at most {last.tolist()}.")
    nodes = [place for place, (_, switch) in enumerate(places) if not switch]
    switches = rows[:, [place for place, (_, switch) in enumerate(places) if switch], 0]
    ops, objects = rows[:, nodes, 0], rows[:, nodes, 1:7].unflatten(-1, (2, 3))
    there, conditions = objects[..., 2] > 0, ops[:, : operators // 2]
    children = ops[:, 1:].reshape(len(ops), operators // 2, 2) > 0
    forks, parity = children.all(-1), torch.isin(ops, torch.tensor(PARITY, device=ops.device))
    bad = ((ops == SWITCH) | ((ops > 0) != there[..., 0]) | (there[..., 1] & ~parity)).any(1) | (ops[:, 0] == 0)
    bad |= ((children.any(-1) != forks) | (switches != SWITCH * forks)).any(1)
    bad |= (forks & ~((conditions == EXIST) | parity[:, : operators // 2])).any(1)
    if bool(bad.any()):
        sample = int(bad.nonzero()[0])
        raise UsageError(
            f"rule {sample} has operators {rows[sample, :, 0].tolist()}; they must be a tree level by level, conditions"
            " with a switch (9) for each behind them, and every operator but a switch must select an object."
        )
    shapes = objects[..., 0].masked_fill((ops == GET_SHAPE).unsqueeze(-1) | ~there, 0)
    colours = objects[..., 1].masked_fill((ops == GET_COLOUR).unsqueeze(-1) | ~there, 0)
    return Program(ops, shapes, colours)


def decode_scenes(stim: Tensor) -> Tensor:
    """The cells of scenes: (scenes, 101, 3) -> int64 (scenes, 100)."""
    rows = _whole("stim", stim, (None, SCENE_ROWS, SCENE))[:, :CELLS]
    colours, shapes, rest = rows.unbind(-1)
    bad = (rows < 0).any(-1) | (colours > len(COLOURS)) | (shapes > len(SHAPES)) | (rest != 0)
    bad |= (colours > 0) != (shapes > 0)
    if bool(bad.any()):
        scene, cell = bad.nonzero()[0].tolist()
        raise UsageError(
            f"cell {cell} of stim {scene} is {rows[scene, cell].tolist()}; it must be a colour from 1 to 10, a shape"
            " from 1 to 26 and 0, or zeros."
        )
    return torch.where(colours > 0, (colours - 1) * len(SHAPES) + shapes, 0)


class Answered(NamedTuple):
    """Answers of programs, int64 (programs,) each.

    Attributes:
        target: number of the answer, -1 if the program asks for an object that is not there.
        operator: that gives it, at the end of the path that was taken.
        matches: the most objects that one selection on this path matches.
        depth: of the program; a switch is a level.
    """

    target: Tensor
    operator: Tensor
    matches: Tensor
    depth: Tensor


def solve(program: Program, codes: Tensor) -> Answered:
    """Evaluate programs on scenes: int64 (programs, 100) -> one answer each. Of several matches the first counts."""
    parts = [
        _solve(Program(*(field[start : start + _AT_ONCE] for field in program)), codes[start : start + _AT_ONCE])
        for start in range(0, len(codes), _AT_ONCE)
    ]
    return Answered(*map(torch.cat, zip(*parts, strict=True))) if parts else _solve(program, codes)


def _solve(program: Program, codes: Tensor) -> Answered:
    ops, shapes, colours = program
    there, kinds = codes > 0, (codes - 1).clamp(min=0)
    shape, colour = kinds % len(SHAPES) + 1, kinds // len(SHAPES) + 1
    # (programs, operators, objects, cells)
    fits = there[:, None, None] & (
        ((shapes == 0).unsqueeze(-1) | (shapes.unsqueeze(-1) == shape[:, None, None]))
        & ((colours == 0).unsqueeze(-1) | (colours.unsqueeze(-1) == colour[:, None, None]))
    )
    used = (shapes > 0) | (colours > 0)
    matches = (fits.sum(-1) * used).amax(-1)
    first = torch.where(fits, torch.arange(CELLS, device=codes.device), CELLS).amin(-1)
    found, cell = first < CELLS, first.clamp(max=CELLS - 1)
    row, column = cell // SIDE, cell % SIDE
    odd_sum = ((row + column) * used).sum(-1) % 2 == 1
    odd_product = ((row * column % 2 == 1) | ~used).all(-1)
    true = found[..., 0] & (ops == EXIST)
    for kind, truth in zip(PARITY, (~odd_sum, ~odd_product, odd_product, odd_sum), strict=True):
        true = torch.where(ops == kind, truth, true)
    targets = torch.where(true, 0, 1)
    targets = torch.where(ops == GO, PLACES + row[..., 0] + SIDE * column[..., 0], targets)
    picked = kinds.gather(1, cell[..., 0])
    targets = torch.where(ops == GET_SHAPE, FIRST_SHAPE + picked % len(SHAPES), targets)
    targets = torch.where(ops == GET_COLOUR, FIRST_COLOUR + picked // len(SHAPES), targets)
    targets = targets.masked_fill((ops != EXIST) & ~(found | ~used).all(-1), NO_ANSWER)
    node, most, missing = torch.zeros_like(ops[:, :1]), matches[:, 0], targets[:, 0] == NO_ANSWER
    operators = ops.shape[1]
    for _ in range(operators.bit_length() - 1):
        child = (2 * node + torch.where(true.gather(1, node), 1, 2)).clamp(max=operators - 1)
        node = torch.where((2 * node + 2 < operators) & (ops.gather(1, child) > 0), child, node)
        most = torch.maximum(most, matches.gather(1, node).squeeze(1))
        missing = missing | (targets.gather(1, node).squeeze(1) == NO_ANSWER)
    target = targets.gather(1, node).squeeze(1).masked_fill(missing, NO_ANSWER)
    # 1, 3, 7 and 15 operators are trees of depth 1, 3, 5 and 7.
    depth = 2 * ((ops > 0).sum(1) + 1).double().log2().round().long() - 1
    return Answered(target, ops.gather(1, node).squeeze(1), most, depth)


def evaluate(rule: Tensor, stim: Tensor) -> Answered:
    """The answers of questions from their arrays alone.

    Shapes: rule (batch, rows, 8), stim (batch, 101, 3).

    Raises:
        UsageError: for arrays that are not programs and scenes.
    """
    return solve(decode_rules(rule), decode_scenes(stim))


def one_hot(rule: Tensor, stim: Tensor) -> tuple[Tensor, Tensor]:
    """The same rows with a column for each operator, shape and colour in place of numbers.

    Shapes: (batch, rows, 8) -> (batch, rows, 84): operators 9, then twice shapes 26, colours 10 and screen 1, then the
        end; (batch, 101, 3) -> (batch, 101, 37): colours 10, shapes 26, the end. What is asked for has no 1.
    """

    def columns(values: Tensor, count: int) -> Tensor:
        return (values.unsqueeze(-1) == torch.arange(1, count + 1, device=values.device)).to(values.dtype)

    kind = rule[..., 0]
    parts = [columns(kind, len(OPERATORS))]
    for start in (1, 4):
        shape = rule[..., start].masked_fill(kind == GET_SHAPE, 0)
        colour = rule[..., start + 1].masked_fill(kind == GET_COLOUR, 0)
        parts += [columns(shape, len(SHAPES)), columns(colour, len(COLOURS)), rule[..., start + 2 : start + 3]]
    scene = (columns(stim[..., 0], len(COLOURS)), columns(stim[..., 1], len(SHAPES)), stim[..., 2:])
    return torch.cat((*parts, rule[..., 7:]), -1), torch.cat(scene, -1)
