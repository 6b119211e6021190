"""A capsule network whose couplings are perturbed in training, on few images, which it can learn by heart."""

from typing import Any

import torch

import mereo
from mereo.data import Batch
from mereo.inference.evaluate import prepare_batch
from mereo.tasks.classification import Classification
from mereo.training.config import TrainConfig
from mereo.training.regularisers import regularise
from papers.attention_adversarial_training.networks import (
    accuracy,
    accuracy_under_apgd,
    accuracy_with_noise,
    images_of,
    mean_rows,
    train,
)
from papers.common.settings import Settings

NAMES = ("none", "at", "iat", "vat")
EPS, EPOCHS, BATCH, IMAGES, TESTED, ATTACKED = 2.0, 10, 32, 240, 400, 40
NOISE = (1.0,)


def run(settings: Settings) -> dict[str, Any]:
    """Accuracy on training and test images, and how much the couplings matter, of each variant."""
    images, test, classes = images_of(settings, IMAGES, TESTED)
    own = images.batch(torch.arange(len(images)))
    rows = []
    for name in settings.chosen(NAMES):
        found = []
        for seed in range(settings.seeds):
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

            def loss(batch: Batch, objective: Any = objective) -> torch.Tensor:
                total: torch.Tensor = objective(batch)[0]
                return total

            train(model, loss, images, seed, settings.epochs or EPOCHS, settings.batch_size or BATCH)
            with torch.no_grad():
                learned = model(prepare_batch(own, model.pretrained_cfg).images)
                scores = model(prepare_batch(test, model.pretrained_cfg).images)
            with mereo.record(model) as trace, torch.no_grad():
                model(prepare_batch(test.pick(slice(0, 1)), model.pretrained_cfg).images)
            uniform = {each: "uniform" for each in trace if trace.kinds[each] == "couplings"}
            with mereo.intervene(model, uniform), torch.no_grad():
                without = model(prepare_batch(test, model.pretrained_cfg).images)
            found.append(
                {
                    "accuracy %": accuracy(scores, test.labels),
                    "training images %": accuracy(learned, own.labels),
                    "APGD %": accuracy_under_apgd(model, test, ATTACKED),
                    f"noise {NOISE[0]:g} %": accuracy_with_noise(model, test, NOISE[0], seed),
                    "uniform couplings %": accuracy(without, test.labels),
                }
            )
            settings.say(f"{name}, seed {seed}: {found[-1]['accuracy %']:.1f} %")
        rows.append(mean_rows(name, found))
    size = f"CapsNet, {len(images):,} images of {settings.data}, {settings.seeds} seeds, eps {EPS:g}"
    return {"tables": {size: rows}, "notes": [], "pictures": [], "data": str(settings.data)}
