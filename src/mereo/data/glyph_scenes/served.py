"""Glyph scenes as a data set: nothing is stored, a scene is made when it is asked for, on the device of the step."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mereo.data.batch import Batch
from mereo.data.glyph_scenes.prompts import COLOURS, SHAPES
from mereo.data.glyph_scenes.scenes import SIDE, make_scenes
from mereo.data.images import BatchOptions, identity
from mereo.data.load import Splits, Wanted, limited, made_splits
from mereo.data.tensor_set import TensorSet

NAMES = tuple(f"{colour} {shape}" for shape in SHAPES for colour in COLOURS)
"""Of the kinds of glyphs."""


class GlyphScenes(TensorSet):
    """Scenes by their numbers under a seed: prompts, images, and in `labels` the kind of glyph in each quarter.

    Shapes: numbers int64 (scenes,).
    """

    class_names: tuple[str, ...] = NAMES
    serves = "prompts"
    of_samples = ("numbers",)

    def __init__(self, numbers: Tensor, seed: int) -> None:
        self.numbers, self.seed = numbers, seed

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return 3, SIDE, SIDE

    def describe(self) -> dict[str, Any]:
        """The identity of the data as plain values; a scene is a function of its number and the seed."""
        return identity(len(self), (SIDE, self.seed), self.numbers)

    def make_batch(self, indices: Tensor, options: BatchOptions) -> Batch:
        """The scenes at `indices`; nothing is cropped."""
        numbers = self.numbers[indices[options.share].to(self.numbers.device)]
        scenes = make_scenes(numbers.to(options.device or numbers.device), self.seed)
        return Batch(images=scenes.images, labels=scenes.kinds, prompts=scenes.tokens)


def load_glyph_scenes(wanted: Wanted, splits: Mapping[str, int]) -> Splits:
    """The splits, each with a seed of its own."""
    sizes = limited(splits, wanted.limit)
    made = {name: GlyphScenes(torch.arange(size), seed) for seed, (name, size) in enumerate(sizes.items())}
    return made_splits(made, NAMES, 3)
