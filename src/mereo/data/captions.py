"""Scenes of 4 x 4 cells that hold classes in pairs, their captions and questions about them, as rows of a table.

Source: ours, the smallest whole of arXiv:2503.03321; questions as in POPE, arXiv:2305.10355.
"""

from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.data.batch import Batch
from mereo.data.images import BatchOptions, Images, identity
from mereo.data.regions import read_scenes
from mereo.errors import UsageError, check_choice, check_seed, unknown

SIDE, CELLS, FEATURES = 4, 16, 16
CLASSES = ("fork", "knife", "keyboard", "mouse", "bat", "ball", "cat", "sofa")
"""Neighbours are a pair."""
START, END, DESCRIBE, YES, NO, FIRST = range(6)
"""Tokens; the classes begin with FIRST."""
TOKENS = ("start", "end", "describe", "yes", "no", *CLASSES)
TEXT = len(CLASSES) + 1
LENGTH, NOISE, PAIRS = 2.5, 0.9, 0.4
"""Length of a prototype, deviation of the noise, and the probability of each pair."""
NEGATIVES = ("random", "adversarial")
CAPTION = -1
"""What a sample asks for in place of a class."""


class Scenes(NamedTuple):
    """Scenes: features float32 (scenes, 16 cells, 16), and which classes are there, bool (scenes, 8)."""

    features: Tensor
    present: Tensor

    def pick(self, places: Tensor) -> "Scenes":
        """The scenes at these places."""
        return Scenes(self.features[places], self.present[places])


def prototypes() -> Tensor:
    """The features of a class without noise: (8, 16), each of length 2.5."""
    drawn = torch.randn(len(CLASSES), FEATURES, generator=torch.Generator().manual_seed(0))
    return LENGTH * F.normalize(drawn, dim=1)


def draw_scenes(count: int, together: float, generator: torch.Generator) -> Scenes:
    """Each pair is there with probability 0.4: one of its classes, and the other with probability `together`."""
    pairs = len(CLASSES) // 2
    there = torch.rand(count, pairs, generator=generator) < PAIRS
    one = torch.randint(0, 2, (count, pairs), generator=generator)
    both = torch.rand(count, pairs, generator=generator) < together
    present = ((torch.arange(2) == one[..., None]) | both[..., None]) & there[..., None]
    return fill_cells(present.flatten(1), generator)


def fill_cells(present: Tensor, generator: torch.Generator) -> Scenes:
    """Noise in every cell, and the prototype of each class in a cell of its own: bool (scenes, 8) -> scenes."""
    cells = torch.rand(len(present), CELLS, generator=generator).argsort(1)[:, : len(CLASSES)]
    features = NOISE * torch.randn(len(present), CELLS, FEATURES, generator=generator)
    shown = present.unsqueeze(-1) * prototypes()
    return Scenes(features.scatter_add(1, cells.unsqueeze(-1).expand(-1, -1, FEATURES), shown), present)


def scene_of(words: str, seed: int) -> Scenes:
    """A scene that holds the classes of a text such as "fork, cat", drawn with a seed."""
    check_seed(seed)
    names = [word.strip() for word in words.split(",") if word.strip()]
    for name in names:
        if name not in CLASSES:
            raise unknown("class", name, CLASSES)
    present = torch.tensor([[name in names for name in CLASSES]])
    # The prototypes are the first draws of seed 0, which must not be the noise.
    return fill_cells(present, torch.Generator().manual_seed(2**31 + seed))


def read_scene(path: Path) -> Scenes:
    """The scenes of a file .npy or .npz of features (16, 16) or (scenes, 16, 16); what they hold is not known."""
    features = read_scenes(path).regions
    if features.shape[1:] != (CELLS, FEATURES):
        raise UsageError(f"{path} holds {tuple(features.shape)}; it must be (scenes, {CELLS}, {FEATURES}).")
    return Scenes(features, torch.zeros(len(features), len(CLASSES), dtype=torch.bool))


def captions_of(present: Tensor) -> Tensor:
    """The tokens of the classes in order, then END: bool (scenes, 8) -> int64 (scenes, 9)."""
    classes = torch.where(present, torch.arange(len(CLASSES), device=present.device), len(CLASSES))
    ordered = F.pad(classes.sort(1).values, (0, 1), value=len(CLASSES))
    return torch.where(ordered < len(CLASSES), ordered + FIRST, END)


def named(tokens: Tensor) -> Tensor:
    """The classes that captions name before their END: int64 (captions, length) -> bool (captions, 8)."""
    live = (tokens == END).cumsum(1) == 0
    classes = F.one_hot((tokens - FIRST).clamp(min=-1) + 1, len(CLASSES) + 1)[..., 1:].bool()
    return (classes & live.unsqueeze(-1)).any(1)


def text_rows(tokens: Tensor, width: int = FEATURES + 1) -> Tensor:
    """Rows of a text: int64 (batch, length) -> (batch, length, width)."""
    return F.pad(tokens.float().unsqueeze(-1), (width - 1, 0))


def scene_rows(features: Tensor, tokens: Tensor) -> Tensor:
    """Rows of scenes with a text: (batch, 16, 16), int64 (batch, length) -> (batch, 16 + length, 17)."""
    return torch.cat((F.pad(features, (0, 1)), text_rows(tokens).to(features.device)), 1)


