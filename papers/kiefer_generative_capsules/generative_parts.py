"""A generative capsule network on the parts of digits: what its parents represent after training without labels.

Parts are learned as an autoencoder, then the parents by their bound. A linear classifier of the poses of the parents is
compared with one of the parts themselves, and with a CapsNet of the same parts and size that was trained with labels;
on clean images and on occluded ones, where the generative model may leave out the hidden parts.
"""

from collections.abc import Callable
from typing import Any

import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from mereo.data import Batch
from mereo.data.images import Images
from mereo.generative.generative_capsnet import GenerativeCapsNet
from mereo.mechanisms.routing import DynamicRouting
from mereo.tasks.losses import many_hot, margin_loss
from papers.common.classifiers import fitted
from papers.common.fitting import batches, fit
from papers.common.pictures import draw_curves
from papers.common.settings import Settings
from papers.kiefer_generative_capsules.occlusion import hide, random_square
from papers.kiefer_generative_capsules.parts_pictures import draw_rebuilt, draw_samples

EPOCHS, LIMIT = {"digits": 60}, {"mnist": 10000}
OCCLUSIONS = (0, 4, 8, 12)
"""Sides of the grey square that hides a part of every test image, in pixels."""
PICTURES = ("rebuilt.png", "samples.png", "occlusion.png")
Probes = dict[str, Callable[[Tensor], Tensor]]
"""Features -> predicted classes, by the name of the features."""
NOTES = [
    "CapsNet is the same encoder with dynamic routing over it, trained with labels. All others were trained without,"
    " and a linear classifier was fitted to the named poses.",
    "Masked: parts whose field holds a hidden pixel are left out of the inversion, which is given the square.",
]


