"""A capsule head and a linear head on the same maps: accuracy, calibration, noise and speed.

Four networks: both heads trained together with a backbone of their own from the same start, and both on the bundled
backbone, which stays as it is, so that its maps are computed once. All see the same images in the same order. A network
that an earlier run trained with the same settings is read from its file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mereo.data import Batch
from mereo.data.images import Images, ImageSet
from mereo.data.split import stratified
from mereo.errors import MereoError, UsageError
from mereo.inference.calibration import expected_calibration_error, reliability
from mereo.inference.evaluate import normalise
from mereo.inference.mode import evaluating
from mereo.models import VisionModel, create_model, load, save_weights
from mereo.models.capsule_classifier import CapsuleClassifier
from mereo.models.weights import read_metadata
from mereo.tasks.losses import score_loss
from papers.common.fitting import batches, fit
from papers.common.measures import seconds_an_image
from papers.common.settings import Settings
from papers.mspcaps.averaged_maps import AveragedMaps, averaged_maps
from papers.mspcaps.capsule_head_pictures import draw_curves

NOISE = (0.0, 0.05, 0.1, 0.2)
BINS, ROUNDS, TIMED = 15, 5, 32
EPOCHS, BATCH = 8, 64
SIDE, PHOTO_SIDE = 64, 224
CELLS = (8, 4, 2)
"""Patches a side of the three maps, as the capsule head reads them by default."""
SMALL: dict[str, Any] = {"backbone": "resnet20", "backbone_args": {"stem_stride": 2}}
LARGE: dict[str, Any] = {"backbone": "resnet20_224"}
BUNDLED = "shvit_cifar.cifar10"
FROZEN: dict[str, Any] = {"backbone": "shvit_cifar", "backbone_args": {"stem_strides": (2, 2)}, "frozen": True}
"""The bundled backbone, trained on images of 32 x 32, with one more stride in its stem for larger ones."""
NETWORKS = ("linear, trained", "capsules, trained", "linear, frozen", "capsules, frozen")
NOTES = [
    "Trained: each head with a ResNet-20 of its own, from the same start. Frozen: on the maps of the bundled backbone"
    f" {BUNDLED}, which was trained on 48,000 training images of CIFAR-10 with a linear head.",
    "ECE: mean distance of confidence and accuracy in 15 bins. Logits become confidences by a softmax, lengths of"
    " capsules by division by their sum. The linear heads have cross-entropy as their loss, the capsules the margin"
    " loss.",
    "Noise: Gaussian, its standard deviation in units of the full range, the same for all networks; none saw noise in"
    " training.",
    "ms / image: forward pass of a batch of 32 after `fuse()`, median of alternating rounds on this machine.",
]


def run(settings: Settings) -> dict[str, Any]:
    """Train the four networks, measure them, and draw accuracy under noise."""
    device, data = settings.chosen_device(), str(settings.data)
    photos = Path(data).exists()
    side = PHOTO_SIDE if photos else SIDE
    splits = settings.splits(side, 5000, in_chans=3)
    test = _some(splits.test, settings.images or 1000)
    networks: dict[str, VisionModel] = {}
    losses: dict[str, list[float]] = {}
    maps: AveragedMaps | None = None
    for name in NETWORKS:
        head, _, how = name.partition(", ")
        form = {**(FROZEN if how == "frozen" else LARGE if photos else SMALL), "head": head, "img_size": side}
        path = settings.folder / f"{name.replace(', ', '-')}.safetensors"
        trained_as = _facts(settings, form, splits.train)
        model = _trained_before(path, trained_as)
        if model is None:
            torch.manual_seed(0)
            model = create_model("mspcaps_head", num_classes=len(splits.class_names), **form)
            if how == "frozen":
                model.load_part(BUNDLED)
                if maps is None:
                    settings.say(f"computing the maps of {BUNDLED} once, for {len(splits.train):,} images")
                    maps = averaged_maps(model.to(device), splits.train, CELLS, device)
            images = splits.train if maps is None else maps
            history = _train(model.to(device), images, settings, device, name)
            save_weights(path, model, class_names=splits.class_names, losses=history, trained_as=trained_as)
        else:
            settings.say(f"{name}: trained by an earlier run with these settings")
            history = list(read_metadata(path)["losses"])
        networks[name], losses[name] = model.to(device), history
    return _measure(networks, losses, test, settings, device)


def _facts(settings: Settings, form: Mapping[str, Any], images: Images) -> dict[str, Any]:
    """The settings that determine the weights of a network, as read back from JSON."""
    shown = {key: str(value) for key, value in form.items()}
    how = {"epochs": settings.epochs or EPOCHS, "batch_size": settings.batch_size or BATCH}
    return {**shown, **how, "data": str(settings.data), "images": len(images), "class_names": list(images.class_names)}


def _trained_before(path: Path, trained_as: Mapping[str, Any]) -> VisionModel | None:
    """The network of a file, if it was trained in this way."""
    try:
        return load(path) if read_metadata(path).get("trained_as") == trained_as else None
    except (MereoError, UsageError):
        return None


def _some(images: Images, count: int) -> Images:
    """At most `limit` images, with classes in proportion if they are known without reading."""
    if count >= len(images):
        return images
    if not isinstance(images, ImageSet):
        return images.subset(torch.linspace(0, len(images) - 1, count).long())
    return images.subset(stratified(images.labels, count, 0)[1].sort().values)


def _train(model: VisionModel, images: Images, settings: Settings, device: torch.device, name: str) -> list[float]:
    """Adam, the rate falling along a cosine from 2e-3; the loss that suits the head; on images, or on maps."""
    kind = model.default_loss
    cfg = model.pretrained_cfg
    model.train()

    def loss(batch: Batch) -> Tensor:
        if isinstance(images, AveragedMaps):
            scores = model.forward_head(model.neck(images.unpack(batch.images)))
        else:
            scores = model(normalise(batch.images, cfg["mean"], cfg["std"]))
        return score_loss(scores, batch.labels, kind)

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return fit(
        loss, parameters, images, epochs=settings.epochs or EPOCHS,
        batch_size=settings.batch_size or BATCH, lr=2e-3, device=device, title=name, say=settings.say,
    )  # fmt: skip


@torch.no_grad()
def _scores(model: VisionModel, test: Images, deviation: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Scores and labels of all test images, with noise that does not depend on the network."""
    cfg, kept, labels = model.pretrained_cfg, [], []
    generator = torch.Generator().manual_seed(0)
    with evaluating(model):
        for batch in batches(test, 100, device):
            noise = torch.randn(batch.images.shape, generator=generator).to(device)
            noisy = (batch.images + deviation * noise).clamp(0, 1)
            kept.append(model(normalise(noisy, cfg["mean"], cfg["std"])).float().cpu())
            labels.append(batch.labels.cpu())
    return torch.cat(kept), torch.cat(labels)


