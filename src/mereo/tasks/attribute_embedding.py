"""Attribute embedding: a vector of an image for each of its attributes, near those of images with the same value.

Source: Song, Hwang, Yoon, Choi, Gu 2023, arXiv:2307.13254; triplets under a condition: Veit, Belongie, Karaletsos 2017,
arXiv:1603.07810.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core.triplets import UNKNOWN, triplet_loss
from mereo.data import Batch, Images
from mereo.data.layout_options import LayoutOptions
from mereo.errors import check_positive
from mereo.tasks.base import Metrics, Objective, Seen, Settings, Task, register_task
from mereo.tasks.embedding import nearest, retrieval, write_embeddings
from mereo.tasks.explained import Explained, Others, most_similar
from mereo.tasks.pictures import draw_images
from mereo.tasks.several_outputs import check_unmixed

_QUERIES, _SHOWN = 3, 6
"""Number of queries in a picture, and of nearest images of each under each attribute."""


@dataclass(frozen=True)
class AttributeEmbeddingOptions:
    """How the embeddings are trained.

    Args:
        margin: by how much an image of the same value should be more similar than one of another value.
    """

    margin: float = 0.2

    def __post_init__(self) -> None:
        check_positive(margin=self.margin)


class AttributeEmbeddingObjective(Objective):
    """A network and the mean over the attributes of the triplet loss of its vectors under each."""

    def __init__(self, model: nn.Module, margin: float) -> None:
        super().__init__(model)
        self.margin = margin

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        embeddings = F.normalize(self.model(batch.images).float(), dim=-1)
        return self.loss(embeddings, batch), embeddings

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        assert batch.attributes is not None
        pairs = zip(outputs.unbind(1), batch.attributes.unbind(1), strict=True)
        return torch.stack([triplet_loss(each, values, self.margin) for each, values in pairs]).mean()


class AttributeEmbeddingMetrics(Metrics):
    """Accuracy of triplets and mean average precision of each attribute under each condition, see `retrieval`.

    Images whose value of an attribute is not known are left out for it.

    triplet_accuracy, mean_average_precision: the mean over the attributes, each under its own condition.
    other_triplet_accuracy: the same under the conditions of others, 0.5 where vectors say nothing of other attributes.

    Args:
        names: of the attributes.
    """

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = tuple(names)

    def update(self, outputs: Tensor, batch: Batch) -> None:
        assert batch.attributes is not None
        self.keep(batch.attributes, outputs)

    def compute(self) -> dict[str, float]:
        count = len(self.names)
        rows = torch.cat(self.rows) if self.rows else torch.zeros(0, 2 * count)
        values, embeddings = rows[:, :count].long(), rows[:, count:].reshape(len(rows), count, -1 if self.rows else 1)
        figures = torch.zeros(2, count, count, dtype=torch.float64)
        for of in range(count):
            known = values[:, of] != UNKNOWN
            for under in range(count):
                found = retrieval(embeddings[known, under], values[known, of])
                both = [found["triplet_accuracy"], found["mean_average_precision"]]
                figures[:, under, of] = torch.tensor(both, dtype=torch.float64)
        own, others = figures.diagonal(dim1=1, dim2=2).sum(1) / max(count, 1), ~torch.eye(count, dtype=torch.bool)
        means = {
            "triplet_accuracy": own[0].item(),
            "mean_average_precision": own[1].item(),
            "other_triplet_accuracy": figures[0][others].mean().item() if count > 1 else 0.5,
        }
        for kind, table in zip(("triplet_accuracy", "average_precision"), figures.tolist(), strict=True):
            for condition, row in zip(self.names, table, strict=True):
                means |= {f"{kind} {of} under {condition}": v for of, v in zip(self.names, row, strict=True)}
        return means


@register_task
class AttributeEmbedding(Task):
    """A vector of each image for each attribute, for finding images with the same value of it."""

    name = "attribute_embedding"
    requires = ("images", "attributes")
    output_kinds = ("embeddings",)
    chooses = ("triplet_accuracy", "max")
    is_share = True
    Options = AttributeEmbeddingOptions
    outputs_are = "attributes"
    compares: ClassVar[bool] = True
    example_model = "cca_tiny"
    example_data = "sprites"
    settings: ClassVar[Mapping[str, Any]] = {"batch_size": 96}
    example_settings: ClassVar[Mapping[str, Any]] = {"epochs": 5}
    train_metrics = False
    most_drawn = 128
    finished_as = "embeddings"

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.class_names

    def read_as(self, layout: LayoutOptions) -> LayoutOptions:
        return layout._replace(task=self.name, follows=False, label_column=layout.label_column or self.class_names)

    def apply(self, model: nn.Module, batch: Batch) -> Tensor:
        return self.finish(model, model(batch.images).float())

    def finish(self, model: nn.Module, scores: Tensor) -> Tensor:
        """Vectors of length one."""
        return F.normalize(scores, dim=-1)

    def outputs_in_words(self) -> str:
        return "The output is a vector of length one for each attribute; its products with others are similarities."

    def objective(self, model: nn.Module, settings: Settings) -> AttributeEmbeddingObjective:
        check_unmixed(self.name, settings)
        return AttributeEmbeddingObjective(model, self.options.margin)

    def metrics(self) -> AttributeEmbeddingMetrics:
        return AttributeEmbeddingMetrics(self.class_names)

    def _names(self, count: int) -> tuple[str, ...]:
        return self.class_names or tuple(map(str, range(count)))

    def predict(self, outputs: Tensor, top: int = 3) -> list[dict[str, Any]]:
        names = self._names(outputs.shape[1])
        return [{f"embedding {name}": row for name, row in zip(names, rows, strict=True)} for rows in outputs.tolist()]

    def explained(self, outputs: Tensor, target: str | None = None, others: Others | None = None) -> Explained:
        """The similarity to the most similar of the other images, under one attribute or in the mean over all."""
        chosen = slice(None) if target is None else slice(number := self.class_number(target), number + 1)

        def vectors(embeddings: Tensor) -> Tensor:
            return F.normalize(F.normalize(embeddings[:, chosen].float(), dim=2).flatten(1), dim=1)

        own = None if others is None else others._replace(vectors=vectors(others.vectors))
        return most_similar(outputs, vectors, own)

    def write(self, outputs: Tensor, names: Sequence[str], folder: Path, seen: Sequence[Seen]) -> list[Path]:
        """embeddings.npy, (images, attributes, dim), and the nearest images under each attribute, a table each."""
        own = zip(self._names(outputs.shape[1]), outputs.unbind(1), strict=True)
        spaces = {f"nearest_{name.replace('/', '_')}.csv": vectors for name, vectors in own}
        return write_embeddings(outputs, names, folder, spaces)

    def describe_data(self, train: Images, validation: Images | None, test: Images) -> list[str]:
        """The attributes."""
        return [f"attributes: {', '.join(self.class_names)}"]

    def example(self, model: Any, count: int, objects: int = 1) -> Batch:
        images = torch.rand(count, *model.image_shape, device=next(model.parameters()).device)
        values = torch.arange(count, device=images.device) // 2
        return Batch(images, attributes=values.unsqueeze(1).expand(-1, max(model.num_classes, 1)))

    def titles(self, batch: Batch) -> list[str]:
        assert batch.attributes is not None
        names = self._names(batch.attributes.shape[1])
        return [
            "\n".join(f"{name} {'?' if value == UNKNOWN else value}" for name, value in zip(names, row, strict=True))
            for row in batch.attributes.tolist()
        ]

    @torch.inference_mode()
    def draw(self, model: nn.Module, batch: Batch, prepared: Batch, path: Path) -> None:
        """Draw a row for each query and attribute: the nearest images under it, in red if their values differ."""
        vectors = self.apply(model, prepared).cpu()
        count, names = batch.length, self._names(vectors.shape[1])
        queries = torch.arange(0, count, -(-count // _QUERIES))
        found = [nearest(own, queries, min(_SHOWN, count - 1)) for own in vectors.unbind(1)]
        places, titles, wrong = list[int](), list[str](), list[bool]()
        for row, query in enumerate(queries.tolist()):
            for number, (near, similar) in enumerate(found):
                places += [query, *near[row].tolist()]
                titles += [names[number], *(f"{value:.2f}" for value in similar[row].tolist())]
                values = None if batch.attributes is None else batch.attributes[:, number]
                others = near[row].tolist()
                wrong += [False, *(values is not None and bool(values[query] != values[o]) for o in others)]
        columns = 1 + found[0][0].shape[1]
        draw_images(batch.images.cpu()[torch.tensor(places)], titles, path, columns=columns, wrong=wrong)

    def summary(self, figures: Mapping[str, Any], chosen: str) -> list[tuple[str, str]]:
        rows = super().summary(figures, chosen)
        for title, kind in (("triplets", "triplet_accuracy"), ("mAP", "average_precision")):
            for under in self.class_names:
                each = ", ".join(f"{of} {100 * figures[f'{kind} {of} under {under}']:.1f} %" for of in self.class_names)
                rows.append((f"{title} under {under}", each))
        return rows
