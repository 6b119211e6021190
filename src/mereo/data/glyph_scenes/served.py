"""Glyph scenes as a data set: nothing is stored, a scene is made when it is asked for, on the device of the step."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mereo.data.batch import Batch
from mereo.data.glyph_scenes.prompts import COLOURS, SHAPES
from mereo.data.glyph_scenes.scenes import SIDE, make_scenes
from mereo.data.images import BatchOptions, Images, identity
from mereo.data.load import Splits, Wanted

NAMES = tuple(f"{colour} {shape}" for shape in SHAPES for colour in COLOURS)
"""Of the kinds of glyphs."""


class GlyphScenes(Images):
    """Scenes by their numbers under a seed: prompts, images, and in `labels` the kind of glyph in each quarter.

    Shapes: numbers int64 (scenes,).
    """

    class_names: tuple[str, ...] = NAMES
    serves = "prompts"

    def __init__(self, numbers: Tensor, seed: int) -> None:
        self.numbers, self.seed = numbers, seed

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return 3, SIDE, SIDE

    @property
    def strata(self) -> Tensor:
        return torch.zeros(len(self), dtype=torch.int64)

    def describe(self) -> dict[str, Any]:
        """The identity of the data as plain values; a scene is a function of its number and the seed."""
        return identity(len(self), (SIDE, self.seed), self.numbers)

    def to(self, device: torch.device | str) -> "GlyphScenes":
        return GlyphScenes(self.numbers.to(device), self.seed)

    def subset(self, indices: Tensor) -> "GlyphScenes":
        return GlyphScenes(self.numbers[indices.to(self.numbers.device)], self.seed)

    def make_batch(self, indices: Tensor, options: BatchOptions) -> Batch:
        """The scenes at `indices`; nothing is cropped."""
        numbers = self.numbers[indices[options.share].to(self.numbers.device)]
        scenes = make_scenes(numbers.to(options.device or numbers.device), self.seed)
        return Batch(images=scenes.images, labels=scenes.kinds, prompts=scenes.tokens)


def load_glyph_scenes(splits: Mapping[str, int], wanted: Wanted) -> Splits:
    """The splits, each with a seed of its own: the same on every machine, a limit takes the first scenes."""
    made = {}
    for seed, (name, size) in enumerate(splits.items()):
        number = min(size, wanted.limit) if name == "train" and wanted.limit is not None else size
        made[name] = GlyphScenes(torch.arange(number), seed)
    return Splits(made["train"], made["validation"], made["test"], NAMES, 3, 0)