def _speed(networks: Mapping[str, VisionModel], test: Images, device: torch.device) -> dict[str, float]:
    """Milliseconds an image of each network, ready for inference, in alternating rounds."""
    ready = {name: model.fuse() for name, model in networks.items()}
    images = test.batch(torch.arange(TIMED) % len(test), device=device).images
    return {name: 1000 * seconds for name, seconds in seconds_an_image(ready, images, ROUNDS).items()}


def _spread(count: int) -> str:
    """A note on the 95 % interval of an accuracy near one half."""
    return (
        f"One seed. With {count:,} test images an accuracy near 50 % has a 95 % interval of about"
        f" {196 * (0.25 / max(count, 1)) ** 0.5:.1f} points to both sides; smaller differences are not significant."
    )


def _measure(
    networks: Mapping[str, VisionModel],
    losses: Mapping[str, list[float]],
    test: Images,
    settings: Settings,
    device: torch.device,
) -> dict[str, Any]:
    speed, rows, curves = _speed(networks, test, device), [], {}
    for name, model in networks.items():
        accuracy = []
        for deviation in NOISE:
            scores, labels = _scores(model, test, deviation, device)
            accuracy.append(100 * float((scores.argmax(1) == labels).double().mean()))
            if deviation == 0:
                total = scores.sum(1, keepdim=True)
                shares = scores / total if isinstance(model, CapsuleClassifier) else scores.softmax(1)
                error = expected_calibration_error(reliability(shares, labels, BINS))
        curves[name] = accuracy
        own = sum(p.numel() for n, p in model.named_parameters() if not n.startswith("backbone."))
        rows.append(
            {"network": name, "test %": accuracy[0], "ECE": error}
            | {f"noise {d:g} %": a for d, a in zip(NOISE[1:], accuracy[1:], strict=True)}
            | {"ms / image": speed[name], "parameters of the head": own}
        )
        settings.say(f"{name}: {accuracy[0]:.1f} %")
    draw_curves(curves, NOISE, losses, settings.folder / "capsule_head.png")
    return {
        "tables": {f"Two heads on the same maps, {len(test):,} test images": rows},
        "losses": dict(losses),
        "notes": [*NOTES, _spread(len(test))],
        "pictures": ["capsule_head.png"],
    }
