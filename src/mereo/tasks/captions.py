"""Captions: what a scene shows, in words, and yes-or-no questions; how often something absent is named.

Source: CHAIR, arXiv:1809.02156; POPE, arXiv:2305.10355; scenes are ours.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.data import Batch
from mereo.data.captions import (
    CELLS,
    CLASSES,
    END,
    FIRST,
    NO,
    SIDE,
    TEXT,
    TOKENS,
    YES,
    CaptionScenes,
    named,
    prototypes,
    text_rows,
)
from mereo.errors import UsageError
from mereo.interventions.paint import contrast
from mereo.models.network import Network
from mereo.pictures import grid_of_panels, save_figure
from mereo.tasks.base import Metrics, Objective, Settings, Task, register_task

_DRAWN, _ACROSS = 12, 4
_RIGHT, _WRONG, _MISSED = "#2b8a3e", "#c92a2a", "#868e96"
Intervention = Callable[[nn.Module], AbstractContextManager[Any]]


def generate(model: nn.Module, rows: Tensor, length: int = TEXT, gamma: float = 1.0) -> tuple[Tensor, Tensor]:
    """Continue rows of an image and a prompt by the tokens of the highest scores, read one after the other.

    Args:
        gamma: of `mereo.interventions.contrast`; 1 reads the image only.

    Shapes: (batch, rows, features + 1) -> tokens int64 (batch, length), scores of the first one (batch, vocabulary).
    """
    network: Any = model
    caches = [network.new_cache() for _ in range(1 + (gamma != 1))]
    drawn, first = [], None
    for _ in range(length):
        scores = [network(rows, cache=cache, image=number == 0)[:, -1] for number, cache in enumerate(caches)]
        first = scores[0] if first is None else first
        drawn.append((scores[0] if gamma == 1 else contrast(scores[0], scores[1], gamma)).argmax(-1))
        rows = text_rows(drawn[-1].unsqueeze(1), rows.shape[2]).to(rows)
    assert first is not None
    return torch.stack(drawn, 1), first


class Named(NamedTuple):
    """The outputs of a network for a batch.

    Attributes:
        scores: for the true text, (batch, 9, vocabulary).
        tokens: its own text, int64 (batch, 9).
        first: scores of the first token, (batch, vocabulary).
    """

    scores: Tensor
    tokens: Tensor
    first: Tensor


class CaptionObjective(Objective):
    """The cross-entropy of a text up to its END, the tokens before being the true ones."""

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        scores = self.model(batch.rows)[:, -TEXT:]
        return _loss(scores, batch.labels), scores

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        return _loss(outputs.scores if isinstance(outputs, Named) else outputs, batch.labels)


def _loss(scores: Tensor, labels: Tensor) -> Tensor:
    wanted = labels.masked_fill((labels == END).cumsum(1) > 1, -1)
    total = F.cross_entropy(scores.flatten(0, 1).float(), wanted.flatten(), ignore_index=-1, reduction="sum")
    return total / (wanted >= 0).sum().clamp(min=1)


class CaptionMetrics(Metrics):
    """CHAIR of captions and accuracy of answers, each with what shows that it was not bought by saying less.

    chair_s: share of captions that name something absent; chair_i: share of what is named that is absent; recall: share
    of what is there that is named; length: classes named in a caption. Of questions: accuracy, precision, recall and F1
    of yes, and the share of yes.
    """

    def __init__(self) -> None:
        super().__init__(12)

    def update(self, outputs: Any, batch: Batch) -> None:
        labels = batch.labels
        if not isinstance(outputs, Named):  # in training: the tokens that follow the true ones
            outputs = Named(outputs, outputs.argmax(-1), outputs[:, 0])
        asks = (labels[:, 0] == YES) | (labels[:, 0] == NO)
        given, true = named(outputs.tokens) & ~asks[:, None], named(labels) & ~asks[:, None]
        wrong = given & ~true
        length = ((outputs.tokens == END).cumsum(1) == 0).sum(1) * ~asks
        yes = (outputs.first[:, YES] > outputs.first[:, NO]) & asks
        right = (labels[:, 0] == YES) & asks
        sums = [
            ~asks, wrong.any(1), wrong, given, given & true, true, length, asks, yes & right, yes, right,
        ]  # fmt: skip
        counts = torch.stack([each.sum() for each in sums])
        agree = (yes == right)[asks].sum()
        self.add(counts[:9], agree, counts[9:])

    def compute(self) -> dict[str, float]:
        captions, hallucinating, wrong, given, found, true, length, asked, hits, agree, yes, right = self.state.tolist()
        share = {
            "chair_s": (hallucinating, captions), "chair_i": (wrong, given), "recall": (found, true),
            "length": (length, captions), "answers": (agree, asked), "precision": (hits, yes),
            "yes_recall": (hits, right), "f1": (2 * hits, yes + right), "yes": (yes, asked),
        }  # fmt: skip
        return {name: part / max(whole, 1) for name, (part, whole) in share.items()}


def evaluate_captions(
    model: nn.Module, split: CaptionScenes, intervention: Intervention | None = None, *, gamma: float = 1.0,
    batch_size: int = 300,
) -> dict[str, float]:  # fmt: skip
    """The metrics of captions and answers of a split, with an intervention on each batch.

    Args:
        intervention: model -> context manager, opened anew for each batch.
        gamma: see `generate`.
    """
    metrics, prompt = CaptionMetrics(), CELLS + split.filler + 1
    with torch.inference_mode():
        for part in torch.arange(len(split)).split(batch_size):
            batch = split.batch(part, device=next(model.parameters()).device)
            assert batch.rows is not None
            with nullcontext() if intervention is None else intervention(model):
                tokens, first = generate(model, batch.rows[:, :prompt], gamma=gamma)
            metrics.update(Named(first.unsqueeze(1), tokens, first), batch)
    return metrics.compute()


@register_task
class Captions(Task):
    """The classes that a scene shows, in words, and yes-or-no answers to questions about them."""

    name = "captions"
    requires = ("rows", "labels")
    output_kinds = ("tokens",)
    input_kinds = ("rows",)
    chooses = ("chair_i", "min")
    is_share = True
    unit = "captions and questions"
    outputs_are = "texts"
    may_mirror = False
    example_model = "tinyvl"
    example_data = "captions"
    settings: ClassVar[Mapping[str, Any]] = {"batch_size": 96, "epochs": 1, "lr": 2e-3, "weight_decay": 0.01}
    most_drawn = _DRAWN
    train_metrics = False

    @property
    def output_names(self) -> tuple[str, ...]:
        return TOKENS

    def num_outputs(self, num_classes: int) -> int:
        return len(TOKENS)

    def apply(self, model: nn.Module, batch: Batch) -> Named:
        """Scores of the true text, and the network's own text."""
        assert batch.rows is not None
        scores: Tensor = model(batch.rows)[:, -TEXT:]
        tokens, first = generate(model, batch.rows[:, : batch.rows.shape[1] - TEXT + 1])
        return Named(scores, tokens, first)

    def objective(self, model: nn.Module, settings: Settings) -> CaptionObjective:
        if settings.mixup or settings.cutmix or settings.label_smoothing:
            raise UsageError("mixup, cutmix and label_smoothing are not for captions; leave them out.")
        return CaptionObjective(model)

    def metrics(self) -> CaptionMetrics:
        return CaptionMetrics()

    def kept(self, outputs: Named) -> Tensor:
        """The network's own text, int64 (batch, 9)."""
        return outputs.tokens

    def predict(self, outputs: Tensor, top: int = 3) -> list[dict[str, Any]]:
        """The caption of each scene, or the answer to its question."""
        return [{"caption": _words(tokens)} for tokens in outputs.tolist()]

    def example(self, model: nn.Module, count: int, objects: int = 1) -> Batch:
        assert isinstance(model, Network)
        rows = model.example_inputs(count)
        text = torch.randint(min(END, model.num_classes - 1), model.num_classes, (count, TEXT), device=rows.device)
        rows = torch.cat((rows[:, :-TEXT], text_rows(text, rows.shape[2]).to(rows)), 1)
        return Batch(rows=rows, labels=text.roll(-1, 1))

    def titles(self, batch: Batch) -> list[str]:
        return [_words(tokens) for tokens in batch.labels.tolist()]

    def draw_samples(self, batch: Batch, path: Path) -> None:
        """Some scenes with their captions."""
        shown = batch.pick(slice(0, _DRAWN))
        draw_captions(shown, shown.labels, path)

    @torch.inference_mode()
    def draw(self, model: nn.Module, batch: Batch, prepared: Batch, path: Path) -> None:
        """Some scenes with what was named, green where it is there and red where not."""
        shown = prepared.pick(slice(0, _DRAWN))
        draw_captions(shown, self.apply(model, shown).tokens, path)

    def summary(self, figures: Mapping[str, Any], chosen: str) -> list[tuple[str, str]]:
        shown = ("chair_s", "recall", "answers", "f1", "yes")
        each = ", ".join(f"{name} {100 * figures[name]:.1f} %" for name in shown)
        return [*super().summary(figures, chosen), ("beside it", f"{each}, length {figures['length']:.2f}")]


