"""The picture of sparse inference: the entries of the class capsules under every condition."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from mereo.core import lengths
from mereo.pictures import displayable, new_figure, save_figure

TRUE, WINNER, QUIET = "#2b8a3e", "#1971c2", "#adb5bd"


def draw_activity(image: Tensor, label: int, poses: Mapping[str, Tensor], path: Path) -> None:
    """The entries of every class capsule as bars, a row a condition, the length above; the winner in colour.

    Args:
        image: in [0, 1]; other values are clipped.
        label: the true class, framed.
        poses: condition -> class capsules.
        path: of the PNG.

    Shapes: image (channels, height, width), poses (classes, pose).
    """
    classes = len(next(iter(poses.values())))
    largest = max(p.abs().max().item() for p in poses.values())
    figure = new_figure(0.95 * classes + 2.8, 0.95 * len(poses) + 0.9)
    figure.suptitle(
        f"Class capsules of one image of class {label} (framed): entries, and length above; the longest is blue",
        fontsize=10,
    )
    grid = figure.subplots(len(poses), classes + 1, squeeze=False)
    for row, (condition, capsules) in zip(grid, poses.items(), strict=True):
        row[0].imshow(displayable(image), cmap="gray", interpolation="nearest")
        row[0].set_ylabel(condition, rotation=0, ha="right", va="center", fontsize=8.5)
        length = lengths(capsules)
        for place, (axes, pose) in enumerate(zip(row[1:], capsules, strict=True)):
            won = place == int(length.argmax())
            axes.bar(range(len(pose)), pose.tolist(), color=WINNER if won else QUIET, width=0.9)
            axes.set_ylim(-1.05 * largest, 1.05 * largest)
            axes.set_title(
                f"{length[place].item():.2f}", fontsize=8, pad=2, color=WINNER if won else "black",
                fontweight="bold" if won else "normal",
            )  # fmt: skip
            for side in axes.spines.values():
                side.set(color=TRUE if place == label else QUIET, linewidth=2 if place == label else 0.6)
        for axes in row:
            axes.set_xticks([])
            axes.set_yticks([])
    for place, axes in enumerate(grid[-1, 1:]):
        axes.set_xlabel(str(place), fontsize=8.5)
    save_figure(figure, path)
