"""The picture of two heads on the same maps: accuracy under noise, and the loss of each epoch."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from mereo.pictures import new_figure, save_figure, whole_ticks

COLOURS = {"linear": "#1971c2", "capsules": "#e8590c"}


def draw_curves(
    accuracy: Mapping[str, Sequence[float]], noise: Sequence[float], losses: Mapping[str, Sequence[float]], path: Path
) -> None:
    """Accuracy of each network over the noise, and its training loss as a share of its loss in the first epoch."""
    figure = new_figure(8.6, 3.4)
    left, right = figure.subplots(1, 2)
    for name in accuracy:
        head, _, how = name.partition(", ")
        style = {"color": COLOURS[head], "linestyle": "--" if how == "frozen" else "-", "marker": ".", "label": name}
        left.plot(noise, accuracy[name], **style)
        right.plot(range(1, len(losses[name]) + 1), [value / losses[name][0] for value in losses[name]], **style)
    left.set_xlabel("standard deviation of the noise")
    left.set_ylabel("test accuracy in %")
    left.set_ylim(0, None)
    right.set_xlabel("epoch")
    right.set_ylabel("training loss / loss of epoch 1")
    whole_ticks(right.xaxis)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    left.legend(fontsize=8)
    save_figure(figure, path)
