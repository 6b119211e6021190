"""Attention pooling of patches with half of the labels removed: the rest of the images serve virtual training only."""

from typing import Any

import torch

from mereo.inference.evaluate import prepare_batch
from papers.attention_adversarial_training.networks import (
    PooledPatches,
    accuracy,
    accuracy_under,
    accuracy_with_noise,
    adversary,
    area_under_curve,
    images_of,
    loss_with,
    mean_rows,
    train,
)
from papers.common.settings import Settings

NAMES = ("none, all labels", "none", "at", "iat", "vat", "ivat")
EPS, EPOCHS, BATCH, IMAGES, TESTED, ATTACKED = 2.0, 12, 32, 300, 1000, 50
NOISE = (2.0,)


def run(settings: Settings) -> dict[str, Any]:
    """Accuracy of each variant, the labels of every second image being removed."""
    images, test, classes = images_of(settings, IMAGES, TESTED)
    hidden = torch.zeros(len(images), dtype=torch.bool)
    hidden[1::2] = True
    rows = []
    for name in settings.chosen(NAMES):
        found = []
        for seed in range(settings.seeds):
            torch.manual_seed(seed)
            model = PooledPatches(images.image_shape, classes)
            without = torch.zeros_like(hidden) if name == NAMES[0] else hidden
            variant = adversary(name.partition(",")[0], EPS)
            loss = loss_with(model, variant)
            train(model, loss, images, seed, settings.epochs or EPOCHS, settings.batch_size or BATCH, hidden=without)
            with torch.no_grad():
                scores = model(prepare_batch(test, model.pretrained_cfg).images)
            found.append(
                {
                    "accuracy %": accuracy(scores, test.labels),
                    "AUC %": area_under_curve(scores, test.labels),
                    "APGD %": accuracy_under("apgd", model, test, ATTACKED),
                    f"noise {NOISE[0]:g} %": accuracy_with_noise(model, test, NOISE[0], seed),
                }
            )
            settings.say(f"{name}, seed {seed}: {found[-1]['accuracy %']:.1f} %")
        rows.append(mean_rows(name, found))
    size = f"{len(images):,} images of {settings.data}, half of them labelled, {settings.seeds} seeds, eps {EPS:g}"
    return {"tables": {size: rows}, "notes": [], "pictures": [], "data": str(settings.data)}
