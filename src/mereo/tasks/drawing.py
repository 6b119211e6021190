"""Drawing: a picture of what a prompt says, judged glyph by glyph.

Source: ours; the loss is that of velocities, Salimans, Ho 2022, arXiv:2202.00512.
"""

from collections.abc import Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.data import Batch
from mereo.data.glyph_scenes.prompts import KINDS, PAD, START, decode, encode, is_glyph, placements, understand
from mereo.data.glyph_scenes.scenes import make_scenes
from mereo.errors import UsageError
from mereo.tasks.base import Metrics, Objective, Seen, Settings, Task, register_task
from mereo.tasks.classification import accuracy_figures
from mereo.tasks.pictures import draw_images

EMPTY_SHARE, JUDGE_NOISE = 0.1, 0.15
"""Share of training prompts that are emptied for guidance, and most noise on the images of the judge."""
UNCLEAR = 0.5
"""Probability below which the judge names no glyph."""
_DRAWN = 16


def judged(model: Any, images: Tensor) -> Tensor:
    """The kind of the glyph in each quarter, -1 for none and for one that is unclear: int64 (batch, 4)."""
    share, kind = model.judge(images.to(next(model.parameters()).dtype)).float().softmax(-1).max(-1)
    return kind.masked_fill((kind == KINDS) | (share < UNCLEAR), -1)


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
    """The squared error of the velocity at random times, and the cross-entropy of the judge on the true images."""

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        from mereo.models.sequence.tinydiff import schedule

        images, count = 2 * batch.images - 1, len(batch.images)
        steps = torch.arange(count, device=images.device)
        time = ((steps + torch.rand(count, device=images.device)) / count)[torch.randperm(count, device=images.device)]
        noise = torch.randn_like(images)
        a, s = (part[:, None, None, None] for part in schedule(time))
        empty = torch.rand(count, 1, device=images.device) < EMPTY_SHARE
        prompts = batch.prompts.masked_fill(empty & (batch.prompts != START), PAD)
        found = self.model(prompts, a * images + s * noise, time)
        spoiled = batch.images + JUDGE_NOISE * torch.rand(count, 1, 1, 1, device=images.device) * noise
        scores = self.model.judge(spoiled)
        kinds = batch.labels.where(batch.labels >= 0, KINDS)
        loss = F.mse_loss(found.float(), a * noise - s * images)
        return loss + 0.1 * F.cross_entropy(scores.float().flatten(0, 1), kinds.flatten()), batch.images

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The cross-entropy of the judge: how far the glyphs of drawn images are from the true ones of any place."""
        kinds = batch.labels.where(batch.labels >= 0, KINDS)
        return F.cross_entropy(self.model.judge(outputs).float().flatten(0, 1), kinds.flatten())
