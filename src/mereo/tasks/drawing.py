"""Drawing: a picture of what a prompt says, judged glyph by glyph.

Source: ours; the loss of velocities is from Salimans, Ho 2022, arXiv:2202.00512.
"""

import textwrap
from collections.abc import Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.data import Batch, Images
from mereo.data.glyph_scenes.prompts import KINDS, MOST, PAD, START, decode, is_glyph, placements, understand
from mereo.data.glyph_scenes.scenes import make_scenes, noise_for
from mereo.data.glyph_scenes.served import NAMES
from mereo.errors import UsageError
from mereo.models.sequence.tinydiff import with_noise
from mereo.tasks.base import Metrics, Objective, Settings, Task, register_task
from mereo.tasks.classification import accuracy_figures
from mereo.tasks.pictures import draw_images

EMPTY_SHARE, JUDGE_NOISE, JUDGE_WEIGHT = 0.1, 0.15, 0.1
"""Share of training prompts that are emptied for guidance, most noise on the images of the judge, and its weight."""
UNCLEAR = 0.5
"""Probability below which the judge names no glyph."""
QUARTERS = ("top left", "top right", "bottom left", "bottom right")
_DRAWN, _COLUMNS, _LINE = 16, 4, 27


class Drawn(NamedTuple):
    """The outputs for prompts.

    Attributes:
        images: in [0, 1], (batch, 3, height, width).
        scores: of the judge for the quarters, (batch, 4, KINDS + 1).
    """

    images: Tensor
    scores: Tensor

    @property
    def kinds(self) -> Tensor:
        """The glyph that the judge names in each quarter, -1 for none and for one that is unclear: int64 (batch, 4)."""
        share, kind = self.scores.float().softmax(-1).max(-1)
        return kind.masked_fill((kind == KINDS) | (share < UNCLEAR), -1)


def judged(model: Any, images: Tensor) -> Drawn:
    """Images with the scores of the judge of a network."""
    return Drawn(images, model.judge(images.to(next(model.parameters()).dtype)))


def shown(prompt: str, kinds: Sequence[int]) -> tuple[int, int, bool]:
    """How many glyphs a prompt names, how many of them are somewhere, and whether all are where the prompt says.

    Args:
        kinds: of the glyphs in the quarters.
    """
    glyphs = understand(prompt)
    most = max(
        sum(is_glyph(kind, glyph) for kind, glyph in zip(order, glyphs, strict=True))
        for order in permutations(kinds, len(glyphs))
    )
    placed = any(
        all(is_glyph(kinds[place], glyph) for place, glyph in zip(places, glyphs, strict=True))
        for places in placements(glyphs)
    )
    return len(glyphs), most, placed


class DrawingObjective(Objective):
    """The squared error of the velocity at random times, and the cross-entropy of the judge on the true images.

    The density of a time t is 2 t: with much noise the words decide, and there is most to learn from them.
    """

    def step(self, batch: Batch) -> tuple[Tensor, Drawn]:
        images, count, device = 2 * batch.images - 1, len(batch.images), batch.images.device
        time = ((torch.randperm(count, device=device) + torch.rand(count, device=device)) / max(count, 1)).sqrt()
        noise = torch.randn_like(images)
        noisy, velocity = with_noise(images, noise, time)
        empty = torch.rand(count, 1, device=device) < EMPTY_SHARE
        prompts = batch.prompts.masked_fill(empty & (batch.prompts != START), PAD)
        found = self.model(prompts, noisy, time)
        spoiled = batch.images + JUDGE_NOISE * torch.rand(count, 1, 1, 1, device=device) * noise
        drawn = Drawn(batch.images, self.model.judge(spoiled))
        return F.mse_loss(found.float(), velocity) + JUDGE_WEIGHT * self.loss(drawn, batch), drawn

    def loss(self, outputs: Drawn, batch: Batch) -> Tensor:
        """The cross-entropy of the judge: how far the drawn glyphs are from the true ones, quarter by quarter."""
        kinds = batch.labels.where(batch.labels >= 0, KINDS)
        return F.cross_entropy(outputs.scores.float().flatten(0, 1), kinds.flatten())


class DrawingMetrics(Metrics):
    """The share of prompts all of whose glyphs are where they should be, of named glyphs that are anywhere, and of both
    by the number of glyphs."""

    def __init__(self) -> None:
        super().__init__(4 * MOST)

    def update(self, outputs: Drawn, batch: Batch) -> None:
        sums = torch.zeros(MOST, 4, dtype=torch.float64)
        for prompt, kinds in zip(decode(batch.prompts), outputs.kinds.tolist(), strict=True):
            named, there, placed = shown(prompt, kinds)
            sums[named - 1] += torch.tensor([1, placed, named, there])
        self.add(sums)

    def compute(self) -> dict[str, float]:
        each = self.state.view(MOST, 4).cpu()
        prompts, right, named, there = each.sum(0).tolist()
        figures = accuracy_figures(right, int(prompts)) | {"glyphs": there / max(named, 1)}
        shares = (each[:, 1] / each[:, 0].clamp(min=1)).tolist()
        return figures | {f"accuracy_{number + 1}": share for number, share in enumerate(shares)}


