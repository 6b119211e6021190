"""Which residual branches make depth trainable: LayerScale compared with plain pre-norm, ReZero, Fixup and T-Fixup.

Networks of 24 and 36 layers are trained for a few hundred steps without a warm-up, with the same images in the same
order.
"""

import math
from functools import partial
from typing import Any

from mereo.layers.residual import FORMS
from papers.common.deep_networks import DeepTransformer
from papers.common.deep_pictures import draw_losses
from papers.common.deep_training import RATE, Curve, small_images, train_short
from papers.common.settings import Settings

DEPTHS = (24, 36)
PICTURE = "layer_scale.png"
LAGS = 1.1
"""A loss over this multiple of the best one lags."""
WORSE = 1.05
"""A loss over this multiple of chance has diverged; one up to as much below learns nothing."""


def run(settings: Settings) -> dict[str, Any]:
    """A table of losses and accuracies, and the curves."""
    forms = settings.chosen(FORMS)
    data, splits = small_images(settings)
    curves: dict[int, dict[str, list[Curve]]] = {}
    for depth in DEPTHS:
        for form in forms:
            make = partial(DeepTransformer, depth=depth, residual=form)
            curves.setdefault(depth, {})[form] = [
                train_short(make, splits, settings, f"{form}, {depth} layers", seed) for seed in range(settings.seeds)
            ]
    chance = math.log(len(splits.class_names))
    panels = {
        f"{depth} layers": {form: [curve.smooth() for curve in runs] for form, runs in networks.items()}
        for depth, networks in curves.items()
    }
    title = f"Training loss of deep networks on {data}, by the form of their residual branches"
    draw_losses(panels, title, chance, settings.folder / PICTURE)
    rows = [row for depth in DEPTHS for row in _rows(curves[depth], depth, chance)]
    steps = max(len(curve.losses) for runs in curves[DEPTHS[0]].values() for curve in runs)
    return {
        "tables": {f"{steps} steps on {len(splits.train):,} images of {data}": rows},
        "notes": [
            f"Loss: mean of the last tenth of the steps; chance is {chance:.3f}. Adam at {RATE:g}, no warm-up.",
            f"Status: diverged is a loss that is not finite or over {WORSE} times chance, learns nothing one within a"
            f" factor of {WORSE} of chance, lags one over {LAGS} times the best.",
        ],
        "pictures": [PICTURE],
        "data": data,
        "losses": {str(d): {form: [c.losses for c in runs] for form, runs in n.items()} for d, n in curves.items()},
    }


def _rows(networks: dict[str, list[Curve]], depth: int, chance: float) -> list[dict[str, Any]]:
    """A row a form: means over the seeds."""
    ends = {form: sum(curve.end for curve in runs) / len(runs) for form, runs in networks.items()}
    best = min(ends.values())

    def status(form: str) -> str:
        if ends[form] > WORSE * chance or not all(curve.finite for curve in networks[form]):
            return "diverged"
        if ends[form] > chance / WORSE:
            return "learns nothing"
        return "lags" if ends[form] > LAGS * best else "trains"

    return [
        {
            "branch": form, "layers": depth, "loss": ends[form],
            "test %": sum(curve.accuracy for curve in runs) / len(runs), "status": status(form),
        }
        for form, runs in networks.items()
    ]  # fmt: skip
