"""Attention pooling of patches, trained with each kind of adversary: what it costs, and what it changes."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from mereo.inference.evaluate import prepare_batch
from papers.attention_adversarial_training.networks import (
    PooledPatches,
    accuracy,
    accuracy_under,
    accuracy_with_noise,
    adversary,
    agreement,
    area_under_curve,
    images_of,
    loss_with,
    mean_rows,
    step_times,
    train,
)
from papers.common.pictures import draw_curves
from papers.common.settings import Settings

NAMES = ("none", "at", "iat by rows", "iat", "iat as published", "vat", "ivat")
EPS, EPOCHS, BATCH, IMAGES, TESTED, ATTACKED = 2.0, 5, 32, 1200, 1000, 100
NOISE, TIMED = (1.0, 2.0, 4.0), 40
PICTURE = "noise.png"


def run(settings: Settings) -> dict[str, Any]:
    """Accuracy, robustness, agreement and time of each variant, and how far iAT by rows is from AT."""
    images, test, classes = images_of(settings, IMAGES, TESTED)
    rows, outputs = [], dict[str, Tensor]()
    names = settings.chosen(NAMES)
    for name in names:
        found, curves = [], []
        for seed in range(settings.seeds):
            torch.manual_seed(seed)
            model = PooledPatches(images.image_shape, classes)
            loss = loss_with(model, adversary(name, EPS))
            train(model, loss, images, seed, settings.epochs or EPOCHS, settings.batch_size or BATCH)
            prepared = prepare_batch(test, model.pretrained_cfg).images
            with torch.no_grad():
                scores = model(prepared)
            outputs.setdefault(name, scores)
            pearson, kendall = agreement(model, prepared)
            found.append(
                {
                    "accuracy %": accuracy(scores, test.labels),
                    "AUC %": area_under_curve(scores, test.labels),
                    "APGD %": accuracy_under("apgd", model, test, ATTACKED),
                    "Pearson": pearson,
                    "Kendall": kendall,
                }
            )
            curves.append([accuracy_with_noise(model, test, each, seed) for each in NOISE])
            settings.say(f"{name}, seed {seed}: {found[-1]['accuracy %']:.1f} %")
        means = torch.tensor(curves).mean(0).tolist()
        scored = {f"noise {each:g} %": value for each, value in zip(NOISE, means, strict=True)}
        rows.append(mean_rows(name, found) | scored)
    model = PooledPatches(images.image_shape, classes).train()
    batch = prepare_batch(
        images.batch(torch.arange(min(settings.batch_size or BATCH, len(images)))), model.pretrained_cfg
    )
    losses = {name: loss_with(model, adversary(name, EPS)) for name in names}
    times = step_times({name: partial(loss, batch) for name, loss in losses.items()}, TIMED)
    notes = []
    if "at" in names:
        for row in rows:
            row["time / AT"] = times[row["variant"]] / times["at"]
    if {"at", "iat by rows"} <= {*names}:
        gap = (outputs["at"] - outputs["iat by rows"]).abs().max().item()
        notes.append(f"Largest difference between the scores after AT and after iAT by rows, seed 0: {gap:.1e}.")
    shown = {
        row["variant"]: {0: row["accuracy %"], **{each: row[f"noise {each:g} %"] for each in NOISE}} for row in rows
    }
    style = {name: {"marker": "ox^sDv*"[number], "markersize": 4, "alpha": 0.8} for number, name in enumerate(names)}
    draw_curves(
        shown, "standard deviation of the noise on scores", "accuracy, %", settings.folder / PICTURE, size=(5.2, 3.4),
        style=style, legend={"fontsize": 8},
    )  # fmt: skip
    size = f"{len(images):,} images of {settings.data}, {settings.seeds} seeds, eps {EPS:g}"
    return {"tables": {size: rows}, "notes": notes, "pictures": [PICTURE], "data": str(settings.data)}
