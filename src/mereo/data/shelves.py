"""Shelves of coloured shapes, a target among them, and the path of a gaze that searches for it by a rule.

The rule is ours, in place of people: it starts at the object at the centre and goes on to objects that look like the
target and are near, with noise; it lingers, looks back, and stops at the target.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from mereo.data.batch import Batch
from mereo.data.images import BatchOptions
from mereo.data.load import Splits, Wanted, made_splits
from mereo.data.tensor_set import TensorSet
from mereo.errors import UsageError

SIDE, COLOURS, SHAPES, MOST = 16, 6, 6, 24
"""Pixels of a side of a glyph, kinds of glyphs, and most fixations of a path."""
NEAR, STAY, BACK, STOP = 0.3, 0.2, 0.1, 0.9
"""Cost of a cell of distance; probabilities to repeat a fixation, to look back, and to stop on the target."""
_PALETTE = (
    (0.84, 0.15, 0.16), (0.17, 0.63, 0.17), (0.12, 0.35, 0.8), (0.95, 0.7, 0.1), (0.6, 0.25, 0.75), (0.2, 0.2, 0.2),
)  # fmt: skip


def glyphs() -> Tensor:
    """Every shape in every colour on white: float32 (36, 3, 16, 16); glyph number 6 * colour + shape."""
    y, x = torch.meshgrid(*(torch.linspace(-1.15, 1.15, SIDE),) * 2, indexing="ij")
    radius = (x**2 + y**2).sqrt()
    masks = torch.stack(
        (
            (x.abs() < 0.75) & (y.abs() < 0.75),
            radius < 0.9,
            (y < 0.75) & (y > 2 * x.abs() - 0.95),
            ((x.abs() < 0.3) | (y.abs() < 0.3)) & (x.abs() < 0.95) & (y.abs() < 0.95),
            (radius < 1.0) & (radius > 0.55),
            x.abs() + y.abs() < 1.0,
        )
    )
    colours = torch.tensor(_PALETTE).view(COLOURS, 1, 3, 1, 1)
    return torch.where(masks.view(1, SHAPES, 1, SIDE, SIDE), colours, torch.ones(())).flatten(0, 1)


def check_scenes(regions: Tensor) -> None:
    """UsageError unless each scene has an object, at most one object in a place, and the target among them once.

    Shapes: regions (scenes, objects + 1, ... + 2): looks, row and column; the target last. A row below 0 stands for no
        object, or for a target whose place is not known.
    """
    if regions.dim() != 3 or regions.shape[1] < 2:
        raise UsageError(f"regions are of shape {tuple(regions.shape)}; a scene is at least one object and its target.")
    objects, target = regions[:, :-1], regions[:, -1:]
    places, there, goal = objects[..., -2:], objects[..., -2] >= 0, target[..., -2:]
    twice = (places.unsqueeze(2) == places.unsqueeze(1)).all(-1) & there.unsqueeze(2) & there.unsqueeze(1)
    alike = ((objects[..., :-2] == target[..., :-2]).all(-1) & there).sum(1)
    at = ((places == goal).all(-1) & there).sum(1)
    for wrong, what in (
        (~there.any(1), "have no object; a scene is at least one object and its target"),
        (twice.flatten(1).sum(1) > there.sum(1), "have two objects in one place; give each its own"),
        (alike > 1, "show the target more than once; let it be one object"),
        ((goal[:, 0, 0] >= 0) & (at != 1), "have no object at the place of the target; give the target's place, or -1"),
    ):
        if bool(wrong.any()):
            raise UsageError(f"regions of scene {int(wrong.nonzero()[0])} {what}.")


class Shelves(TensorSet):
    """Scenes of objects with a target, and a path of fixations for each.

    Args:
        looks: pixels of every kind of object.
        kinds: of the objects of each scene, the target last.
        places: their rows and columns, -1 for no object.
        pointers: 1 for the first object, 0 for the end, -1 for padding; None for scenes to predict.

    Shapes: looks float32 (kinds, 3, height, width), kinds int64 (scenes, objects + 1), places int64 (scenes, objects +
        1, 2), pointers int64 (scenes, steps). Batches have regions (batch, objects + 1, 3 * height * width + 2).
    """

    serves = "regions"
    of_samples, of_all = ("kinds", "places", "pointers"), ("looks",)
    class_names: tuple[str, ...] = ()

    def __init__(self, looks: Tensor, kinds: Tensor, places: Tensor, pointers: Tensor | None = None) -> None:
        check_scenes(torch.cat((kinds.unsqueeze(-1), places), -1))
        if pointers is not None:
            there = places[:, :-1, 0] >= 0
            wrong = pointers.amax(1) > there.shape[1]
            wrong |= ((pointers > 0) & ~there.gather(1, (pointers - 1).clamp(0, there.shape[1] - 1))).any(1)
            if bool(wrong.any()):
                scene = int(wrong.nonzero()[0])
                raise UsageError(
                    f"pointers of scene {scene} hold {int(pointers[scene].max())}; they must be 1 to {there.shape[1]},"
                    " of objects that are there."
                )
        self.looks, self.kinds, self.places, self.pointers = looks, kinds, places, pointers

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(1, objects + 1, features): what a scene takes in memory."""
        return 1, self.kinds.shape[1], self.looks[0].numel() + 2

    def make_batch(self, indices: Tensor, options: BatchOptions) -> Batch:
        """The scenes at `indices`; there are no images to crop."""
        chosen = indices[options.share].to(self.kinds.device)
        regions = torch.cat((self.looks.flatten(1)[self.kinds[chosen]], self.places[chosen].to(self.looks)), -1)
        pointers = None if self.pointers is None else self.pointers[chosen]
        if pointers is not None and len(pointers):  # no columns of padding only
            pointers = pointers[:, : max(int((pointers >= 0).sum(1).max()), 2)]
        return Batch(regions=regions, pointers=pointers).to(options.device or regions.device)


