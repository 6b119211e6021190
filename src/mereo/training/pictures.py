"""Pictures of a run: learning curves, what augmentation makes of the images, what the model says of test images."""

from pathlib import Path
from typing import Any

from torch import Tensor

from mereo.pictures import displayable, new_figure, plain_log, save_figure, whole_ticks


def draw_curves(history: list[dict[str, Any]], path: Path) -> None:
    """Loss and accuracy by epoch."""
    figure = new_figure(9, 3.2)
    left, right = figure.subplots(1, 2)
    epochs = [row["epoch"] for row in history]
    for axes, quantity, scale in ((left, "loss", 1), (right, "accuracy", 100)):
        for split, label in (("train", "training"), ("val", "validation")):
            values = [row[f"{split}_{quantity}"] for row in history]
            if None not in values:
                axes.plot(epochs, [scale * v for v in values], marker="." if len(epochs) < 40 else "", label=label)
        axes.set_xlabel("epoch")
        axes.set_ylabel(quantity + (" in %" if scale == 100 else ""))
        axes.grid(alpha=0.3)
        whole_ticks(axes.xaxis)
    left.set_yscale("log")
    plain_log(left.yaxis)
    left.legend()
    save_figure(figure, path)


def draw_images(
    images: Tensor, titles: list[str], path: Path, columns: int = 8, wrong: list[bool] | None = None
) -> None:
    """A grid of images (batch, channels, height, width) in [0, 1] with a line above each, red where it is wrong."""
    rows = -(-len(images) // columns)
    figure = new_figure(1.15 * columns, 1.35 * rows)
    for place, axes in enumerate(figure.subplots(rows, columns, squeeze=False).flat):
        axes.set_axis_off()
        if place < len(images):
            axes.imshow(displayable(images[place]), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            red = wrong is not None and wrong[place]
            axes.set_title(titles[place], fontsize=7, color="crimson" if red else "black")
    save_figure(figure, path)
