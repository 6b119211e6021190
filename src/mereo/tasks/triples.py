"""Triples: the sentence of subject, predicate and object that is true of a scene, read from its attended regions.

Source: Tresp et al. 2020, arXiv:2001.11027.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from mereo.data import Batch, Images
from mereo.errors import UsageError, check_count, check_not_negative
from mereo.tasks.base import Metrics, Objective, Settings, Task, precise, register_task
from mereo.tasks.scene_pictures import Word, draw_scenes

PARTS = ("subject", "predicate", "object")


@dataclass(frozen=True)
class TriplesOptions:
    """What else is learned, and what the regions are.

    Args:
        semantic: weight of a second loss, the true sentences without senses, from which a network imagines sentences.
        side: pixels of a side of the images in the regions, for pictures; 0 if the features are no images.
    """

    semantic: float = 0.0
    side: int = 0

    def __post_init__(self) -> None:
        check_not_negative(semantic=self.semantic)
        check_count(side=self.side)


class Sentences(NamedTuple):
    """The outputs of a network for scenes.

    Attributes:
        log_shares: logarithms of the probabilities of the concepts in each measurement, given the true concepts before
            it, (batch, measurements, concepts); None for scenes without labels.
        chosen: its own decisions, int64 (batch, measurements): subject, predicate, object and maybe more.
        shares: their probabilities, (batch, measurements).
    """

    log_shares: Tensor | None
    chosen: Tensor
    shares: Tensor


def read(model: Any, batch: Batch) -> Sentences:
    """The outputs of a network, for the labels if there are any and by its own decisions."""
    views = model.forward_features(batch.regions)
    log_shares = None if batch.labels is None else model.chain(views, "teacher", batch.labels).log_shares
    with torch.no_grad():
        own = model.chain(views)
    shares = own.log_shares.gather(-1, own.chosen.unsqueeze(-1)).squeeze(-1).exp()
    return Sentences(log_shares, own.chosen, shares)


class TriplesObjective(Objective):
    """A network and the cross-entropies of all measurements, each given the true concepts before it.

    L = - mean_b sum_m log P(k_bm | k_b1 .. k_b(m-1), v_b) - semantic mean_b log P(k_b)
    """

    def __init__(self, model: nn.Module, semantic: float) -> None:
        super().__init__(model)
        self.semantic = semantic

    def step(self, batch: Batch) -> tuple[Tensor, Sentences]:
        outputs = read(self.model, batch)
        loss = self.loss(outputs, batch)
        if self.semantic:
            loss = loss - self.semantic * self.model.log_prior(batch.labels).float().mean()
        return loss, outputs

    def loss(self, outputs: Sentences, batch: Batch) -> Tensor:
        assert outputs.log_shares is not None
        true = outputs.log_shares.float().gather(-1, batch.labels.unsqueeze(-1)).squeeze(-1)
        return -true.sum() / max(len(true), 1)


class TriplesMetrics(Metrics):
    """The share of scenes whose whole triple is correct, and of correct subjects, predicates and objects."""

    def __init__(self) -> None:
        super().__init__(5)

    def update(self, outputs: Sentences, batch: Batch) -> None:
        right = outputs.chosen[:, :3] == batch.labels[:, :3]
        sums = torch.cat((right.all(1, keepdim=True), right), 1).to(precise(right.device)).sum(0)
        self.add(sums.new_tensor(len(right)), sums)

    def compute(self) -> dict[str, float]:
        count, *right = self.state.tolist()
        return {name: value / max(count, 1) for name, value in zip(("accuracy", *PARTS), right, strict=True)}


@register_task
class Triples(Task):
    """A sentence of subject, predicate and object for the attended regions of a scene."""

    name = "triples"
    requires = ("regions", "labels")
    output_kinds = ("triples",)
    input_kinds = ("regions",)
    chooses = ("accuracy", "max")
    is_share = True
    unit = "scenes"
    Options = TriplesOptions
    example_model = "tensor_brain"
    example_data = "tensor_brain_scenes"
    settings: ClassVar[Mapping[str, Any]] = {"batch_size": 128, "epochs": 20, "lr": 3e-3}
    most_drawn = 18

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.class_names

    @property
    def cell_names(self) -> tuple[str, ...]:
        return (*PARTS, "probability")

    def apply(self, model: nn.Module, batch: Batch) -> Sentences:
        return read(model, batch)

    def objective(self, model: nn.Module, settings: Settings) -> TriplesObjective:
        if settings.label_smoothing:
            raise UsageError(f"label_smoothing is {settings.label_smoothing}; triples are not smoothed, leave it out.")
        return TriplesObjective(model, self.options.semantic)

    def metrics(self) -> TriplesMetrics:
        return TriplesMetrics()

    def kept(self, outputs: Sentences) -> Tensor:
        """The chosen concepts and their probabilities: float (batch, measurements, 2)."""
        return torch.stack((outputs.chosen.to(outputs.shares), outputs.shares), -1)

    def _name(self, concept: int) -> str:
        return self.class_names[concept] if concept < len(self.class_names) else str(concept)

    def predict(self, outputs: Tensor, top: int = 3) -> list[dict[str, Any]]:
        """Subject, predicate and object of each scene, their joint probability, and the further concepts if any."""
        rows: list[dict[str, Any]] = []
        for chosen, shares in zip(outputs[..., 0].long().tolist(), outputs[..., 1], strict=True):
            names = [self._name(concept) for concept in chosen]
            row: dict[str, Any] = dict(zip(PARTS, names, strict=False))
            rows.append({**row, "probability": float(shares[:3].prod()), **({"also": names[3:]} if names[3:] else {})})
        return rows

    def cells(self, outputs: Tensor) -> list[list[str | float]]:
        """Subject, predicate and object of each scene, and their joint probability."""
        return [[row[name] for name in self.cell_names] for row in self.predict(outputs)]

    def describe_data(self, train: Images, validation: Images | None, test: Images) -> list[str]:
        _, regions, features = train.image_shape
        return [f"{regions} regions of a scene with {features} features each, {len(train.class_names)} concepts"]

    def example(self, model: nn.Module, count: int, objects: int = 1) -> Batch:
        network: Any = model
        regions = network.example_inputs(count)
        spans = network.spans
        columns = [torch.randint(first, last, (count,), device=regions.device) for first, last in spans]
        return Batch(regions=regions, labels=torch.stack(columns, 1))

    def titles(self, batch: Batch) -> list[str]:
        return [" ".join(self._name(concept) for concept in row[:3]) for row in batch.labels.tolist()]

    def draw_samples(self, batch: Batch, path: Path) -> None:
        shown = batch.pick(slice(0, self.most_drawn))
        assert shown.regions is not None
        sentences = [[Word(self._name(concept)) for concept in row[:3]] for row in shown.labels.tolist()]
        draw_scenes(shown.regions, sentences, path, self.options.side)

    @torch.inference_mode()
    def draw(self, model: nn.Module, batch: Batch, prepared: Batch, path: Path) -> None:
        """Scenes with the predicted sentences, green where a word is correct and red where not."""
        shown = prepared.pick(slice(0, self.most_drawn))
        assert shown.regions is not None
        outputs = self.apply(model, shown)
        true = [[None] * 3] * len(outputs.chosen) if shown.labels is None else shown.labels[:, :3].tolist()
        sentences = [
            [
                Word(self._name(concept), share, None if known is None else self._name(known))
                for concept, share, known in zip(chosen, shares, row, strict=True)
            ]
            for chosen, shares, row in zip(
                outputs.chosen[:, :3].tolist(), outputs.shares[:, :3].tolist(), true, strict=True
            )
        ]
        draw_scenes(shown.regions, sentences, path, self.options.side)