def ask(scenes: Scenes, asked: Tensor, filler: int = 0) -> tuple[Tensor, Tensor]:
    """Rows with their targets: the caption of a scene where `asked` is -1, else whether the class is there.

    Args:
        asked: int64 (scenes,).
        filler: start tokens between image and text.

    Shapes: -> rows (scenes, 16 + filler + 9, 17), tokens that follow the last rows int64 (scenes, 9), padded with END.
    """
    captions = captions_of(scenes.present)
    there = scenes.present.gather(1, asked.clamp(min=0).unsqueeze(1)).squeeze(1)
    answers = F.pad(torch.where(there, YES, NO).unsqueeze(1), (0, TEXT - 1), value=END)
    targets = torch.where((asked == CAPTION).unsqueeze(1), captions, answers)
    first = torch.where(asked == CAPTION, DESCRIBE, asked + FIRST).unsqueeze(1)
    tokens = torch.cat((first.new_full((len(first), filler), START), first, targets[:, :-1]), 1)
    return scene_rows(scenes.features, tokens), targets


def questions(present: Tensor, negatives: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Questions about every class that is there, and about equally many that are not: the scene and the class of each.

    Args:
        negatives: "random" classes, or "adversarial": the absent partners of classes that are there come first.

    Shapes: bool (scenes, 8) -> int64 (questions,), int64 (questions,).
    """
    check_choice("negatives", negatives, NEGATIVES)
    order = torch.rand(present.shape, generator=generator)
    if negatives == "adversarial":
        order = order - present.unflatten(1, (-1, 2)).flip(2).flatten(1).float()
    rank = order.masked_fill(present, torch.inf).argsort(1).argsort(1)
    asked = present | ((rank < present.sum(1, keepdim=True)) & ~present)
    scene, kind = asked.nonzero().unbind(1)
    return scene, kind


class CaptionScenes(Images):
    """Captions of scenes and questions about them; with a generator (training) every access draws new scenes.

    Args:
        scene: the scene of each sample, int64 (n,).
        asked: the class that each sample asks for, -1 for a caption, int64 (n,).
        together: probability that a pair is there together.
        seed: of the scenes that stay, the n-th drawn for the number n.
        filler: start tokens between image and text.
        scenes: those that stay, if they are known.
    """

    class_names: tuple[str, ...] = TOKENS
    serves = "rows"
    labels_per_image = TEXT

    def __init__(
        self, scene: Tensor, asked: Tensor, together: float, seed: int, filler: int = 0, scenes: Scenes | None = None
    ) -> None:
        if scene.shape != asked.shape:
            raise UsageError(f"scene is {tuple(scene.shape)} and asked {tuple(asked.shape)}; they must be alike.")
        self.scene, self.asked, self.together, self.seed, self.filler = scene, asked, together, seed, filler
        self._given = scenes

    @cached_property
    def scenes(self) -> Scenes:
        """The scenes that stay."""
        if self._given is not None:
            return self._given
        count = int(self.scene.max()) + 1 if len(self.scene) else 0
        return draw_scenes(count, self.together, torch.Generator().manual_seed(self.seed))

    def __len__(self) -> int:
        return len(self.scene)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(1, rows, 17): what a sample takes in memory."""
        return 1, CELLS + self.filler + TEXT, FEATURES + 1

    @property
    def strata(self) -> Tensor:
        return (self.asked > CAPTION).long()

    def describe(self) -> dict[str, Any]:
        """The identity of the data as plain values."""
        return identity(len(self), (self.seed, self.filler, round(1000 * self.together)), self.scene, self.asked)

    def to(self, device: torch.device | str) -> "CaptionScenes":
        """The same set; scenes are drawn on the CPU, and batches are copied to their device."""
        return self

    def subset(self, indices: Tensor) -> "CaptionScenes":
        scene, asked = self.scene[indices.cpu()], self.asked[indices.cpu()]
        return CaptionScenes(scene, asked, self.together, self.seed, self.filler, self.scenes)

    def make_batch(self, indices: Tensor, options: BatchOptions) -> Batch:
        """The samples at `indices`: rows, and as labels the tokens that follow the last of them."""
        asked = self.asked[indices.cpu()]
        if options.generator is not None:
            scenes = draw_scenes(len(asked), self.together, options.generator)
        else:
            scenes = self.scenes.pick(self.scene[indices.cpu()])
        rows, labels = ask(scenes, asked, self.filler)
        batch = Batch(rows=rows[options.share], labels=labels[options.share])
        return batch if options.device is None else batch.to(options.device)


def training_set(captions: int, together: float, seed: int, filler: int) -> CaptionScenes:
    """As many questions as captions, in turn; each asks for a class that is drawn once."""
    generator = torch.Generator().manual_seed(seed)
    asked = torch.randint(0, len(CLASSES), (2 * captions,), generator=generator)
    asked[::2] = CAPTION
    return CaptionScenes(torch.arange(2 * captions), asked, together, seed, filler)


def test_set(
    captions: int, together: float, seed: int, filler: int = 0, negatives: str = "random", most: int | None = None
) -> CaptionScenes:
    """A caption of every scene, then the questions about them, `most` of them if there are more."""
    generator = torch.Generator().manual_seed(seed)
    scenes = draw_scenes(captions, together, generator)
    scene, kind = (each[:most] for each in questions(scenes.present, negatives, generator))
    asked = torch.cat((torch.full((captions,), CAPTION), kind))
    return CaptionScenes(torch.cat((torch.arange(captions), scene)), asked, together, seed, filler, scenes)