class _CapsNet(torch.nn.Module):
    """The parts of `GenerativeCapsNet` under routing, as a classifier."""

    def __init__(self, classes: int, like: GenerativeCapsNet, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.encoder = GenerativeCapsNet(1, image_shape[0], image_shape[1:], types=like.types)
        senders, _, child_dim, parent_dim = like.capsules.weight.shape
        self.head = DynamicRouting(senders, classes, child_dim, parent_dim)

    def forward(self, images: Tensor) -> Tensor:
        lengths: Tensor = self.head(self.encoder.parts(images)).norm(dim=-1)
        return lengths


def run(settings: Settings) -> dict[str, Any]:
    """Learn parts, then parents, then compare."""
    device, data = settings.chosen_device(), str(settings.data)
    splits = settings.splits(28, LIMIT.get(data), single=True)
    train, test = splits.train, splits.test
    test = test.subset(torch.arange(min(settings.images or 2000, len(test))))
    epochs, size = settings.epochs or EPOCHS.get(data, 5), settings.batch_size or 64
    torch.manual_seed(0)
    model = GenerativeCapsNet(10, *_shape(train)).to(device)
    supervised = _CapsNet(len(train.class_names), model, train.image_shape).to(device)
    how: dict[str, Any] = {"epochs": epochs, "batch_size": size, "device": device, "say": settings.say}
    parts = [p for name, p in model.named_parameters() if not name.startswith("capsules.")]
    rebuilding = fit(lambda b: model.rebuild_loss(b.images), parts, train, lr=1e-3, title="parts", **how)
    scale = model.capsules.weight.shape[0] * model.capsules.weight.shape[2]
    bounds = fit(
        lambda b: -model.elbo(b.images).mean() / scale, model.capsules.parameters(), train, lr=1e-2, title="parents",
        **how,
    )  # fmt: skip
    fit(
        lambda b: margin_loss(supervised(b.images), many_hot(b.labels, len(train.class_names))),
        supervised.parameters(), train, lr=1e-3, title="CapsNet", **how,
    )  # fmt: skip
    model.eval().requires_grad_(False)
    supervised.eval()
    settings.say("fitting the linear classifiers")
    probes = _probes(model, train, size, device)
    curves = _occluded(model, supervised, probes, test, size, device)
    few = test.batch(torch.arange(8), device=device)
    hidden = random_square(few.images, 8, torch.Generator().manual_seed(1))
    draw_rebuilt(model, few.images, hidden, settings.folder / PICTURES[0])
    draw_samples(model, few.images[0], settings.folder / PICTURES[1])
    draw_curves(
        {name: dict(zip(OCCLUSIONS, values, strict=True)) for name, values in curves.items()},
        "side of the occluding square in pixels", "accuracy in %", settings.folder / PICTURES[2], size=(6.0, 3.8),
        marker=".",         legend={"fontsize": 8, "frameon": True},
    )  # fmt: skip
    rows = [
        {"read from": name, **{f"{side} px %": value for side, value in zip(OCCLUSIONS, values, strict=True)}}
        for name, values in curves.items()
    ]
    learned = {
        "noise of a part's coordinate": model.capsules.sigma.item(),
        "reconstruction from parts, squared error": rebuilding[-1],
        "reconstruction from parents, squared error": _top_down_error(model, test, size, device),
        "bound a coordinate, first epoch": -bounds[0],
        "bound a coordinate, last epoch": -bounds[-1],
    }
    return {
        "tables": {
            f"Accuracy on {len(test):,} test images under an occluding square": rows,
            "Learned parameters and errors": [{"quantity": name, "value": value} for name, value in learned.items()],
        },
        "notes": NOTES,
        "pictures": list(PICTURES),
    }


def _shape(images: Images) -> tuple[int, tuple[int, int]]:
    channels, height, width = images.image_shape
    return channels, (height, width)


def _features(model: GenerativeCapsNet, images: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
    with torch.no_grad():
        parts = model.parts(images)
        return {"parts": parts.flatten(1), "parents": model.capsules.invert(parts, mask).mean.flatten(1)}


def _probes(model: GenerativeCapsNet, train: Images, size: int, device: torch.device) -> Probes:
    """A linear classifier of standardised features, with a small weight decay."""
    features_of: dict[str, list[Tensor]] = {"parts": [], "parents": []}
    labels = []
    for batch in batches(train, size, device):
        for name, features in _features(model, batch.images).items():
            features_of[name].append(features)
        labels.append(batch.labels)
    target = torch.cat(labels)
    inverse_penalty = 1 / (2e-3 * len(target))
    return {
        name: fitted(
            make_pipeline(StandardScaler(), LogisticRegression(C=inverse_penalty, max_iter=300, tol=1e-6)),
            torch.cat(rows),
            target,
        )
        for name, rows in features_of.items()
    }


def _occluded(
    model: GenerativeCapsNet,
    supervised: _CapsNet,
    probes: Probes,
    test: Images,
    size: int,
    device: torch.device,
) -> dict[str, list[float]]:
    """Accuracy in percent by side of the square, for each way of reading a class."""
    curves: dict[str, list[float]] = {}
    for side in OCCLUSIONS:
        generator = torch.Generator().manual_seed(0)
        right: dict[str, int] = {}
        for batch in batches(test, size, device):
            for name, predicted in _predicted(model, supervised, probes, batch, side, generator).items():
                right[name] = right.get(name, 0) + int((predicted == batch.labels).sum())
        for name, count in right.items():
            curves.setdefault(name, []).append(100 * count / len(test))
    return curves


def _predicted(
    model: GenerativeCapsNet,
    supervised: _CapsNet,
    probes: Probes,
    batch: Batch,
    side: int,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    hidden = random_square(batch.images, side, generator)
    images = hide(batch.images, hidden)
    plain = _features(model, images)
    masked = _features(model, images, model.visible_parts(hidden))
    with torch.no_grad():
        return {
            "CapsNet, with labels": supervised(images).argmax(1),
            "parts": probes["parts"](plain["parts"]),
            "parents": probes["parents"](plain["parents"]),
            "parents, masked": probes["parents"](masked["parents"]),
        }


def _top_down_error(model: GenerativeCapsNet, test: Images, size: int, device: torch.device) -> float:
    total = 0.0
    for batch in batches(test, size, device):
        total += (model.explain(batch.images).rebuilt - batch.images).square().sum().item()
    return total / len(test)