@register_task
class Drawing(Task):
    """A picture for a prompt, correct if a judge finds each named glyph in its colour and place."""

    name = "drawing"
    requires = ("prompts", "images", "labels")
    input_kinds = ("prompts",)
    output_kinds = ("images",)
    chooses = ("accuracy", "max")
    is_share = True
    unit = "prompts"
    outputs_are = "pictures"
    may_mirror = False
    example_model = "tinydiff"
    example_data = "glyph_scenes"
    train_metrics = False
    settings: ClassVar[Mapping[str, Any]] = {
        "batch_size": 64, "epochs": 5, "lr": 3e-3, "clip_norm": 1.0, "ema_decay": 0.999,
    }  # fmt: skip
    most_drawn = _DRAWN

    def num_outputs(self, num_classes: int) -> int:
        return 0

    @torch.no_grad()
    def apply(self, model: nn.Module, batch: Batch) -> Drawn:
        """Pictures from noise that depends on the prompt only."""
        drawing: Any = model
        words, mask = drawing.forward_features(batch.prompts)
        noise = noise_for(batch.prompts, tuple(drawing.start.shape)).to(words.dtype)
        return judged(model, drawing.sample(words, mask, noise, drawing.steps, drawing.guidance))

    def objective(self, model: nn.Module, settings: Settings) -> DrawingObjective:
        if settings.mixup or settings.cutmix:
            raise UsageError("mixup and cutmix change images, and prompts would no longer be true; leave them out.")
        return DrawingObjective(model)

    def metrics(self) -> DrawingMetrics:
        return DrawingMetrics()

    def predict(self, outputs: Drawn, top: int = 3) -> list[dict[str, Any]]:
        """The glyphs that the judge names in the quarters of each picture."""
        return [
            {quarter: NAMES[kind] for quarter, kind in zip(QUARTERS, row, strict=True) if kind >= 0}
            for row in outputs.kinds.tolist()
        ]

    def references(self, split: Images) -> dict[str, dict[str, float]]:
        """None: the judge belongs to a network."""
        return {}

    def example(self, model: nn.Module, count: int, objects: int = 1) -> Batch:
        drawing: Any = model
        side: int = drawing.start.shape[-1]
        scenes = make_scenes(torch.arange(count, device=drawing.start.device))
        images = F.interpolate(scenes.images, size=(side, side)) if count else scenes.images[..., :side, :side]
        return Batch(images=images, labels=scenes.kinds, prompts=scenes.tokens)

    def titles(self, batch: Batch) -> list[str]:
        return [textwrap.fill(prompt, _LINE) for prompt in decode(batch.prompts)]

    def draw_samples(self, batch: Batch, path: Path) -> None:
        """Some scenes with their prompts."""
        shown_here = batch.pick(slice(0, _DRAWN))
        draw_images(shown_here.images, self.titles(shown_here), path, columns=_COLUMNS, side=1.6)

    def draw(self, model: nn.Module, batch: Batch, prepared: Batch, path: Path) -> None:
        """Some prompts with the pictures, those that the judge refuses with a red title."""
        chosen = prepared.pick(slice(0, _DRAWN))
        drawn = self.apply(model, chosen)
        draw_judged(decode(chosen.prompts), drawn, path)

    def summary(self, figures: Mapping[str, Any], chosen: str) -> list[tuple[str, str]]:
        each = ", ".join(f"{n} {100 * figures[f'accuracy_{n}']:.1f} %" for n in range(1, MOST + 1))
        rows = [("by the number of glyphs", each), ("named glyphs anywhere", f"{100 * figures['glyphs']:.1f} %")]
        return [*super().summary(figures, chosen), *rows]


def draw_judged(prompts: Sequence[str], drawn: Drawn, path: Path) -> None:
    """Pictures with their prompts; red where a glyph is missing or misplaced."""
    right = [shown(prompt, kinds)[2] for prompt, kinds in zip(prompts, drawn.kinds.tolist(), strict=True)]
    titles = [textwrap.fill(prompt, _LINE) for prompt in prompts]
    columns = min(_COLUMNS, max(len(titles), 1))
    draw_images(drawn.images.float(), titles, path, columns, [not each for each in right], side=1.6)
