"""Recall: scores at places of a sequence that have a label, such as the values of keys that were read before.

Source: arXiv:2312.04927, multi-query associative recall.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mereo.data import Batch, Images
from mereo.data.match3 import read_triples
from mereo.data.recall import read_query
from mereo.errors import check_choice
from mereo.models.network import Network
from mereo.pictures import new_figure, save_figure
from mereo.tasks.base import Task, register_task
from mereo.tasks.language import Language

_DRAWN, _SHADES = 12, {"": "black", "correct": "#2b8a3e", "wrong": "#c92a2a"}


READERS = {"pairs": read_query, "triples": read_triples}
"""How a written sequence is read: pairs of keys and values and then keys, or three groups of numbers."""


@dataclass(frozen=True)
class RecallOptions:
    """Options of a recall task.

    Args:
        problem: what the labels are: with "pairs" the values of keys, with "triples" whether a number sums to 0 with
            one of each of two groups.
    """

    problem: str = "pairs"

    def __post_init__(self) -> None:
        check_choice("problem", self.problem, READERS)


@register_task
class Recall(Language):
    """Scores at the places of a sequence that have a label: the values of keys that stand earlier in it.

    Accuracy is the share of the labelled places whose label has the highest score.
    """

    name = "recall"
    Options = RecallOptions
    requires = ("tokens", "labels")
    example_model = "causal_transformer_tiny"
    example_data = "mqar"
    chooses = ("accuracy", "max")
    is_share = True
    unit = "sequences"
    settings: ClassVar[Mapping[str, Any]] = {"batch_size": 64, "epochs": 10, "lr": 3e-3}

    show, summary, remarks = Task.show, Task.summary, Task.remarks  # no answer stands behind its query

    def references(self, split: Images) -> dict[str, dict[str, float]]:
        return {}

    def read(self, text: str, vocab: int) -> tuple[Tensor, Tensor]:
        """The tokens of a sequence of whole numbers, and the label of each place: int64 (1, length) each."""
        return READERS[self.options.problem](text, vocab)

    def kept(self, outputs: Tensor) -> Tensor:
        """The token of the highest score and its probability at each place: float (batch, length, 2)."""
        best = outputs.float().softmax(-1).max(-1)
        return torch.stack((best.indices.to(best.values), best.values), -1)

    def predict(self, outputs: Tensor, top: int = 3) -> list[dict[str, Any]]:
        """The token with the highest score at every place."""
        return [{"tokens": row} for row in outputs[..., 0].long().tolist()]

    def example(self, model: nn.Module, count: int, objects: int = 1) -> Batch:
        assert isinstance(model, Network)
        device, length = next(model.parameters()).device, model.input_shape[0]
        tokens, labels = torch.randint(model.num_classes, (2, count, length), device=device)
        places = torch.arange(length, device=device)
        return Batch(tokens=tokens, labels=labels.masked_fill(places < length // 2, -1))

    def titles(self, batch: Batch) -> list[str]:
        assert batch.tokens is not None
        return [f"{int((row >= 0).sum())} queries in {len(row)} tokens" for row in batch.labels]

    def draw_samples(self, batch: Batch, path: Path) -> None:
        """Some sequences with the answers below their queries."""
        draw_recall(batch.pick(slice(0, _DRAWN)), None, path)

    @torch.inference_mode()
    def draw(self, model: nn.Module, batch: Batch, prepared: Batch, path: Path) -> None:
        """Some sequences with the predicted answers, green where they are correct and red where not."""
        shown = prepared.pick(slice(0, _DRAWN))
        draw_recall(shown, self.apply(model, shown).argmax(-1), path)


def draw_recall(batch: Batch, predicted: Tensor | None, path: Path) -> None:
    """A row for each sequence: its tokens without the zeros, an arrow and the answer behind each query.

    Args:
        predicted: int64 (batch, length); None draws the labels.
    """
    assert batch.tokens is not None
    answers = batch.labels if predicted is None else predicted
    rows: list[list[tuple[str, str]]] = []
    for tokens, labels, given in zip(batch.tokens.tolist(), batch.labels.tolist(), answers.tolist(), strict=True):
        row = []
        for token, label, answer in zip(tokens, labels, given, strict=True):
            if label >= 0:
                kind = "" if predicted is None else "correct" if answer == label else "wrong"
                row.append((f"{token}\u2192{answer}", kind))
            elif token:
                row.append((str(token), ""))
        rows.append(row)
    columns = max(map(len, rows), default=1)
    figure = new_figure(1 + 0.55 * columns, 0.5 + 0.28 * len(rows))
    axes = figure.subplots()
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axes.set_axis_off()
    for y, row in enumerate(rows):
        for x, (text, kind) in enumerate(row):
            axes.text(x, y, text, ha="center", va="center", fontsize=7, family="monospace", color=_SHADES[kind])
    save_figure(figure, path)
