"""The time of NormGrad for all layers, in forward and backward passes that compute the gradient of the image."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import mereo
from mereo.explain import input_gradients
from mereo.explain.saliency import METHODS
from papers.common.settings import Settings

BATCH, ROUNDS = 16, 15
NETWORKS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("resnet20", {}),
    ("vit_tiny", {"img_size": 32, "patch_size": 4, "embed_dim": 96, "depth": 6, "num_heads": 4, "num_classes": 10}),
    ("mspcaps_tiny", {}),
)


def timed(call: Callable[..., Any], *arguments: Any) -> float:
    """Seconds of this process."""
    start = time.process_time()
    call(*arguments)
    return time.process_time() - start


def run(settings: Settings) -> dict[str, Any]:
    """The median over rounds in which both are timed one after the other."""
    rows = []
    for name, arguments in NETWORKS:
        model = mereo.create_model(name, **arguments).eval()
        images = torch.rand(BATCH, *model.image_shape)
        layers = list(range(len(model.feature_info)))
        classes = torch.zeros(BATCH, dtype=torch.int64)

        ratios, plain = [], []
        for _ in range(ROUNDS):
            plain.append(timed(input_gradients, model, images, classes))
            ratios.append(timed(METHODS["normgrad"], model, images, classes, layers) / max(plain[-1], 1e-9))
        rows.append({"network": name, "layers": len(layers), "gradient, s": statistics.median(plain),
                     "NormGrad / gradient": statistics.median(ratios)})  # fmt: skip
        settings.say(f"{name}: {rows[-1]['NormGrad / gradient']:.2f} times a gradient")
    return {"tables": {f"{BATCH} images, median of {ROUNDS} rounds": rows}}
