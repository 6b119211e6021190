"""Programs of questions: trees of operators with the objects they select, and the splits that test generalisation.

Source: arXiv:2401.15030; choices that the paper does not state follow IBM/gcog.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
    SHAPES,
    SUM_EVEN,
    SUM_ODD,
    Program,
)
from mereo.errors import UsageError, check_choice, check_count

ALL = (EXIST, GO, GET_COLOUR, GET_SHAPE, SUM_EVEN, PRODUCT_EVEN, PRODUCT_ODD, SUM_ODD)
STARTING = (EXIST, *PARITY)
SPLITS = ("distractor", "systematic", "systematic_trees", "productive")
PARTS = ("train", "test")
ONE, OTHER = (EXIST, SUM_EVEN, PRODUCT_EVEN, GET_SHAPE), (SUM_ODD, PRODUCT_ODD, GO, GET_COLOUR)
"""The operators of the systematic split."""
ROOTS = ((EXIST, SUM_EVEN, PRODUCT_EVEN), (SUM_ODD, PRODUCT_ODD))
LEAVES = ((SUM_EVEN, PRODUCT_EVEN, GET_COLOUR, GET_SHAPE), (EXIST, SUM_ODD, PRODUCT_ODD, GO))
TRAINED_DISTRACTORS = 5
"""Most distractors of a training scene; their number is uniform from 0."""
DRAWN = -1
"""The cell of an object whose place is drawn with the scene."""
_TRIES = 200


class Programs(NamedTuple):
    """Programs with all that scenes need.

    Shapes:
        ops: int64 (programs, operators), in the order of a heap, 0 for none.
        shapes, colours: int64 (programs, operators, 2), of the objects, from 1, with the attribute that is asked for;
            0 for no object.
        cells: int64 (programs, operators, 2), where each object is placed; -1 if that is drawn with the scene.
    """

    ops: Tensor
    shapes: Tensor
    colours: Tensor
    cells: Tensor

    def asked(self) -> Program:
        """What the programs say, without the attributes that they ask for."""
        get_shape, get_colour = (self.ops == kind for kind in (GET_SHAPE, GET_COLOUR))
        shapes = self.shapes.masked_fill(get_shape.unsqueeze(-1), 0)
        return Program(self.ops, shapes, self.colours.masked_fill(get_colour.unsqueeze(-1), 0))

    def pick(self, places: Tensor | slice) -> "Programs":
        """The programs at these places."""
        return Programs(*(field[places] for field in self))


@dataclass(frozen=True)
class Split:
    """Which programs there are, and the distractors of their scenes.

    Args:
        name: "distractor", single operators, tested with more distractors; "systematic", single operators with other
            colours and shapes; "systematic_trees", trees of depth 3 with other pairs of root and leaves; "productive",
            trees of depth 1 and 3, tested on deeper ones.
        features: number of colours and of shapes that programs use, the first ones.
        distractors: of test scenes of "distractor", exactly.
        depth: of the trees that "productive" tests, 5 or 7.
        strict: whether the objects of "systematic" have first-half colours and first-half shapes, or second-half
            colours and second-half shapes, so that no operator is tested with a kind of object it was trained with.
        well_posed: whether no selection of a program can match two objects.
        location: whether the places of objects belong to the program; otherwise they are drawn with the scene, such
            that half of all sums and products are true.
    """

    name: str = "distractor"
    features: int = 10
    distractors: int = 40
    depth: int = 5
    strict: bool = False
    well_posed: bool = False
    location: bool = True

    def __post_init__(self) -> None:
        check_choice("split", self.name, SPLITS)
        check_count(0, distractors=self.distractors)
        if not 2 <= self.features <= len(COLOURS):
            raise UsageError(f"features is {self.features}; it must be from 2 to {len(COLOURS)}, the colours.")
        if self.depth not in (5, 7):
            raise UsageError(f"depth is {self.depth}; trees that are tested are 5 or 7 deep, trained ones 1 and 3.")
        if self.distractors > (most := CELLS - 10):
            raise UsageError(f"distractors is {self.distractors}; a grid of {CELLS} cells has room for {most}.")
        if self.strict and self.name != "systematic":
            raise UsageError(f"strict is True and split {self.name!r}; only 'systematic' overlaps, leave strict out.")

    def range(self, part: str) -> tuple[int, int]:
        """The fewest and most distractors of the scenes of a part."""
        exact = self.name == "distractor" and part == "test"
        return (self.distractors, self.distractors) if exact else (0, TRAINED_DISTRACTORS)

    def depths(self, part: str) -> tuple[int, ...]:
        """The depths of the trees of a part."""
        if self.name == "productive":
            return (1, 3) if part == "train" else (self.depth,)
        return (3,) if self.name == "systematic_trees" else (1,)

    def kinds(self) -> tuple[Tensor, Tensor]:
        """Two sets of colours and shapes of "systematic", (kinds, 2) each, from 1.

        The first has the first half of the colours, the second the second half of the shapes; strictly, both halves.
        """
        half, numbers = round(self.features / 2), torch.arange(1, self.features + 1)
        low, high = numbers[:half], numbers[half:]
        return (
            torch.cartesian_prod(low, low if self.strict else numbers),
            torch.cartesian_prod(high if self.strict else numbers, high),
        )

    def draw(self, part: str, count: int, generator: torch.Generator) -> Programs:
        """Programs of the training or the test set.

        Args:
            part: "train" or "test".
            count: how many. "systematic" has 8 times kinds of objects times 100 at most, each once.
        """
        check_choice("part", part, PARTS)
        check_count(0, count=count)
        if self.name == "systematic":
            return self._systematic(part, count, generator)
        if self.name == "distractor":
            return self._single(count, generator)
        if self.name == "systematic_trees":
            return self._pairs(part == "test", count, generator)
        sizes = [len(each) for each in torch.arange(count).tensor_split(len(self.depths(part)))]
        made = [
            self._single(size, generator) if depth == 1 else self._trees(depth, size, STARTING, ALL, generator)
            for size, depth in zip(sizes, self.depths(part), strict=True)
        ]
        return joined(made).pick(torch.randperm(count, generator=generator))

    def _single(self, count: int, generator: torch.Generator) -> Programs:
        """Programs of one operator, of each operator equally many."""
        ops = torch.tensor(ALL)[torch.randperm(count, generator=generator) % len(ALL)].unsqueeze(1)
        return self._objects(ops, torch.ones_like(ops), generator)

    def _systematic(self, part: str, count: int, generator: torch.Generator) -> Programs:
        first, second = self.kinds() if part == "train" else reversed(self.kinds())
        table = torch.cat(
            [
                torch.cat((torch.full((len(kinds), 1), op), kinds), 1)
                for ops, kinds in ((ONE, first), (OTHER, second))
                for op in ops
            ]
        )
        if count > len(table) * CELLS:
            raise UsageError(f"count is {count}; the split has {len(table) * CELLS} programs, give at most that.")
        chosen = torch.randperm(len(table) * CELLS, generator=generator)[:count]
        op, colour, shape = table[chosen // CELLS].unbind(1)
        cells = chosen % CELLS if self.location else torch.full_like(chosen, DRAWN)
        pairs = [torch.stack((field, torch.full_like(field, rest)), -1) for field, rest in
                 ((shape, 0), (colour, 0), (cells, DRAWN))]  # fmt: skip
        return Programs(op.unsqueeze(1), *(field.unsqueeze(1) for field in pairs))

    def _pairs(self, crossed: bool, count: int, generator: torch.Generator) -> Programs:
        """Trees of depth 3, half of them with roots of each kind."""
        sizes = (count - count // 2, count // 2)
        made = [self._trees(3, size, ROOTS[side], LEAVES[side ^ crossed], generator) for side, size in enumerate(sizes)]
        return joined(made).pick(torch.randperm(count, generator=generator))

    def _trees(
        self, depth: int, count: int, starting: Sequence[int], ending: Sequence[int], generator: torch.Generator
    ) -> Programs:
        nodes = 2 ** ((depth + 1) // 2) - 1
        leaf = torch.arange(nodes) >= nodes // 2

        def tried(number: int) -> Programs:
            start, end = (
                torch.tensor(kinds)[torch.randint(len(kinds), (number, nodes), generator=generator)]
                for kinds in (starting, ending)
            )
            ops = torch.where(leaf, end, start)
            objects = torch.where(_is(ops, PARITY), torch.randint(1, 3, ops.shape, generator=generator), 1)
            return self._objects(ops, objects, generator)

        return _until_enough(tried, count, self)

    def _objects(self, ops: Tensor, objects: Tensor, generator: torch.Generator) -> Programs:
        """Objects for operators. A program that has too few attributes for them has the operator 0 at its root."""
        count, nodes = ops.shape
        shapes, colours = (
            torch.stack([torch.randint(1, most + 1, (count, nodes), generator=generator) for most in pair], -1)
            for pair in ((self.features, len(SHAPES)), (self.features, len(COLOURS)))
        )
        impossible = torch.zeros(count, dtype=torch.bool)
        keys = []
        for kind, values in ((GET_COLOUR, shapes), (GET_SHAPE, colours)):
            gets = ops == kind
            order = torch.rand(count, self.features, generator=generator).argsort(1) + 1
            number = gets.cumsum(1) - 1
            impossible |= gets.sum(1) > self.features
            values[..., 0] = torch.where(gets, order.gather(1, number.clamp(0, self.features - 1)), values[..., 0])
            keys.append((gets, values))
        if self.well_posed:
            for gets, values in keys:
                impossible |= _avoid(gets, values, self.features, generator)
        there = torch.stack((objects >= 1, objects == 2), -1)
        cells = torch.full_like(shapes, DRAWN)
        if self.location:
            order = torch.rand(count, CELLS, generator=generator).argsort(1)[:, : 2 * nodes].reshape(count, nodes, 2)
            cells = torch.where(there, order, DRAWN)
        ops = ops.masked_fill(impossible.unsqueeze(1), 0)
        return Programs(ops, shapes * there, colours * there, cells)


def _is(ops: Tensor, kinds: Sequence[int]) -> Tensor:
    return torch.isin(ops, torch.tensor(kinds))


def _avoid(gets: Tensor, values: Tensor, features: int, generator: torch.Generator) -> Tensor:
    """Draw every value that is a key of a get-operator anew, except the keys themselves; whether there is no other.

    Shapes: gets bool (programs, operators), values int64 (programs, operators, 2) -> bool (programs,).
    """
    most = int(values.max()) if values.numel() else 0
    taken = torch.zeros(len(gets), max(most, features) + 1, dtype=torch.bool)
    taken.scatter_(1, torch.where(gets, values[..., 0], 0), True)
    taken[:, 0] = True
    own = torch.stack((gets, torch.zeros_like(gets)), -1)
    hit = taken.gather(1, values.flatten(1)).view_as(values) & ~own
    # Attributes of programs are the first ones; of those, the free ones in a random order.
    order = torch.rand(*values.shape, features, generator=generator)
    new = order.masked_fill(taken[:, None, None, 1 : features + 1], -1).argmax(-1) + 1
    values.copy_(torch.where(hit, new, values))
    return taken[:, 1 : features + 1].all(1)


def _until_enough(tried: Callable[[int], Programs], count: int, split: Split) -> Programs:
    """Programs of `tried` whose first operator is not 0."""
    kept: list[Programs] = []
    missing = count
    for _ in range(_TRIES):
        made = tried(missing)
        kept.append(made.pick(made.ops[:, 0] > 0))
        missing -= len(kept[-1].ops)
        if not missing:
            return joined(kept)
    raise UsageError(f"features is {split.features}, too few for well-posed trees of this depth; give up to 10.")


def joined(parts: Sequence[Programs]) -> Programs:
    """Programs of several depths as one, padded to the deepest."""
    nodes = max(part.ops.shape[1] for part in parts)

    def widened(field: Tensor, fill: int) -> Tensor:
        more = field.new_full((len(field), nodes - field.shape[1], *field.shape[2:]), fill)
        return torch.cat((field, more), 1)

    fills = (0, 0, 0, DRAWN)
    fields = zip(*parts, strict=True)
    return Programs(*(torch.cat([widened(f, fill) for f in field]) for field, fill in zip(fields, fills, strict=True)))
