"""The speed of sequence models over the length of the sequence."""

from collections.abc import Mapping
from pathlib import Path

from mereo.pictures import row_of_panels, save_figure

SHADES = ("#1971c2", "#e8590c", "#2b8a3e")


def draw_speeds(panels: Mapping[str, Mapping[str, Mapping[int, float]]], path: Path) -> None:
    """Tokens a second by length, a line for each network.

    Args:
        panels: measurement -> network -> length -> tokens a second.
        path: of the PNG.
    """
    figure, row = row_of_panels(panels, 5, 3.6)
    for axes, networks in zip(row, panels.values(), strict=True):
        for shade, (name, rates) in zip(SHADES, networks.items(), strict=False):
            axes.plot(list(rates), list(rates.values()), marker="o", color=shade, label=name)
        axes.set_xscale("log", base=2)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("tokens", fontsize=8)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=8)
    save_figure(figure, path)
