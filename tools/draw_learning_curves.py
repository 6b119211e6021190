"""Draw the learning curves of finished runs together: python tools/draw_learning_curves.py PICTURE RUN ..."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

from mereo.measure.style import colour, marker, quiet
from mereo.pictures import new_figure, plain_log, save_figure, whole_ticks


def draw(runs: list[Path], path: Path) -> None:
    """Error by epoch, one panel a data set: a line of the training images, a large marker of the test images."""
    results = [json.loads((run / "results.json").read_text()) for run in runs]
    data_sets = list(dict.fromkeys(result["data"] for result in results))
    networks = list(dict.fromkeys(result["model"] for result in results))
    figure = new_figure(3.4 * len(data_sets), 3.5)
    for axes, data in zip(figure.subplots(1, len(data_sets), squeeze=False)[0], data_sets, strict=True):
        for run, result in zip(runs, results, strict=True):
            if result["data"] == data:
                _draw_run(axes, run, result, networks.index(result["model"]))
        quiet(axes, data, "epoch", "error in %")
        axes.set_yscale("log")
        plain_log(axes.yaxis)
        whole_ticks(axes.xaxis)
        axes.legend(fontsize=7, frameon=False)
    save_figure(figure, path)


def _draw_run(axes: Any, run: Path, result: dict[str, Any], place: int) -> None:
    with (run / "results.csv").open() as file:
        errors = [100 * (1 - float(row["train_accuracy"])) for row in csv.DictReader(file)]
    epochs = range(1, len(errors) + 1)
    axes.plot(epochs, errors, color=colour(place), linewidth=1.4, label=f"{result['model']}, training")
    test = 100 * (1 - result["test_last"]["accuracy"])
    label = f"{result['model']}, test {100 - test:.2f} %"
    axes.plot([len(errors)], [test], color=colour(place), marker=marker(place), markersize=7, linestyle="", label=label)


if __name__ == "__main__":
    draw([Path(run) for run in sys.argv[2:]], Path(sys.argv[1]))
