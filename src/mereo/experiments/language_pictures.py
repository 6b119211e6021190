"""The speed of sequence models over the length of the sequence."""

from collections.abc import Mapping
from pathlib import Path

from mereo.pictures import new_figure, save_figure

SHADES = ("#1971c2", "#e8590c", "#2b8a3e")


def draw_speeds(panels: Mapping[str, Mapping[str, Mapping[int, float]]], path: Path) -> None:
    """Tokens a second by length, a line for each network.

    Args:
        panels: what is measured -> network -> length -> tokens a second.
        path: of the PNG.
    """
    figure = new_figure(5 * len(panels), 3.6)
    for axes, (title, networks) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for shade, (name, rates) in zip(SHADES, networks.items(), strict=False):
            axes.plot(list(rates), list(rates.values()), marker="o", color=shade, label=name)
        axes.set_xscale("log", base=2)
        axes.set_ylim(bottom=0)
        axes.set_title(title, fontsize=9, loc="left")
        axes.set_xlabel("tokens", fontsize=8)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=8)
    save_figure(figure, path)
