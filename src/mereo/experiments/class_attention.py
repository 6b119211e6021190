"""Where the class token should join the patches: in the first layer, in the last two, or there by class attention.

Three networks with the same number of layers and parameters are trained with the same images in the same order.
"""

import math
from functools import partial
from typing import Any

from mereo.experiments.deep_networks import LATE, TOKENS, DeepTransformer
from mereo.experiments.deep_pictures import draw_losses
from mereo.experiments.deep_training import RATE, small_images, train_short
from mereo.experiments.settings import Settings

DEPTH = 12
PICTURE = "class_attention.png"
TITLES = {
    "first": "class token from the first layer",
    "late": f"class token in the last {LATE} layers",
    "class attention": f"class attention in the last {LATE} layers",
}


def run(settings: Settings) -> dict[str, Any]:
    """A table of losses, accuracies and multiplications, and the curves."""
    data, splits = small_images(settings)
    curves = {
        token: [
            train_short(partial(DeepTransformer, depth=DEPTH, token=token), splits, settings, TITLES[token], seed)
            for seed in range(settings.seeds)
        ]
        for token in TOKENS
    }
    chance = math.log(len(splits.class_names))
    panels = {f"{DEPTH} layers": {TITLES[token]: [c.smooth() for c in runs] for token, runs in curves.items()}}
    draw_losses(panels, f"Training loss on {data}, by the way of the class token", chance, settings.folder / PICTURE)
    rows = [
        {
            "class token": TITLES[token],
            "loss": sum(curve.end for curve in runs) / len(runs),
            "test %": sum(curve.accuracy for curve in runs) / len(runs),
            "seconds": sum(curve.seconds for curve in runs) / len(runs),
        }
        for token, runs in curves.items()
    ]
    steps = max(len(curve.losses) for runs in curves.values() for curve in runs)
    return {
        "tables": {f"{steps} steps on {len(splits.train):,} images of {data}": rows},
        "notes": [
            f"Loss: mean of the last tenth of the steps; chance is {chance:.3f}. Adam at {RATE:g}, no warm-up.",
            "Class attention changes the class token alone, so the last layers cost less than the others.",
        ],
        "pictures": [PICTURE],
        "data": data,
        "losses": {token: [curve.losses for curve in runs] for token, runs in curves.items()},
    }
