"""What does it cost in accuracy to drop the patches that a class token attends to least, and what does it save?

One small transformer is trained with all patches, and others with fewer in three of their layers, whose dropped patches
are fused into one token or lost. All see the same images in the same order.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mereo.inference.flops import count_flops
from mereo.surgery import evit
from papers.common.deep_training import small_images, train_short
from papers.common.measures import seconds_an_image
from papers.common.settings import Settings
from papers.evit.patch_transformer import PatchTransformer

RATES = (0.9, 0.7, 0.5)
ROUNDS, TIMED = 7, 64
"""Rounds of the measurement, and images of a batch there."""
Shape = tuple[int, int, int]


def _maker(rate: float, fuse: bool, made: list[nn.Module]) -> Callable[[Shape, int], nn.Module]:
    def make(shape: Shape, classes: int) -> nn.Module:
        model: nn.Module = PatchTransformer(shape, classes)
        made.append(model if rate == 1 else evit(model, rate, fuse=fuse))
        return made[-1]

    return make


def speeds(models: Mapping[str, nn.Module], images: Tensor, rounds: int = ROUNDS) -> dict[str, float]:
    """Images a second of each network: the median of rounds in which they take turns."""
    return {name: 1 / seconds for name, seconds in seconds_an_image(models, images, rounds).items()}


@torch.no_grad()
def _accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    answers = torch.cat([model.eval()(part).argmax(1) for part in images.split(250)])
    return 100 * (answers == labels).float().mean().item()


def run(settings: Settings) -> dict[str, Any]:
    """A table of accuracies, multiplications and images a second."""
    data, splits = small_images(settings)
    variants = {"1": (1.0, True)}
    variants |= {f"{rate}, fused": (rate, True) for rate in RATES}
    variants |= {f"{rate}, dropped": (rate, False) for rate in RATES}
    models: dict[str, nn.Module] = {}
    accuracies: dict[str, float] = {}
    for name, (rate, fuse) in variants.items():
        made: list[nn.Module] = []
        curves = [
            train_short(_maker(rate, fuse, made), splits, settings, f"keep rate {name}", seed)
            for seed in range(settings.seeds)
        ]
        models[name], accuracies[name] = made[0], sum(curve.accuracy for curve in curves) / len(curves)
    host = models["1"]
    batch = splits.test.batch(torch.arange(min(len(splits.test), 1000)))
    assert batch.images is not None and batch.labels is not None
    device = next(host.parameters()).device
    images, labels = 2 * batch.images.to(device) - 1, batch.labels.to(device)
    fast = speeds(models, images[:TIMED])
    rows = []
    for name, (rate, fuse) in variants.items():
        as_host = host if rate == 1 else evit(host, rate, fuse=fuse)
        rows.append(
            {
                "keep rate": name, "test %": accuracies[name],
                "host's weights, test %": _accuracy(as_host, images, labels),
                "multiplications, millions": count_flops(models[name], images[:1]) / 2e6,
                "images a second": round(fast[name]), "over the host": fast[name] / fast["1"],
            }
        )  # fmt: skip
    return {
        "tables": {f"{len(splits.train):,} training images of {data}, {settings.seeds} seeds": rows},
        "notes": [
            "Test: trained with that rate from the beginning. Host's weights: those trained with all patches, and the"
            f" rate only at the end, on {len(images):,} test images.",
            "Three of eight layers reduce, those at a quarter, a half and three quarters.",
        ],
        "pictures": [],
    }
