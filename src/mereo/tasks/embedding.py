"""Embedding: images of one identity close to each other, images of different identities apart.

Source: Khosla et al. 2020, arXiv:2004.11362.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.data import Batch, Images
from mereo.errors import UsageError, check_positive
from mereo.files import write_atomically
from mereo.runtime.libraries import require
from mereo.tasks.base import Metrics, Objective, Seen, Settings, Task, csv_bytes, register_task
from mereo.tasks.explained import Explained, Others, most_similar
from mereo.tasks.interval import resampled
from mereo.tasks.pictures import draw_images

_RECALLS = (1, 2, 4, 5, 8)
_FIGURES = (*(f"recall_at_{k}" for k in _RECALLS), "mean_average_precision", "triplet_accuracy")
_CHUNK = 1024
"""Number of queries that are compared with all images at a time."""
_QUERIES, _SHOWN, _ALIKE, _LISTED = 8, 6, 4, 5
"""How many queries a picture has, nearest images of each, images of an identity, and images listed in a table."""


@dataclass(frozen=True)
class EmbeddingOptions:
    """How an embedding is trained.

    Args:
        dim: size of an embedding.
        temperature: divides the similarities in the loss; a smaller one makes near identities count more.
        clusters: also cluster the embeddings of a split by k-means, one cluster for each identity, and report the
            normalised mutual information with the identities; needs scikit-learn.
    """

    dim: int = 64
    temperature: float = 0.1
    clusters: bool = False

    def __post_init__(self) -> None:
        check_positive(dim=self.dim, temperature=self.temperature)


def contrastive_loss(embeddings: Tensor, labels: Tensor, temperature: float = 0.1) -> Tensor:
    """Supervised contrastive loss: each image should find the others of its identity in the batch.

    L = mean_i  -1/|P(i)| sum_{p in P(i)} log( exp(z_i z_p / t) / sum_{a != i} exp(z_i z_a / t) )

    P(i) are the other images of i's identity; an image whose P(i) is empty only serves as a negative for others.

    Args:
        embeddings: of length one.
        labels: identities.
        temperature: t.

    Shapes: embeddings (batch, dim), labels int64 (batch,) -> ().

    Reference: arXiv:2004.11362, eq. 2.
    """
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    same = (labels.unsqueeze(0) == labels.unsqueeze(1)) & ~itself
    logits = (embeddings @ embeddings.T / temperature).masked_fill(itself, -torch.inf)
    log_shares = logits - logits.logsumexp(1, keepdim=True)
    partners = same.sum(1)
    own = log_shares.masked_fill(~same, 0).sum(1) / partners.clamp(min=1)
    # A batch without any pair has the loss 0, with a gradient.
    return -own.sum() / (partners > 0).sum().clamp(min=1)


class EmbeddingObjective(Objective):
    """A network and the contrastive loss of its outputs, scaled to length one."""

    def __init__(self, model: nn.Module, temperature: float) -> None:
        super().__init__(model)
        self.temperature = temperature

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        embeddings = F.normalize(self.model(batch.images).float(), dim=1)
        return self.loss(embeddings, batch), embeddings

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        if len(outputs) < 2:
            return outputs.sum() * 0
        return contrastive_loss(outputs, batch.labels, self.temperature)


def retrieval(embeddings: Tensor, labels: Tensor) -> dict[str, float]:
    """How well embeddings find images of the same label: every image is a query, and all others are the gallery.

    recall at k: share of queries with an image of their label among the k nearest.   mean average precision: of the
    ranks of all images of the label.   triplet accuracy: P(e_a e_p > e_a e_n) for an image p of the label of a and an
    image n of another, the mean over the queries a that have both.

    Queries without another image of their label are left out; without any query a figure is 0.

    Shapes: embeddings (images, dim) of length one, labels (images,).
    """
    return _means(_of_queries(embeddings, labels))


def _of_queries(embeddings: Tensor, labels: Tensor) -> Tensor:
    """The figures of `retrieval` for each query: float64 (queries, figures)."""
    rows = [torch.zeros(0, len(_FIGURES), dtype=torch.float64)]
    for queries in torch.arange(len(labels)).split(_CHUNK):
        similar = embeddings[queries] @ embeddings.T
        similar[torch.arange(len(queries)), queries] = -torch.inf  # the query itself is last
        order = similar.sort(dim=1, descending=True, stable=True).indices[:, :-1]
        hits = labels[order] == labels[queries].unsqueeze(1)
        hits = hits[hits.any(1)].double()
        if not len(hits):
            continue
        own, others = hits.sum(1), (1 - hits).sum(1)
        precision = (hits.cumsum(1) / torch.arange(1, hits.shape[1] + 1) * hits).sum(1) / own
        # Without images of another label it is 0, and then it is so for every query.
        behind = ((others.unsqueeze(1) - (1 - hits).cumsum(1)) * hits).sum(1) / (own * others.clamp(min=1))
        rows.append(torch.stack([*(hits[:, :k].amax(1) for k in _RECALLS), precision, behind], 1))
    return torch.cat(rows)


def _means(rows: Tensor) -> dict[str, float]:
    return dict(zip(_FIGURES, (rows.sum(0) / max(len(rows), 1)).tolist(), strict=True))


class EmbeddingMetrics(Metrics):
    """`retrieval` over a whole split; nmi: normalised mutual information of identities and clusters.

    Args:
        clusters: whether to cluster.
    """

    def __init__(self, clusters: bool = False) -> None:
        super().__init__()
        self.clusters = clusters

    def update(self, outputs: Tensor, batch: Batch) -> None:
        self.keep(batch.labels, outputs)

    def _parts(self) -> tuple[Tensor, Tensor]:
        rows = torch.cat(self.rows) if self.rows else torch.zeros(0, 1)
        return rows[:, 1:], rows[:, 0]

    def compute(self) -> dict[str, float]:
        embeddings, labels = self._parts()
        found = retrieval(embeddings, labels)
        return found | ({"nmi": cluster_agreement(embeddings, labels)} if self.clusters else {})

    def intervals(self) -> dict[str, tuple[float, float]]:
        """By drawing the queries anew; the gallery stays the same."""
        rows = _of_queries(*self._parts())
        return resampled(len(rows), lambda places: _means(rows[places]))


def cluster_agreement(embeddings: Tensor, labels: Tensor) -> float:
    """Normalised mutual information of labels and of k-means clusters, as many as there are labels; 0 to 1.

    NMI = 2 I(clusters; labels) / (H(clusters) + H(labels))

    It does not depend on the order of the images.

    Shapes: embeddings (images, dim), labels (images,).
    """
    require("clusters", ("sklearn",), "sklearn")
    from sklearn.cluster import KMeans
    from sklearn.metrics import normalized_mutual_info_score

    points, names = embeddings.double().numpy(), labels.numpy()
    order = np.lexsort((*points.T, names))  # k-means starts from drawn images
    points, names = points[order], names[order]
    count = min(len(np.unique(names)), len(np.unique(points, axis=0)))
    if not count:
        return 0.0
    clusters = KMeans(count, n_init=5, random_state=0).fit_predict(points)
    return float(normalized_mutual_info_score(names, clusters))


@register_task
class Embedding(Task):
    """A vector for each image, for finding images of the same identity; learned from labelled identities."""

    name = "embedding"
    requires = ("images", "labels")
    output_kinds = ("embedding", "scores")
    chooses = ("recall_at_1", "max")
    is_share = True
    unseen_classes = True
    Options = EmbeddingOptions
    final_cost: ClassVar[float] = 2.0
    compares: ClassVar[bool] = True
    example_model = "embedding_resnet20"
    large_model: ClassVar[str | None] = "resnet14_64"
    example_data = "glyphs"
    settings: ClassVar[Mapping[str, Any]] = {"batch_size": 128}
    example_settings: ClassVar[Mapping[str, Any]] = {"epochs": 6}
    train_metrics = False
    most_drawn = 128
    table_file = "embeddings.csv"
    finished_as = "embeddings"

    @property
    def cell_names(self) -> tuple[str, ...]:
        return tuple(map(str, range(len(self.class_names))))  # of a trained network, the numbers of its outputs

    def num_outputs(self, num_classes: int) -> int:
        return int(self.options.dim)

    def apply(self, model: nn.Module, batch: Batch) -> Tensor:
        return self.finish(model, model(batch.images).float())

    def finish(self, model: nn.Module, scores: Tensor) -> Tensor:
        """Vectors of length one."""
        return F.normalize(scores, dim=1)

    def outputs_in_words(self) -> str:
        return "The output is a vector; divided by its length, its products with others are their cosine similarities."

    def check_settings(self, settings: Settings) -> None:
        """UsageError for settings that only suit scores of classes."""
        for name in ("mixup", "cutmix", "label_smoothing"):
            if getattr(settings, name):
                raise UsageError(f"{name} is {getattr(settings, name)}, which is for scores of classes; leave it out.")

    def objective(self, model: nn.Module, settings: Settings) -> Objective:
        self.check_settings(settings)
        return EmbeddingObjective(model, self.options.temperature)

    def metrics(self) -> EmbeddingMetrics:
        return EmbeddingMetrics(self.options.clusters)

    def predict(self, outputs: Tensor, top: int = 3) -> list[dict[str, Any]]:
        return [{"embedding": row} for row in outputs.tolist()]

    def explained(self, outputs: Tensor, target: str | None = None, others: Others | None = None) -> Explained:
        """The similarity to the most similar of the other images."""
        if target is not None:
            raise UsageError(
                f"target is {target!r}, and an embedding has no classes; give image: and a file or folder."
            )
        return most_similar(outputs, lambda changed: F.normalize(changed.float(), dim=1), others)

    def cells(self, outputs: Tensor) -> list[list[str | float]]:
        """The vector of each image."""
        return [[float(f"{value:.6g}") for value in row] for row in outputs.tolist()]

    def write(self, outputs: Tensor, names: Sequence[str], folder: Path, seen: Sequence[Seen]) -> list[Path]:
        """embeddings.npy, in the order of embeddings.csv, and the nearest images of each image in nearest.csv."""
        return write_embeddings(outputs, names, folder, {"nearest.csv": outputs})

    def describe_data(self, train: Images, validation: Images | None, test: Images) -> list[str]:
        """The number of identities, and whether the identities of the test images are trained on."""
        known, tested = set(train.strata.tolist()), set(test.strata.tolist())
        shared = len(known & tested)
        of_them = "none" if not shared else "all" if shared == len(tested) else f"{shared:,}"
        lines = [f"{len(known):,} identities to train on, {len(tested):,} to test on, {of_them} of them trained on"]
        if validation is not None and int(torch.bincount(validation.strata).max()) < 2:
            lines.append(
                f"no two of the {len(validation):,} images to choose the epoch by share an identity, so none is found;"
                " hold out more with --validation-fraction, or give val/ with new identities"
            )
        return lines

    def example(self, model: Any, count: int, objects: int = 1) -> Batch:
        images = torch.rand(count, *model.image_shape, device=next(model.parameters()).device)
        return Batch(images, torch.arange(count, device=images.device) // 2)

    def titles(self, batch: Batch) -> list[str]:
        named = dict(enumerate(self.class_names))
        return [named.get(label, str(label)) for label in batch.labels.tolist()]

    def pictured(self, images: Images) -> Tensor:
        """A few images of each of some identities, so that there is something to find."""
        labels = images.strata
        return torch.cat([(labels == name).nonzero()[:_ALIKE, 0] for name in labels.unique()[: 2 * _QUERIES]])

    @torch.inference_mode()
    def draw(self, model: nn.Module, batch: Batch, prepared: Batch, path: Path) -> None:
        """Draw rows of a query and the images nearest to it, in red if they are of another identity."""
        vectors, count = self.apply(model, prepared), batch.length
        queries = torch.arange(0, count, -(-count // _QUERIES))
        near, similar = nearest(vectors.cpu(), queries, min(_SHOWN, count - 1))
        places = torch.cat([queries.unsqueeze(1), near], 1)
        titles, wrong = list[str](), list[bool]()
        for query, others, row in zip(queries.tolist(), near.tolist(), similar.tolist(), strict=True):
            titles += ["query", *(f"{value:.2f}" for value in row)]
            labels = batch.labels
            wrong += [False, *(labels is not None and bool(labels[query] != labels[other]) for other in others)]
        draw_images(batch.images.cpu()[places.flatten()], titles, path, columns=places.shape[1], wrong=wrong)


def write_embeddings(outputs: Tensor, names: Sequence[str], folder: Path, spaces: Mapping[str, Tensor]) -> list[Path]:
    """embeddings.npy, and of several images a table of the nearest ones in each space, by the name of its file.

    Shapes: outputs (images, ...); spaces (images, dim) of length one.
    """
    binary = io.BytesIO()
    np.save(binary, outputs.float().cpu().numpy())
    contents = {"embeddings.npy": binary.getvalue()}
    if len(names) > 1:
        contents |= {file: nearest_table(vectors.float().cpu(), names) for file, vectors in spaces.items()}
    for name, content in contents.items():
        write_atomically(folder / name, content)
    return [folder / name for name in contents]


def nearest(vectors: Tensor, queries: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The images nearest to each query, without the query itself, and their similarities.

    Shapes: vectors (n, dim) of length one, queries int64 (q,) -> int64 (q, count), (q, count), the nearest first.
    """
    found = []
    for part in queries.split(_CHUNK):
        similar = vectors[part] @ vectors.T
        similar[torch.arange(len(part)), part] = -torch.inf
        found.append(similar.topk(count, 1))
    return torch.cat([each.indices for each in found]), torch.cat([each.values for each in found])


def nearest_table(vectors: Tensor, names: Sequence[str]) -> bytes:
    """A table of the nearest images of each image. Shapes: vectors (n, dim) of length one, a name for each, n > 1."""
    near, similar = nearest(vectors, torch.arange(len(names)), min(_LISTED, len(names) - 1))
    listed = [
        [name, *(cell for j, s in zip(js, row, strict=True) for cell in (names[j], f"{s:.4f}"))]
        for name, js, row in zip(names, near.tolist(), similar.tolist(), strict=True)
    ]
    titles = [cell for k in range(near.shape[1]) for cell in (f"nearest {k + 1}", f"similarity {k + 1}")]
    return csv_bytes([["image", *titles], *listed])
