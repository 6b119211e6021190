"""Captions of a network under an intervention, as rows of tables that always show recall and length beside CHAIR."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from mereo.data.captions import test_set
from mereo.tasks.captions import Intervention, evaluate_captions

SHOWN = ("chair_s", "chair_i", "recall")
SEED = 7


def caption_figures(
    models: Sequence[nn.Module], together: float, images: int, intervention: Intervention | None = None,
    *, filler: int = 0, gamma: float = 1.0,
) -> dict[str, float]:  # fmt: skip
    """Means over networks: CHAIR_S, CHAIR_I and recall in percent, and the length of captions."""
    split = test_set(images, together, SEED, filler, most=0)
    rows = [evaluate_captions(model, split, intervention, gamma=gamma) for model in models]
    means = {name: statistics.mean(row[name] for row in rows) for name in (*SHOWN, "length")}
    return {name: round(100 * means[name], 1) for name in SHOWN} | {"length": round(means["length"], 2)}


def swept(
    say: Callable[[str], None], cases: dict[str, Any], measure: Callable[[Any], dict[str, float]]
) -> list[dict[str, Any]]:
    """A row for each case, with what was measured."""
    rows = []
    for name, case in cases.items():
        rows.append({"case": name, **measure(case)})
        say(", ".join([str(name), *(f"{what} {value:g}" for what, value in rows[-1].items() if what != "case")]))
    return rows