def _words(tokens: list[int]) -> str:
    """The names of tokens before END."""
    end = tokens.index(END) if END in tokens else len(tokens)
    return ", ".join(TOKENS[token] for token in tokens[:end]) or "nothing"


def draw_captions(batch: Batch, tokens: Tensor, path: Path) -> None:
    """A panel for each scene: its cells, what is there, and what was named or answered.

    A cell is as dark as the best fit of its features to a class. A class that is there is written in the cell that
    fits it best, green if it was named and grey if not; named classes that are not there stand below in red.

    Args:
        tokens: that were given, int64 (batch, 9).
    """
    assert batch.rows is not None
    rows, labels = batch.rows.float().cpu(), batch.labels.cpu()
    figure, (panels,) = grid_of_panels(len(rows), _ACROSS, (2.4, 2.6))
    given, true = named(tokens.cpu()), named(labels)
    for place, axes in enumerate(panels[: len(rows)]):
        axes.set(xticks=[], yticks=[])
        if rows.shape[1] < CELLS or rows.shape[2] != prototypes().shape[1] + 1:
            continue  # scenes of another kind
        fits = rows[place, :CELLS, :-1] @ prototypes().T / prototypes().norm(dim=1)
        axes.imshow(fits.amax(1).view(SIDE, SIDE).clamp(0, 5).numpy(), cmap="Blues", vmin=0, vmax=8)
        answer = int(labels[place, 0])
        if answer in (YES, NO):
            asked = int(rows[place, -TEXT, -1]) - FIRST
            right = int(tokens[place, 0]) == answer
            axes.set_title(f"{CLASSES[asked]}?", fontsize=9)
            axes.set_xlabel(_words(tokens[place].tolist()), fontsize=9, color=_RIGHT if right else _WRONG)
            continue
        taken = fits.clone()
        for kind in true[place].nonzero().flatten().tolist():
            cell = int(taken[:, kind].argmax())
            taken[cell] = -torch.inf  # a cell holds one class
            row, column = divmod(cell, SIDE)
            colour = _RIGHT if given[place, kind] else _MISSED
            axes.text(column, row, CLASSES[kind], ha="center", va="center", fontsize=7, color=colour, weight="bold")
        absent = [CLASSES[kind] for kind in (given[place] & ~true[place]).nonzero().flatten().tolist()]
        if absent:
            axes.set_xlabel("not there: " + ", ".join(absent), fontsize=7.5, color=_WRONG)
    save_figure(figure, path)
