"""Scenes of questions: distractors, and the objects that each program selects, on a grid.

Source: arXiv:2401.15030; choices that the paper does not state follow IBM/gcog.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from mereo.data.batch import Batch
from mereo.data.images import BatchOptions, Images, identity
from mereo.data.load import Splits, Wanted, limited, made_splits
from mereo.data.questions.programs import DRAWN, PARTS, TRAINED_DISTRACTORS, Programs, Split
from mereo.data.questions.words import draw_scenes as draw_images
from mereo.data.questions.words import in_words, read_question
from mereo.data.questions.world import (
    ANSWERS,
    CELLS,
    COLOURS,
    EXIST,
    GET_COLOUR,
    GET_SHAPE,
    OPERATORS,
    PARITY,
    PRODUCT_EVEN,
    PRODUCT_ODD,
    ROW,
    SCENE_ROWS,
    SHAPES,
    SIDE,
    SUM_EVEN,
    encode_rules,
    encode_scenes,
    join_rows,
    one_hot,
    solve,
)
from mereo.errors import UsageError, check_choice, check_count, check_seed

ENCODINGS = ("numbers", "one_hot", "image")


def _distractors(programs: Programs, counts: Tensor, generator: torch.Generator) -> Tensor:
    """Objects of any colour and shape that no get-operator asks for, in free cells: int64 (programs, 100).

    Of two objects of the same colour and shape the later one replaces the earlier.
    """
    number, most = len(counts), int(counts.max()) if len(counts) else 0
    allowed = torch.ones(number, len(COLOURS), len(SHAPES))
    for node in range(programs.ops.shape[1]):
        kind, rows = programs.ops[:, node], torch.arange(number)
        for asked, field, axis in ((GET_SHAPE, programs.colours, 1), (GET_COLOUR, programs.shapes, 2)):
            chosen = rows[kind == asked]
            keys = field[chosen, node, 0] - 1
            if axis == 1:
                allowed[chosen, keys] = 0
            else:
                allowed[chosen, :, keys] = 0
    grid = torch.zeros(number, CELLS + 1, dtype=torch.int64)
    if not most:
        return grid[:, :CELLS]
    codes = torch.multinomial(allowed.flatten(1), most, replacement=True, generator=generator) + 1
    codes = codes.masked_fill(torch.arange(most) >= counts.unsqueeze(1), 0)
    later = torch.ones(most, most, dtype=torch.bool).triu(1)
    replaced = ((codes.unsqueeze(2) == codes.unsqueeze(1)) & later).any(2)
    cells = torch.rand(number, CELLS, generator=generator).argsort(1)[:, :most]
    return grid.scatter(1, cells.masked_fill(replaced | (codes == 0), CELLS), codes)[:, :CELLS]


def _coin_cells(kinds: Tensor, pairs: Tensor, taken: Tensor, generator: torch.Generator) -> Tensor:
    """Two cells for each operator that no object of the task is in; sums and products get cells with a fair answer.

    Args:
        kinds: of the operators.
        pairs: whether the second cell is used.
        taken: the cells of objects.

    Shapes: int64 (n,), bool (n,), bool (n, 100) -> int64 (n, 2).
    """
    wanted = torch.rand(len(kinds), generator=generator) < 0.5
    cells = torch.zeros(len(kinds), 2, dtype=torch.int64)
    left = torch.arange(len(kinds))
    product = (kinds == PRODUCT_EVEN) | (kinds == PRODUCT_ODD)
    even = (kinds == SUM_EVEN) | (kinds == PRODUCT_EVEN)
    parity = torch.isin(kinds, torch.tensor(PARITY))
    while len(left):
        drawn = torch.rand(len(left), CELLS, generator=generator).masked_fill(taken[left], -1).topk(2, 1).indices
        rows, columns, used = drawn // SIDE, drawn % SIDE, pairs[left]
        one, two = (rows + columns) % 2, rows * columns % 2
        odd = torch.where(
            product[left], two[:, 0] * torch.where(used, two[:, 1], 1), (one[:, 0] + one[:, 1] * used) % 2
        )
        fits = ((odd == 0) == even[left]) == wanted[left]
        fits |= ~parity[left]
        cells[left[fits]] = drawn[fits]
        left = left[~fits]
    return cells


def place(programs: Programs, counts: Tensor, generator: torch.Generator) -> Tensor:
    """Scenes for programs: the cells of the grid, int64 (programs, 100).

    First distractors are placed, then the objects of every operator in both branches. An object replaces
    distractors of its colour and shape, and the one in its cell; if an object of the task is there, it moves to a free
    cell, and if there is one like it already, that one serves both. The object of "exist" is there in half of the
    scenes.

    Args:
        programs: n of them.
        counts: the number of distractors of each, int64 (n,).

    Deviates: the generator of IBM/gcog also moves an object whose cell a distractor held.
    """
    grid = _distractors(programs, counts, generator)
    task = torch.zeros_like(grid, dtype=torch.bool)
    number = len(grid)
    for node in range(programs.ops.shape[1]):
        kinds = programs.ops[:, node]
        codes = (programs.colours[:, node] - 1) * len(SHAPES) + programs.shapes[:, node]
        there = (programs.shapes[:, node] > 0) & (kinds > 0).unsqueeze(1)
        there &= ((kinds != EXIST) | (torch.rand(number, generator=generator) < 0.5)).unsqueeze(1)
        cells = programs.cells[:, node]
        if bool((there & (cells == DRAWN)).any()):
            drawn = _coin_cells(kinds, there[:, 1], task, generator)
            cells = torch.where(cells == DRAWN, drawn, cells)
        for slot in range(2):
            code, cell = codes[:, slot : slot + 1], cells[:, slot : slot + 1].clamp(min=0)
            alike = grid == code
            new = there[:, slot : slot + 1] & ~(alike & task).any(1, keepdim=True)
            if not bool(new.any()):
                continue
            grid = grid.masked_fill(new & alike, 0)
            busy = task.gather(1, cell)
            if bool((busy & new).any()):
                free = torch.rand(number, CELLS, generator=generator).masked_fill(grid > 0, -1).argmax(1, keepdim=True)
                cell = torch.where(busy, free, cell)
            grid = grid.scatter(1, cell, torch.where(new, code, grid.gather(1, cell)))
            task = task.scatter(1, cell, new | task.gather(1, cell))
    return grid


def distractor_counts(split: Split, part: str, number: int, generator: torch.Generator) -> Tensor:
    """The number of distractors of each scene."""
    least, most = split.range(part)
    return torch.randint(least, most + 1, (number,), generator=generator)


def generate(
    split: str,
    n: int,
    seed: int,
    *,
    part: str = "train",
    features: int = 10,
    distractors: int = 40,
    depth: int = 5,
    strict: bool = False,
    well_posed: bool = False,
    location: bool = True,
    encoding: str = "numbers",
    cell: int = 10,
) -> dict[str, Any]:
    """Questions of a split, with their answers.

    Args:
        split: "distractor", "systematic", "systematic_trees" or "productive".
        n: how many.
        seed: of the draws.
        part: "train" or "test".
        features, distractors, depth, strict, well_posed, location: see `mereo.data.questions.programs.Split`.
        encoding: "numbers"; "one_hot", see `one_hot`; or "image", scenes as images and programs as sentences.
        cell: pixels of a side of a cell of an image.

    Returns:
        rule (n, rows, 8), padded with rows of zeros, stim (n, 101, 3), target int64 (n,), and meta: the depth, the
        number of distractors that were asked for, the operator at the root and the one that answers, the most matches
        of a selection on the path, and words. With "image", stim is uint8 (n, 3, 10 cell, 10 cell) and rule a list of
        sentences.
    """
    check_count(1, n=n)
    check_seed(seed)
    check_choice("encoding", encoding, ENCODINGS)
    kind = Split(split, features, distractors, depth, strict, well_posed, location)
    check_choice("part", part, PARTS)
    generator = torch.Generator().manual_seed(2 * seed + PARTS.index(part))
    programs = kind.draw(part, n, generator)
    counts = distractor_counts(kind, part, n, generator)
    codes = place(programs, counts, generator)
    asked = programs.asked()
    answered, rule, stim = solve(asked, codes), encode_rules(asked), encode_scenes(codes)
    words = in_words(rule)
    meta = {
        "depth": answered.depth.tolist(), "distractors": counts.tolist(),
        "root": [OPERATORS[op - 1] for op in programs.ops[:, 0].tolist()],
        "operator": [OPERATORS[op - 1] for op in answered.operator.tolist()],
        "matches": answered.matches.tolist(), "words": words,
    }  # fmt: skip
    shown: dict[str, Any] = {"rule": rule, "stim": stim}
    if encoding == "one_hot":
        shown["rule"], shown["stim"] = one_hot(rule, stim)
    elif encoding == "image":
        shown = {"rule": words, "stim": draw_images(codes, cell)}
    return {**shown, "target": answered.target, "meta": meta}


def scene_for(question: str, seed: int) -> Tensor:
    """The rows of a question in words, with a scene of up to five distractors that is drawn for it.

    Args:
        question: see `mereo.data.questions.words.read_question`.
        seed: of the scene.

    Shapes: -> (1, rows, 11).
    """
    check_seed(seed)
    generator, asked = torch.Generator().manual_seed(seed), read_question(question)
    there = (asked.shapes > 0) | (asked.colours > 0)
    shapes, colours = (
        torch.where(field > 0, field, torch.randint(1, len(names) + 1, field.shape, generator=generator)) * there
        for field, names in ((asked.shapes, SHAPES), (asked.colours, COLOURS))
    )
    counts = torch.randint(TRAINED_DISTRACTORS + 1, (1,), generator=generator)
    codes = place(Programs(asked.ops, shapes, colours, torch.full_like(shapes, DRAWN)), counts, generator)
    return join_rows(encode_rules(asked), encode_scenes(codes))


class Questions(Images):
    """Programs with their scenes: with a generator (training) every access draws a new scene, without it they stay.

    Args:
        programs: of all questions.
        least, most: distractors of a scene, their number uniform.
        seed: of the scenes that stay.
        codes: the scenes that stay, if they are known.

    Shapes: codes int64 (questions, 100).
    """

    class_names: tuple[str, ...] = ANSWERS
    serves = "rows"

    def __init__(self, programs: Programs, least: int, most: int, seed: int = 0, codes: Tensor | None = None) -> None:
        if not 0 <= least <= most <= CELLS:
            raise UsageError(f"least is {least} and most is {most}; distractors are from 0 to {CELLS}, least first.")
        if codes is not None and codes.shape != (len(programs.ops), CELLS):
            raise UsageError(f"codes are {tuple(codes.shape)}; they must be ({len(programs.ops)}, {CELLS}).")
        self.programs, self.least, self.most, self.seed = programs, least, most, seed
        self.codes = self._scenes(programs, torch.Generator().manual_seed(seed)) if codes is None else codes
        self.labels = solve(programs.asked(), self.codes).target

    def _scenes(self, programs: Programs, generator: torch.Generator) -> Tensor:
        counts = torch.randint(self.least, self.most + 1, (len(programs.ops),), generator=generator)
        return place(programs, counts, generator)

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(1, rows, 11): what a question takes in memory."""
        return 1, encode_rules(self.programs.pick(slice(0, 1)).asked()).shape[1] + SCENE_ROWS, ROW

    @property
    def strata(self) -> Tensor:
        return self.labels.cpu()

    def describe(self) -> dict[str, Any]:
        """The identity of the data as plain values; it changes if any program or scene changes."""
        return identity(len(self), (self.least, self.most), *self.programs, self.codes)

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Questions":
        return Questions(Programs(*map(change, self.programs)), self.least, self.most, self.seed, change(self.codes))

    def to(self, device: torch.device | str) -> "Questions":
        """The same set; scenes are drawn on the CPU, and batches are copied to their device."""
        return self

    def subset(self, indices: Tensor) -> "Questions":
        return self._map(lambda field: field[indices.cpu()])

    def make_batch(self, indices: Tensor, options: BatchOptions) -> Batch:
        """The questions at `indices`; there are no images to crop."""
        programs, codes = self.programs.pick(indices.cpu()), self.codes[indices.cpu()]
        if options.generator is not None:
            codes = self._scenes(programs, options.generator)
        programs, codes = programs.pick(options.share), codes[options.share]
        asked = programs.asked()
        rows = join_rows(encode_rules(asked), encode_scenes(codes))
        batch = Batch(rows=rows, labels=solve(asked, codes).target)
        return batch if options.device is None else batch.to(options.device)


def load_questions(wanted: Wanted, split: Split, splits: Mapping[str, int]) -> Splits:
    """The splits of made questions; validation questions are made as the training questions are."""
    made = {}
    for seed, (name, size) in enumerate(limited(splits, wanted.limit).items()):
        part = "test" if name == "test" else PARTS[0]
        programs = split.draw(part, size, torch.Generator().manual_seed(seed))
        made[name] = Questions(programs, *split.range(part), seed)
    return made_splits(made, ANSWERS, ROW)
