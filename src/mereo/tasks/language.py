"""Language modelling: the next token of a text, such as its next byte."""

import bz2
import gzip
import lzma
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.data import Batch, Images, TokenWindows
from mereo.models.network import Network
from mereo.tasks.base import Metrics, Objective, Settings, Task, precise, register_task
from mereo.tasks.text_pictures import draw_text, shown

COMPRESSORS = {
    "gzip": lambda content: gzip.compress(content, 9),
    "bz2": lambda content: bz2.compress(content, 9),
    "xz": lambda content: lzma.compress(content, preset=9 | lzma.PRESET_EXTREME),
}
_SHOWN, _DRAWN = 60, 12
"""Characters of a title; windows of a picture."""


def compressed_bits(content: bytes) -> dict[str, float]:
    """Bits that gzip, bz2 and xz, each at its highest level, need for a byte of the content."""
    return {name: 8 * len(compress(content)) / max(len(content), 1) for name, compress in COMPRESSORS.items()}


def inputs_and_targets(batch: Batch) -> tuple[Tensor, Tensor]:
    """Tokens that a model reads, and tokens that it should predict, -1 for none: (batch, tokens) each.

    Without labels the targets are the tokens one place later.
    """
    tokens = batch.tokens
    assert tokens is not None
    if batch.labels is not None:
        return tokens, batch.labels
    targets = tokens[:, 1:]
    if batch.lengths is not None:
        places = torch.arange(1, tokens.shape[1], device=tokens.device)
        targets = targets.masked_fill(places >= batch.lengths.unsqueeze(1), -1)
    return tokens[:, :-1], targets


def token_losses(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The summed cross-entropy in nats, and the number of targets that are not -1: () each."""
    rows = scores.flatten(0, 1).float()
    total = F.cross_entropy(rows, targets.flatten(), ignore_index=-1, reduction="sum")
    return total, (targets >= 0).sum()


class LanguageObjective(Objective):
    """A sequence model and the mean cross-entropy of the next token.

    Args:
        model: a `SequenceModel`.
        label_smoothing: of the cross-entropy in training; held-out data is not smoothed.

    Shapes: tokens int64 (batch, tokens + 1) -> loss (), scores (batch, tokens, vocabulary).
    """

    def __init__(self, model: nn.Module, label_smoothing: float = 0.0) -> None:
        super().__init__(model)
        self.label_smoothing = label_smoothing

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        inputs, targets = inputs_and_targets(batch)
        scores = self.model(inputs, _lengths(batch))
        rows = scores.flatten(0, 1).float()
        smoothing = self.label_smoothing
        loss = F.cross_entropy(rows, targets.flatten(), ignore_index=-1, label_smoothing=smoothing)
        return loss, scores

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        total, count = token_losses(outputs, inputs_and_targets(batch)[1])
        return total / count.clamp(min=1)


def _lengths(batch: Batch) -> Tensor | None:
    """Lengths of the inputs."""
    return None if batch.lengths is None else (batch.lengths - 1).clamp(min=1)


class LanguageMetrics(Metrics):
    """Bits per byte, and the share of bytes with the highest score."""

    def __init__(self) -> None:
        super().__init__(3)

    def update(self, outputs: Tensor, batch: Batch) -> None:
        targets = inputs_and_targets(batch)[1]
        total, count = token_losses(outputs, targets)
        correct = (outputs.argmax(-1) == targets).sum()
        self.add(*(value.to(precise(outputs.device)) for value in (total, count, correct)))

    def compute(self) -> dict[str, float]:
        total, count, correct = self.state.tolist()
        return {"bits_per_byte": total / max(count, 1) / math.log(2), "accuracy": correct / max(count, 1)}


@register_task
class Language(Task):
    """Scores for the next byte at every place of a text.

    A model is measured by the bits that it needs for a byte, as a compressor is: -log2 of the probability that it gives
    to the byte that follows, averaged over all bytes. In an evaluation it reads each window by itself, in one pass; of
    a model that is not `causal`, later bytes change the scores of earlier ones there, and the bits may be too few.
    """

    name = "language"
    requires: ClassVar[tuple[str, ...]] = ("tokens",)
    output_kinds = input_kinds = ("tokens",)
    example_model = "tnl_tiny"
    example_data = "pystdlib"
    chooses: ClassVar[tuple[str, Literal["max", "min"]]] = ("bits_per_byte", "min")
    unit = "windows"

    def num_outputs(self, num_classes: int) -> int:
        return num_classes

    def apply(self, model: nn.Module, batch: Batch) -> Tensor:
        scores: Tensor = model(inputs_and_targets(batch)[0], _lengths(batch))
        return scores

    def objective(self, model: nn.Module, settings: Settings) -> LanguageObjective:
        return LanguageObjective(model, settings.label_smoothing)

    def metrics(self) -> LanguageMetrics:
        return LanguageMetrics()

    def remarks(self, model: nn.Module) -> list[str]:
        if getattr(model, "causal", True):
            return []
        return [
            "bits per byte are not strictly autoregressive: a window is read in one pass, in which later bytes change"
            " the scores of earlier ones"
        ]

    def references(self, split: Images) -> dict[str, dict[str, float]]:
        if not isinstance(split, TokenWindows):
            return {}
        return {name: {"bits_per_byte": bits} for name, bits in compressed_bits(split.content).items()}

    def predict(self, outputs: Tensor, top: int = 3) -> list[dict[str, Any]]:
        """The most probable tokens behind each window, with their probabilities."""
        likely = outputs[:, -1].float().softmax(-1).topk(min(top, outputs.shape[-1]), -1)
        return [
            {"next": [[int(token), share] for token, share in zip(tokens, shares, strict=True)]}
            for tokens, shares in zip(likely.indices.tolist(), likely.values.tolist(), strict=True)
        ]

    def example(self, model: nn.Module, count: int, objects: int = 1) -> Batch:
        assert isinstance(model, Network)
        device, length = next(model.parameters()).device, model.input_shape[0]
        return Batch(tokens=torch.randint(model.num_classes, (count, length + 1), device=device))

    def titles(self, batch: Batch) -> list[str]:
        assert batch.tokens is not None
        return [shown(row[1:].tolist())[:_SHOWN] for row in batch.tokens]

    def draw_samples(self, batch: Batch, path: Path) -> None:
        """The text of some windows."""
        assert batch.tokens is not None
        draw_text(batch.tokens[:_DRAWN, 1:].tolist(), None, path)

    @torch.inference_mode()
    def draw(self, model: nn.Module, batch: Batch, prepared: Batch, path: Path) -> None:
        """The text of some windows, each byte on a colour for the number of bits that it needed."""
        inputs, targets = inputs_and_targets(prepared.pick(slice(0, _DRAWN)))
        scores = model(inputs).float()
        bits = F.cross_entropy(scores.transpose(1, 2), targets.clamp(min=0), reduction="none") / math.log(2)
        draw_text(targets.clamp(min=0).tolist(), bits.tolist(), path)

    def show(self, value: float) -> str:
        return f"{value:.3f} bits per byte"

    def summary(self, figures: Mapping[str, Any], chosen: str) -> list[tuple[str, str]]:
        rows = super().summary(figures, chosen)
        return [*rows, ("next byte", f"{100 * figures['accuracy']:.1f} % have the highest score")]