# --- made scenes ----------------------------------------------------------------------------------------------------


class Layout(NamedTuple):
    """Rows and columns of a shelf, and most of its places that are empty in a scene."""

    rows: int
    columns: int
    empty: int = 0

    @property
    def centre(self) -> int:
        """The object at which paths start."""
        return self.rows // 2 * self.columns + self.columns // 2


def make_shelves(layout: Layout, count: int, seed: int) -> Shelves:
    """Scenes with glyphs drawn evenly, the target's glyph only once, and the path of the rule."""
    generator, number = torch.Generator().manual_seed(seed), layout.rows * layout.columns
    cells = torch.arange(number)
    keys = torch.rand(count, number, generator=generator)
    keys[:, layout.centre] = 2  # is never empty
    vacant = torch.randint(layout.empty + 1, (count, 1), generator=generator)
    there = keys.argsort(1).argsort(1) >= vacant
    weights = there.float()
    weights[:, layout.centre] = float(number == 1)
    target = torch.multinomial(weights, 1, generator=generator)
    glyph = torch.randint(COLOURS * SHAPES, (count, 1), generator=generator)
    others = torch.randint(1, COLOURS * SHAPES, (count, number), generator=generator)
    kinds = ((glyph + others) % (COLOURS * SHAPES)).scatter(1, target, glyph)
    places = torch.stack((cells // layout.columns, cells % layout.columns), -1).masked_fill(~there.unsqueeze(-1), -1)
    places = torch.cat((places, places.gather(1, target.unsqueeze(-1).expand(-1, -1, 2))), 1)
    kinds = torch.cat((kinds, glyph), 1)
    paths = walk(kinds, places, layout.centre, generator)
    lengths = (paths >= 0).sum(1, keepdim=True)
    pointers = torch.nn.functional.pad(paths + 1, (0, 1)).masked_fill(torch.arange(MOST + 1) > lengths, -1)
    return Shelves(glyphs(), kinds, places, pointers)


def walk(kinds: Tensor, places: Tensor, start: int, generator: torch.Generator) -> Tensor:
    """The paths of the rule for scenes of `Shelves`: int64 (scenes, 24), -1 behind the end.

    The same object again with probability 0.2; an earlier one with 0.1; else the new object with the largest likeness
    - 0.3 distance + Gumbel noise, where the likeness is how many of colour and shape it shares with the target. On the
    target the path ends with probability 0.9.

    Args:
        kinds: glyphs, int64 (scenes, objects + 1), the target last.
        places: rows and columns, int64 (scenes, objects + 1, 2), -1 for no object.
        start: the first fixation.
        generator: of the noise.
    """
    objects, glyph, spots, there = kinds[:, :-1], kinds[:, -1:], places[:, :-1], places[:, :-1, 0] >= 0
    target = (spots == places[:, -1:]).all(-1).long().argmax(1)
    like = (objects // SHAPES == glyph // SHAPES).float() + (objects % SHAPES == glyph % SHAPES).float()
    count, number = like.shape
    away = torch.cdist(spots.float(), spots.float())
    current = torch.full((count,), start)
    paths = torch.full((count, MOST), -1)
    seen = torch.zeros_like(there)
    rows, going = torch.arange(count), torch.ones(count, dtype=torch.bool)
    for step in range(MOST):
        paths[:, step] = current.where(going, torch.tensor(-1))
        seen[rows, current] = True
        going = going & ~((current == target) & (torch.rand(count, generator=generator) < STOP))
        noise = -torch.empty(count, number).exponential_(generator=generator).log()
        here = torch.nn.functional.one_hot(current, number).bool()
        new, old = there & ~seen, seen & ~here
        fresh = (like - NEAR * away[rows, current] + noise).masked_fill(~new, -torch.inf).argmax(1)
        back = noise.masked_fill(~old, -torch.inf).argmax(1)
        kind = torch.rand(count, generator=generator)
        looks_back = (kind < STAY + BACK) & old.any(1) | ~new.any(1)
        current = torch.where(kind < STAY, current, torch.where(looks_back & old.any(1), back, fresh))
    return paths


def load_shelves(wanted: Wanted, shelf: tuple[int, int, int], seed: int, splits: Mapping[str, int]) -> Splits:
    """The splits of made scenes of a `Layout`."""
    made = {
        split: make_shelves(Layout(*shelf), count, len(splits) * seed + number)
        for number, (split, count) in enumerate(splits.items())
    }
    return made_splits(made, limit=wanted.limit)
