"""A classifier of all layers of a frozen network, with Gaussian attention, without, and with attention among layers.

A small vision transformer is trained on half of the classes and frozen. The mean token after each of its layers is
given to the head of the paper, which is trained on all classes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import record
from mereo.data import Batch
from mereo.data.images import Images
from mereo.mechanisms.gate import GAAMFeatures, LayerStackHead, importance_factor
from mereo.training.step import descend
from papers.common.deep_networks import DeepTransformer
from papers.common.deep_training import small_images
from papers.common.fitting import batches, fit
from papers.common.measures import with_spread
from papers.common.settings import Settings

DEPTH, DIM, HEADS, PATCH, IMAGES, EPOCHS, BATCH, RATE = 12, 64, 4, 4, 2048, 5, 64, 1e-3
HEAD_EPOCHS, HEAD_RATE, HIDDEN = 10, 1e-3, 64
KEPT = 3
"""Layers that the ablation keeps."""


class LayerAttention(nn.Module):
    """Self-attention among the layers of one sample, added to them, in the place of Gaussian attention.

    Shapes: (batch, layers, dim) -> the same.
    """

    def __init__(self, dim: int, heads: int = HEADS) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, layers: Tensor) -> Tensor:
        out: Tensor = layers + self.attention(layers, layers, layers, need_weights=False)[0]
        return out


GATES: Mapping[str, Callable[[], nn.Module]] = {
    "identity": nn.Identity,
    "GAAM, 1 head": lambda: GAAMFeatures(DIM, 1),
    "GAAM, a head for 3 layers": lambda: GAAMFeatures(DIM, DEPTH // 3),
    "attention among layers": lambda: LayerAttention(DIM),
}
"""What stands in front of the convolutions."""


def _encoder(images: Images, classes: int, settings: Settings, seed: int, device: torch.device) -> DeepTransformer:
    """A transformer trained on the first half of the classes."""
    torch.manual_seed(seed)
    half = max(classes // 2, 2)
    shape = images.image_shape
    model = DeepTransformer(shape, half, DEPTH, patch=PATCH, dim=DIM, heads=HEADS, token="first").to(device)

    def loss(batch: Batch) -> Tensor:
        known = batch.labels < half
        return F.cross_entropy(model(2 * batch.images - 1)[known], batch.labels[known], reduction="sum") / len(known)

    fit(
        loss, model.parameters(), images, epochs=settings.epochs or EPOCHS, batch_size=settings.batch_size or BATCH,
        lr=RATE, device=device, title=f"seed {seed}, encoder", say=lambda line: None, seed=seed,
    )  # fmt: skip
    return model.eval().requires_grad_(False)


@torch.no_grad()
def layer_features(model: DeepTransformer, images: Images, device: torch.device) -> tuple[Tensor, Tensor]:
    """The mean token after each layer, and the labels.

    Shapes: images (samples, channels, height, width) -> (samples, layers, dim), (samples,).
    """
    outputs: list[Tensor] = []
    handles = [
        layer.register_forward_hook(lambda module, inputs, output: outputs.append(output.mean(1)))
        for layer in model.feed_forwards
    ]
    features, labels = [], []
    for batch in batches(images, 250, device):
        outputs.clear()
        model(2 * batch.images - 1)
        features.append(torch.stack(outputs, 1))
        labels.append(batch.labels)
    for handle in handles:
        handle.remove()
    return torch.cat(features), torch.cat(labels)


Stack = tuple[Tensor, Tensor]
"""Layers (samples, layers, dim), standardised, and labels."""


def _accuracy(head: nn.Module, test: Stack) -> float:
    with torch.no_grad():
        return 100 * (head.eval()(test[0]).argmax(1) == test[1]).float().mean().item()


def _head(gate: nn.Module, train: Stack, classes: int, seed: int) -> LayerStackHead:
    """The head of the paper with this gate, trained on stacked layers."""
    head = LayerStackHead(train[0].shape[1], DIM, classes, hidden=HIDDEN, gate=gate).to(train[0].device)
    optimizer = torch.optim.Adam(head.parameters(), HEAD_RATE)
    order = torch.Generator().manual_seed(seed)
    for _ in range(HEAD_EPOCHS):
        for part in torch.randperm(len(train[0]), generator=order).split(BATCH):
            descend(optimizer, HEAD_RATE, F.cross_entropy(head(train[0][part]), train[1][part]))
    return head


def _importance(head: LayerStackHead, layers: Tensor) -> Tensor:
    """The importance factor of each layer, the mean over its features: (layers,)."""
    with torch.no_grad(), record(head.eval()) as trace:
        head(layers)
    return importance_factor(trace["gate.gates"]).mean(1)


def _summary(values: Sequence[float]) -> dict[str, float]:
    return with_spread("test %", [{"test %": value} for value in values])


def run(settings: Settings) -> dict[str, Any]:
    """Accuracies of the gates, and of the layers that Gaussian attention lets through most and least."""
    data, splits = small_images(settings, IMAGES)
    device, classes = settings.chosen_device(), len(splits.class_names)
    gates: dict[str, list[float]] = {name: [] for name in GATES}
    sizes: dict[str, int] = {}
    chosen: dict[str, list[float]] = {}
    layers_of: dict[str, list[str]] = {}
    for seed in range(settings.seeds):
        encoder = _encoder(splits.train, classes, settings, seed, device)
        train, test = (layer_features(encoder, images, device) for images in (splits.train, splits.test))
        mean, deviation = train[0].mean(0), train[0].std(0).clamp(min=1e-6)
        train, test = (((layers - mean) / deviation, labels) for layers, labels in (train, test))
        importance = torch.zeros(DEPTH)
        for name, make in GATES.items():
            torch.manual_seed(seed)
            head = _head(make(), train, classes, seed)
            gates[name].append(_accuracy(head, test))
            sizes[name] = sum(parameter.numel() for parameter in head.parameters())
            if name == "GAAM, 1 head":
                importance = _importance(head, test[0]).cpu()
        ranked = importance.argsort(descending=True).tolist()
        kept = {
            "highest importance": sorted(ranked[:KEPT]), "lowest importance": sorted(ranked[-KEPT:]),
            "last layers": list(range(DEPTH - KEPT, DEPTH)), "first layers": list(range(KEPT)),
        }  # fmt: skip
        for name, layers in kept.items():
            torch.manual_seed(seed)
            head = _head(GAAMFeatures(DIM), (train[0][:, layers], train[1]), classes, seed)
            chosen.setdefault(name, []).append(_accuracy(head, (test[0][:, layers], test[1])))
            layers_of.setdefault(name, []).append(" ".join(str(layer + 1) for layer in layers))
        settings.say(f"seed {seed}: " + ", ".join(f"{name} {values[-1]:.1f} %" for name, values in gates.items()))
    return {
        "tables": {
            f"{DEPTH} layers of a frozen network, {len(splits.train):,} images of {data}": [
                {"gate": name, "parameters": sizes[name], **_summary(values)} for name, values in gates.items()
            ],
            f"{KEPT} of the layers, with GAAM": [
                {"layers kept": name, "numbers, by seed": "; ".join(layers_of[name]), **_summary(values)}
                for name, values in chosen.items()
            ],
        },
        "notes": [
            f"Encoder: {settings.epochs or EPOCHS} epochs on the first half of the classes, then frozen. Heads:"
            f" {HEAD_EPOCHS} epochs on all classes, Adam at {HEAD_RATE:g}. Spread: standard deviation over"
            f" {settings.seeds} seeds. The importance of a layer is the mean of its features' importance factors.",
        ],
        "pictures": [],
        "data": data,
    }
