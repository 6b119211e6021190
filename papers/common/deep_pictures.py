"""The loss curves of short trainings, a panel for each depth."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from mereo.pictures import new_figure, save_figure

SHADES = ("#868e96", "#e8590c", "#9c36b5", "#2b8a3e", "#4dabf7", "#1971c2")


def draw_losses(
    panels: Mapping[str, Mapping[str, Sequence[Sequence[float]]]], title: str, chance: float, path: Path
) -> None:
    """Training loss by step, a line for each network and seed.

    Args:
        panels: title -> name of the network -> for each seed the loss by step.
        title: of the picture.
        chance: loss of a network that predicts all classes equally, a dashed line; the axis ends a little above it.
        path: of the PNG.
    """
    lowest = min((min(run) for panel in panels.values() for runs in panel.values() for run in runs if run), default=0.0)
    figure = new_figure(max(7.6, 5.2 * len(panels)), 4.2)
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    figure.suptitle(title, fontsize=10)
    for axes, (panel, networks) in zip(grid, panels.items(), strict=True):
        for shade, (name, runs) in zip(SHADES, networks.items(), strict=False):
            for seed, losses in enumerate(runs):
                steps = range(1, len(losses) + 1)
                axes.plot(steps, losses, color=shade, linewidth=1.6, label=None if seed else name)
        axes.axhline(chance, color="#adb5bd", linewidth=0.8, linestyle="--")
        axes.set_title(panel, fontsize=9, loc="left")
        axes.set_xlabel("step", fontsize=8)
        axes.set_ylim(0.95 * min(lowest, chance), 1.15 * chance)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    grid[0].set_ylabel("training loss, mean of 12 steps", fontsize=8)
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=8)
    save_figure(figure, path)
