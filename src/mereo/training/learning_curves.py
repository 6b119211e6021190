"""Learning curves of a run."""

from pathlib import Path
from typing import Any

from mereo.pictures import new_figure, plain_log, save_figure, whole_ticks


def draw_curves(history: list[dict[str, Any]], path: Path, metric: str = "accuracy", *, is_share: bool = True) -> None:
    """The loss and one metric by epoch, a share in percent."""
    figure = new_figure(9, 3.2)
    left, right = figure.subplots(1, 2)
    epochs = [row["epoch"] for row in history]
    for axes, quantity, scale in ((left, "loss", 1), (right, metric, 100 if is_share else 1)):
        for split, label in (("train", "training"), ("val", "validation")):
            values = [row[f"{split}_{quantity}"] for row in history]
            if None not in values:
                axes.plot(epochs, [scale * v for v in values], marker="." if len(epochs) < 40 else "", label=label)
        axes.set_xlabel("epoch")
        axes.set_ylabel(quantity + (" in %" if scale == 100 else ""))
        axes.grid(alpha=0.3)
        whole_ticks(axes.xaxis)
    if all(row["train_loss"] > 0 for row in history):
        left.set_yscale("log")
        plain_log(left.yaxis)
    left.legend()
    save_figure(figure, path)
