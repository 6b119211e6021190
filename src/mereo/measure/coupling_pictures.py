"""The picture of what a metric loses when couplings are replaced."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mereo.measure.couplings import WAYS
from mereo.measure.style import FAINT, INK, MODELS, quiet
from mereo.pictures import new_figure, save_figure

COLOURS = (MODELS[0], "#adb5bd", "#dee2e6")


def draw_coupling_effects(
    effects: Mapping[str, Mapping[str, Any]], path: Path, title: str = "Couplings replaced"
) -> None:
    """Three bars a network: the metric with its own couplings, with uniform and with shuffled ones.

    Args:
        effects: `CouplingEffect.to_dict()` of each network.
        path: of the PNG.
        title: above the bars.
    """
    figure = new_figure(7, 1.1 + 0.85 * len(effects))
    axes, metric = figure.subplots(), next(iter(effects.values()))["metric"]
    share = metric == "accuracy"
    scale = 100 if share else 1
    for place, effect in enumerate(effects.values()):
        values = [effect["own"], *(effect[way]["value"] for way in WAYS)]
        for number, (value, colour, name) in enumerate(zip(values, COLOURS, ("own", *WAYS), strict=True)):
            height = place + 0.26 * (number - 1)
            axes.barh(height, scale * value, height=0.24, color=colour)
            shown = f"{100 * value:.1f} %" if share else f"{value:.4g}"
            axes.text(scale * value, height, f" {shown}  {name}", va="center", fontsize=8, color=INK)
    axes.set_yticks(range(len(effects)), list(effects), fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.25)
    quiet(axes, title, f"{metric}{' in %' if share else ''}", "", "x")
    axes.tick_params(axis="y", labelcolor=INK, color=FAINT)
    save_figure(figure, path)
