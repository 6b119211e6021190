"""Networks that differ in one thing, trained with the same images in one order: a table and a picture of losses."""

import math
from collections.abc import Callable, Mapping
from statistics import mean
from typing import Any

from torch import nn

from mereo.data import Splits
from papers.common.deep_pictures import draw_losses
from papers.common.deep_training import RATE, Curve, train_short
from papers.common.settings import Settings


def _rows(column: str, curves: Mapping[str, list[Curve]]) -> list[dict[str, Any]]:
    rows = []
    for network, runs in curves.items():
        figures = {"loss": [run.end for run in runs], "test %": [run.accuracy for run in runs]}
        figures["seconds"] = [run.seconds for run in runs]
        rows.append({column: network, "parameters": runs[0].parameters, **{n: mean(v) for n, v in figures.items()}})
    return rows


def compare(
    settings: Settings,
    data: str,
    splits: Splits,
    networks: Mapping[str, Callable[[tuple[int, int, int], int], nn.Module]],
    *,
    differ: str,
    depth: int,
    picture: str,
    epochs: int | None = None,
    rate: float = RATE,
    notes: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Train each network for every seed; the results of an experiment, with a row of means for each network.

    Args:
        data, splits: the name of the images, and themselves.
        networks: by title, (image shape, number of classes) -> a network.
        differ: what they differ in, such as "class token".
        depth: layers of the networks, for the title.
        picture: name of the file.
        epochs, rate: see `train_short`.
        notes: further lines below the table.
    """
    curves = {
        title: [train_short(make, splits, settings, title, seed, epochs, rate) for seed in range(settings.seeds)]
        for title, make in networks.items()
    }
    chance = math.log(len(splits.class_names))
    panels = {f"{depth} layers": {title: [curve.smooth() for curve in runs] for title, runs in curves.items()}}
    draw_losses(panels, f"Training loss on {data}, by the {differ}", chance, settings.folder / picture)
    steps = max(len(curve.losses) for runs in curves.values() for curve in runs)
    first = f"Loss: mean of the last tenth of the steps; chance is {chance:.3f}. Adam at {rate:g}, no warm-up."
    return {
        "tables": {f"{steps} steps on {len(splits.train):,} images of {data}": _rows(differ, curves)},
        "notes": [first, *notes],
        "pictures": [picture],
        "data": data,
        "losses": {title: [curve.losses for curve in runs] for title, runs in curves.items()},
    }
