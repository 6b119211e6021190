"""A capsule network whose couplings are perturbed in training, on few images, which it can learn by heart.

Besides its accuracy: what attacks on images leave of it, and whether its gradients mislead them.
"""

import statistics
from collections import Counter
from typing import Any

import torch

import mereo
from mereo.data import Batch, Images
from mereo.inference.evaluate import prepare_batch
from mereo.measure.attacks.masking import MaskingCheck, look_for_masking
from mereo.models import VisionModel
from mereo.tasks.classification import Classification
from mereo.training.config import TrainConfig
from mereo.training.regularisers import regularise
from papers.attention_adversarial_training.networks import (
    EPSILON,
    accuracy,
    accuracy_under,
    accuracy_with_noise,
    images_of,
    mean_rows,
    train,
)
from papers.common.settings import Settings

NAMES: tuple[str, ...] = ("none", "at", "iat", "vat")
EPS, EPOCHS, BATCH, IMAGES, TESTED = 2.0, 10, 32, 240, 400
ATTACKED, PROBED, QUERIES = 200, 80, 500
"""Images that are attacked, correctly classified images of the check of masking, and queries of Square."""
FARTHER = 0.08
"""Largest change of a pixel that leaves about half of the images correct."""
NOISE = (1.0,)


def run(settings: Settings) -> dict[str, Any]:
    """Accuracy, how much the couplings matter, robustness and the check of masking, of each variant."""
    images, test, classes = images_of(settings, IMAGES, TESTED)
    rows, masking, plain = [], [], dict[int, VisionModel]()
    for name in settings.chosen(NAMES):
        found, checks = [], []
        for seed in range(settings.seeds):
            model = _trained(settings, name, seed, images, classes)
            if name == NAMES[0]:
                plain[seed] = model
            found.append(_figures(model, images, test, seed))
            checks.append(_masking(model, test, {NAMES[0]: plain[seed]} if seed in plain else {}))
            settings.say(f"{name}, seed {seed}: {found[-1]['accuracy %']:.1f} %")
        rows.append(mean_rows(name, found))
        masking.append(_mean_checks(name, checks))
    size = f"CapsNet, {len(images):,} images of {settings.data}, {settings.seeds} seeds, eps {EPS:g}"
    probed = f"Correct under attacks of {FARTHER:g} that could only be stronger if gradients mislead PGD, %"
    return {"tables": {size: rows, probed: masking}, "notes": [], "pictures": [], "data": str(settings.data)}


def _trained(settings: Settings, name: str, seed: int, images: Images, classes: int) -> VisionModel:
    torch.manual_seed(seed)
    model = mereo.create_model(
        "capsnet", num_classes=classes, in_chans=images.image_shape[0], img_size=images.image_shape[1],
        conv_channels=16, primary_types=4, decoder=False,
    )  # fmt: skip
    kind = None if name == "none" else name
    config = TrainConfig().replace(
        loss="margin", attention_adversary=kind, attention_adversary_args={"eps": EPS} if kind else {}
    )
    objective = regularise(Classification().objective(model, config), config)

    def loss(batch: Batch) -> torch.Tensor:
        total: torch.Tensor = objective(batch)[0]
        return total

    train(model, loss, images, seed, settings.epochs or EPOCHS, settings.batch_size or BATCH)
    return model


def _figures(model: VisionModel, images: Images, test: Batch, seed: int) -> dict[str, float]:
    own = images.batch(torch.arange(len(images)))
    with mereo.record(model) as trace, torch.no_grad():
        learned = model(prepare_batch(own, model.pretrained_cfg).images)
    prepared = prepare_batch(test, model.pretrained_cfg).images
    uniform = {each: "uniform" for each in trace if trace.kinds[each] == "couplings"}
    with torch.no_grad():
        scores = model(prepared)
        with mereo.intervene(model, uniform):
            without = model(prepared)
    return {
        "accuracy %": accuracy(scores, test.labels),
        "training images %": accuracy(learned, own.labels),
        f"noise {NOISE[0]:g} %": accuracy_with_noise(model, test, NOISE[0], seed),
        "uniform couplings %": accuracy(without, test.labels),
        **{f"APGD {each:g} %": accuracy_under("apgd", model, test, ATTACKED, each) for each in (EPSILON, FARTHER)},
        f"Square {FARTHER:g} %": accuracy_under("square", model, test, ATTACKED, FARTHER, QUERIES),
    }


def _masking(model: VisionModel, test: Batch, others: dict[str, VisionModel]) -> list[MaskingCheck]:
    with torch.no_grad():
        predicted = model(prepare_batch(test, model.pretrained_cfg).images).argmax(1)
    right = (predicted == test.labels).nonzero().flatten()[:PROBED]
    return look_for_masking(model, test.images[right], test.labels[right], FARTHER, others=others)


def _mean_checks(name: str, seeds: list[list[MaskingCheck]]) -> dict[str, Any]:
    """What the attacks leave, means of seeds, and in how many seeds each check points to masked gradients."""
    row: dict[str, Any] = {"variant": name}
    for checks in zip(*seeds, strict=True):
        for key, column in (("pgd", "PGD"), ("other", checks[0].name), ("accuracy", checks[0].name)):
            if key in checks[0].numbers:
                row[column] = 100 * statistics.mean(check.numbers[key] for check in checks)
    points = Counter(check.name for checks in seeds for check in checks if check.suspicious)
    row["points to masking"] = ", ".join(f"{check} ({count} of {len(seeds)})" for check, count in points.items()) or "-"
    return row
