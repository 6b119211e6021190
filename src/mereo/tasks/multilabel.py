"""Multilabel: any number of labels for each image."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.data import Batch, Images
from mereo.data.facts import FEWEST
from mereo.data.layout_options import LayoutOptions
from mereo.errors import check_probability
from mereo.tasks.base import Objective, Settings, Task, register_task
from mereo.tasks.losses import MARGIN_LOSSES, margin_loss
from mereo.tasks.pictures import draw_images
from mereo.tasks.rows import RowMetrics
from mereo.tasks.several_outputs import as_logits, check_unmixed, held_field, logits_of

_NAMED, _LISTED = 3, 8
"""Labels in a title of an image, and names in a line."""


@dataclass(frozen=True)
class MultilabelOptions:
    """How labels are predicted.

    Args:
        threshold: probability from which on an image has a label.
    """

    threshold: float = 0.5

    def __post_init__(self) -> None:
        check_probability(threshold=self.threshold)


class MultilabelObjective(Objective):
    """A network and its loss.

    binary_cross_entropy   L = mean_{b,c}  -t log p - (1 - t) log(1 - p),   p = sigmoid(logit)
    margin, hard_margin    the margin loss of p, which are the lengths of class capsules

    Args:
        model: scores (batch, classes): logits, or lengths or activations of capsules.
        kind: of the loss.
    """

    def __init__(self, model: nn.Module, kind: str) -> None:
        super().__init__(model)
        self.kind = kind

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        logits = logits_of(self.model, batch)
        return self.loss(logits, batch), logits

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        assert batch.multi_hot is not None
        targets = batch.multi_hot.to(outputs.dtype)
        if self.kind not in MARGIN_LOSSES:
            return F.binary_cross_entropy_with_logits(outputs, targets)
        positive, negative, weight = MARGIN_LOSSES[self.kind]
        return margin_loss(outputs.sigmoid(), targets, positive=positive, negative=negative, down_weight=weight)


def average_precision(scores: Tensor, true: Tensor) -> Tensor:
    """The area under the curve of precision over recall of each label, NaN for a label that no image has.

    AP = sum_k (R_k - R_(k-1)) P_k, over the thresholds k that separate scores

    Shapes: scores float (n, labels), true (n, labels) of 0 and 1 -> float64 (labels,).
    """
    order = scores.argsort(dim=0, descending=True, stable=True)
    ranked, hits = scores.gather(0, order), true.double().gather(0, order).cumsum(0)
    ends = torch.ones_like(ranked, dtype=torch.bool)  # of equal scores the last one counts
    ends[:-1] = ranked[1:] != ranked[:-1]
    precision = hits / torch.arange(1, len(hits) + 1).unsqueeze(1)
    areas = []
    for label in range(scores.shape[1]):
        at = ends[:, label]
        found = hits[at, label]
        areas.append((found.diff(prepend=found.new_zeros(1)) * precision[at, label]).sum() / true[:, label].sum())
    return torch.stack(areas) if areas else scores.new_zeros(0).double()


class MultilabelMetrics(RowMetrics):
    """Mean average precision, F1 of the predicted labels, the share of images whose labels are all correct, and the
    average precision of each label, 0 for a label that no image has.

    The mean average precision is over the labels that the split has; a label that is neither there nor predicted has
    the F1 0, as in scikit-learn.

    Args:
        names: of the labels.
        threshold: probability from which on a label is predicted.
    """

    def __init__(self, names: tuple[str, ...], threshold: float) -> None:
        super().__init__(names)
        self.threshold = threshold

    def update(self, outputs: Tensor, batch: Batch) -> None:
        assert batch.multi_hot is not None
        self.keep(batch.multi_hot, outputs)

    def figures(self, true: Tensor, outputs: Tensor) -> dict[str, float]:
        predicted = (outputs.sigmoid() >= self.threshold).double()
        hits, pairs = (true * predicted).sum(0), true.sum(0) + predicted.sum(0)
        areas = average_precision(outputs, true) if len(true) else outputs.new_full((len(self.names),), torch.nan)
        each = dict(zip(self.names, areas.nan_to_num().tolist(), strict=True))
        areas = areas[~areas.isnan()]
        return {
            "mean_average_precision": areas.mean().item() if len(areas) else 0.0,
            "f1_macro": (2 * hits / pairs.clamp(min=1)).mean().item() if len(hits) else 0.0,
            "f1_micro": (2 * hits.sum() / pairs.sum().clamp(min=1)).item(),
            "exact_match": (predicted == true).all(1).double().mean().item() if len(true) else 0.0,
            **{f"average_precision {name}": area for name, area in each.items()},
        }


@register_task
class Multilabel(Task):
    """Any number of labels for each image, each with a probability."""

    name = "multilabel"
    requires = ("images", "multi_hot")
    chooses = ("mean_average_precision", "max")
    is_share = True
    losses = ("binary_cross_entropy", *MARGIN_LOSSES)
    Options = MultilabelOptions
    outputs_are = "labels"
    finished_as = "probabilities"
    example_model = "resnet20"
    example_data = "shape_tags"
    example_settings: ClassVar[Mapping[str, Any]] = {"epochs": 12}
    train_metrics = False

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.class_names

    @property
    def cell_names(self) -> tuple[str, ...]:
        return "labels", *self.class_names

    def resolve_loss(self, loss: str, module: type[nn.Module]) -> str:
        if loss != "auto":
            return super().resolve_loss(loss, module)
        own = str(getattr(module, "default_loss", ""))
        return own if own in MARGIN_LOSSES else self.losses[0]

    def read_as(self, layout: LayoutOptions) -> LayoutOptions:
        return layout._replace(task=self.name, follows=False, names=self.class_names)

    def finish(self, model: nn.Module, scores: Tensor) -> Tensor:
        return as_logits(model, scores).sigmoid()

    def outputs_in_words(self) -> str:
        return (
            "Each output is of a label of its own: the sigmoid of a logit is its probability, a length is one itself."
        )

    def apply(self, model: nn.Module, batch: Batch) -> Tensor:
        return logits_of(model, batch)

    def objective(self, model: nn.Module, settings: Settings) -> MultilabelObjective:
        check_unmixed(self.name, settings)
        return MultilabelObjective(model, settings.loss)

    def metrics(self) -> MultilabelMetrics:
        return MultilabelMetrics(self.class_names, self.options.threshold)

    def _names(self, outputs: Tensor) -> tuple[str, ...]:
        return self.class_names or tuple(map(str, range(outputs.shape[1])))

    def predict(self, outputs: Tensor, top: int = 3) -> list[dict[str, Any]]:
        names, rows = self._names(outputs), []
        for shares in outputs.sigmoid().double():
            order = shares.argsort(descending=True, stable=True).tolist()
            labels = [names[place] for place in order if shares[place] >= self.options.threshold]
            rows.append({"labels": labels, "probabilities": {names[p]: float(shares[p]) for p in order[:top]}})
        return rows

    def cells(self, outputs: Tensor) -> list[list[str | float]]:
        """The labels of each image, separated by ;, and the probability of each label."""
        shares = outputs.sigmoid().tolist()
        return [
            [";".join(found["labels"]), *(round(share, 6) for share in row)]
            for found, row in zip(self.predict(outputs), shares, strict=True)
        ]

    def describe_data(self, train: Images, validation: Images | None, test: Images) -> list[str]:
        """The labels that few or no training images have, once images are held out."""
        held = held_field(train, "multi_hot")
        if held is None:
            return []
        counts = held.sum(0, dtype=torch.int64).tolist()
        rare = [f"{name} {n:,}" for name, n in zip(self.class_names, counts, strict=True) if n < FEWEST]
        more = ", ..." if len(rare) > _LISTED else ""
        shown = f"labels of fewer than {FEWEST} training images: {', '.join(rare[:_LISTED])}{more}"
        return [f"{shown}; they are hardly learned, so add images or leave them out"] if rare else []

    def example(self, model: Any, count: int, objects: int = 1) -> Batch:
        device = next(model.parameters()).device
        images = torch.rand(count, *model.image_shape, device=device)
        return Batch(images, multi_hot=torch.randint(2, (count, max(model.num_classes, 1)), device=device))

    def titles(self, batch: Batch) -> list[str]:
        assert batch.multi_hot is not None
        return [self._listed(row) for row in batch.multi_hot.tolist()]

    def _listed(self, row: Sequence[int]) -> str:
        """Labels below each other, as a title."""
        held = [name for name, there in zip(self.class_names, row, strict=True) if there]
        more = [f"and {len(held) - _NAMED} more"] if len(held) > _NAMED else []
        return "\n".join([*held[:_NAMED], *more]) or "none"

    @torch.inference_mode()
    def draw(self, model: nn.Module, batch: Batch, prepared: Batch, path: Path) -> None:
        """Images with their predicted labels; where these are wrong, in red and with the true ones."""
        predicted = (self.apply(model, prepared).sigmoid() >= self.options.threshold).long()
        titles, wrong = [self._listed(row) for row in predicted.tolist()], [False] * len(predicted)
        if batch.multi_hot is not None:
            wrong = (predicted != batch.multi_hot).any(1).tolist()
            titles = [
                f"{answer}\nis: {self._listed(row)}" if failed else answer
                for answer, row, failed in zip(titles, batch.multi_hot.tolist(), wrong, strict=True)
            ]
        draw_images(batch.images, titles, path, wrong=wrong)

    def summary(self, figures: Mapping[str, Any], chosen: str) -> list[tuple[str, str]]:
        rows = super().summary(figures, chosen)
        macro, micro, exact = (self.show(figures[name]) for name in ("f1_macro", "f1_micro", "exact_match"))
        return [*rows, ("labels", f"F1 {macro} (macro), {micro} (micro); all labels correct in {exact} of the images")]
