"""The network of the papers with patches in place of words, its training, and what is measured of it."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mereo
from mereo.core import Coupling
from mereo.data import Batch, Images
from mereo.inference.evaluate import prepare_batch
from mereo.inference.mode import evaluating
from mereo.measure.attacks.attack import attack
from mereo.models import VisionModel
from mereo.runtime.turns import median_seconds
from mereo.training.attention_adversary import UNLABELLED, AttentionAdversary
from papers.common.measures import means
from papers.common.settings import Settings

SIZE, DIM, PATCH = 28, 64, 4
EPSILON, STEPS = 0.02, 10
"""Largest change of a pixel, and steps, of APGD."""
DIRECTIONS = {"iat by rows": ("iat", "row"), "iat": ("iat", "global"), "iat as published": ("iat", "published")}
"""Kinds and directions of the forms of iAT, by name."""


class AttentionPooling(nn.Module):
    """The attention of the papers: out = sum_t c_t h_t,  c = softmax(w2^T tanh(W1 h_t + b1)).

    Shapes: tokens (batch, tokens, dim) -> (batch, dim); H^2 / 2 + H parameters for H = dim.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.hidden, self.score = nn.Linear(dim, dim // 2), nn.Linear(dim // 2, 1, bias=False)
        self.coupling = Coupling("senders")

    def forward(self, tokens: Tensor) -> Tensor:
        scores = self.score(self.hidden(tokens).tanh()).mT.unsqueeze(1)
        pooled: Tensor = (self.coupling(scores).squeeze(1) @ tokens).squeeze(1)
        return pooled


class PooledPatches(VisionModel):
    """Classify by attention to patches, which a convolution has made aware of their neighbours."""

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        self.image_shape, self.num_features = image_shape, DIM
        patches = nn.Conv2d(image_shape[0], DIM, PATCH, PATCH)
        self.stages = nn.ModuleList([nn.Sequential(patches, nn.GELU(), nn.Conv2d(DIM, DIM, 3, padding=1), nn.GELU())])
        self.feature_info = [{"num_chs": DIM, "reduction": PATCH, "module": "stages.0"}]
        self.attention = AttentionPooling(DIM)
        channels = image_shape[0]
        self.pretrained_cfg = {"mean": (0.3,) * channels, "std": (0.3,) * channels}
        self.reset_classifier(num_classes)

    def pool(self, features: Tensor) -> Tensor:
        pooled: Tensor = self.attention(features.flatten(2).mT)
        return pooled

    def make_classifier(self) -> nn.Module:
        return nn.Linear(DIM, self.num_classes)


def adversary(name: str, eps: float) -> AttentionAdversary | None:
    """The adversary of a variant: "none", a kind, or one of `DIRECTIONS`."""
    if name == "none":
        return None
    kind, direction = DIRECTIONS.get(name, (name, "global"))
    return AttentionAdversary(kind, eps, direction=direction)


def images_of(settings: Settings, images: int, tested: int) -> tuple[Images, Batch, int]:
    """Training images, a batch of test images, and the number of classes."""
    splits = settings.splits(SIZE, images)
    count = min(settings.images or tested, len(splits.test))
    return splits.train, splits.test.batch(torch.arange(count)), len(splits.class_names)


def train(
    model: VisionModel, loss: Callable[[Batch], Tensor], images: Images, seed: int, epochs: int, batch_size: int,
    rate: float = 3e-3, hidden: Tensor | None = None,
) -> None:  # fmt: skip
    """Minimise a loss of normalised images by Adam with AMSGrad, as the papers do, epoch by epoch in random order.

    Args:
        hidden: bool (images,), the images whose label is -1.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, weight_decay=1e-5, amsgrad=True)
    draws = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(epochs):
        for indices in torch.randperm(len(images), generator=draws).split(batch_size):
            optimizer.zero_grad()
            batch = images.batch(indices)
            if hidden is not None:
                batch = batch._replace(labels=batch.labels.masked_fill(hidden[indices], UNLABELLED))
            loss(prepare_batch(batch._replace(targets=batch.images), model.pretrained_cfg)).backward()
            optimizer.step()
    model.eval()


def loss_with(model: VisionModel, added: AttentionAdversary | None) -> Callable[[Batch], Tensor]:
    """The cross-entropy of a batch, with the loss of an adversary."""

    def loss(batch: Batch) -> Tensor:
        if added is None:
            labelled = batch.labels >= 0
            return F.cross_entropy(model(batch.images[labelled]), batch.labels[labelled])
        clean, extra = added.loss(model, batch.images, batch.labels)
        return clean + extra

    return loss


def step_times(losses: Mapping[str, Callable[[], Tensor]], rounds: int) -> dict[str, float]:
    """Median milliseconds of a loss and its gradients by name, measured in turns."""
    steps = {name: lambda loss=loss: loss().backward() for name, loss in losses.items()}
    return {name: 1000 * seconds for name, seconds in median_seconds(steps, rounds).items()}


def accuracy(scores: Tensor, labels: Tensor) -> float:
    """Percent of images whose own class has the highest score."""
    return 100 * (scores.argmax(1) == labels).double().mean().item()


def area_under_curve(scores: Tensor, labels: Tensor) -> float:
    """The mean over classes of the share of pairs, an image of the class and another, that its scores order right."""
    areas = []
    for number in labels.unique().tolist():
        own = scores.softmax(1)[:, number]
        pairs = own[labels == number].unsqueeze(1) - own[labels != number]
        areas.append(((pairs > 0).double() + 0.5 * (pairs == 0)).mean())
    return 100 * torch.stack(areas).mean().item()


@torch.no_grad()
def accuracy_with_noise(model: VisionModel, batch: Batch, deviation: float, seed: int) -> float:
    """Accuracy with normal noise on the scores of all couplings."""
    draws = torch.Generator().manual_seed(seed)
    names = [name for name, module in model.named_modules() if isinstance(module, Coupling)]
    noisy = {name: lambda s: s + deviation * torch.randn(s.shape, generator=draws) for name in names}
    with mereo.intervene(model, scores=noisy):
        return accuracy(model(prepare_batch(batch, model.pretrained_cfg).images), batch.labels)


def accuracy_under(
    name: str, model: VisionModel, batch: Batch, count: int, epsilon: float = EPSILON, steps: int = STEPS
) -> float:
    """Accuracy on the first images under an attack."""
    images, labels = batch.images[:count], batch.labels[:count]
    attacked = attack(name, model, images, labels, epsilon, steps=steps)
    with torch.no_grad():
        return accuracy(model(prepare_batch(Batch(attacked, labels), model.pretrained_cfg).images), labels)


def agreement(model: PooledPatches, images: Tensor) -> tuple[float, float]:
    """Pearson's and Kendall's correlation, over patches, of attention with the gradient of the highest score."""
    with evaluating(model), mereo.record(model) as trace:
        features = model.stages[0](images).detach().requires_grad_()
        highest = model.head(model.pool(features)).amax(1).sum()
        (slope,) = torch.autograd.grad(highest, features)
    importance, attention = slope.flatten(2).norm(dim=1), trace["attention.coupling"].flatten(1)
    centred = [each - each.mean(1, keepdim=True) for each in (importance, attention)]
    pearson = F.cosine_similarity(centred[0], centred[1]).mean().item()
    signs = [(each.unsqueeze(1) - each.unsqueeze(2)).sign().flatten(1) for each in (importance, attention)]
    pairs = importance.shape[1] * (importance.shape[1] - 1)
    return pearson, ((signs[0] * signs[1]).sum(1) / pairs).mean().item()


def mean_rows(name: str, rows: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The means of measurements over seeds, and the deviation of the first of them."""
    first, found = next(iter(rows[0])), means(rows)
    spread = {"deviation": statistics.stdev(row[first] for row in rows)} if len(rows) > 1 else {}
    return {"variant": name, first: found[first], **spread, **found}
