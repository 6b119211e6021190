"""Pictures of one network on one split: confusion matrix, reliability diagram, the highest scores."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from mereo.escape import cut
from mereo.inference.answers import Answers
from mereo.inference.calibration import Reliability, expected_calibration_error
from mereo.inference.metrics import wilson_interval
from mereo.measure.classification import highest_and_lead
from mereo.measure.style import FAINT, INK, RIGHT, RULE, WRONG, figure_title, quiet
from mereo.pictures import new_figure, save_figure

MOST_NUMBERED, MOST_NAMED = 20, 40
LONGEST_NAME = 40
HOW = {"normalised": "score / sum of scores", "softmax": "softmax of scores"}
HIGHEST = {
    "lengths": ("length of the longest capsule", "its lead over the next longest"),
    "activations": ("highest activation of a class capsule", "its lead over the next"),
    "logits": ("softmax of the highest score", "its lead over the next"),
}
"""What the histograms show, by the kind of score."""


def draw_confusion(confusion: Tensor, names: tuple[str, ...], title: str, path: Path) -> None:
    """The confusion matrix, coloured by the share of the true class; few classes carry their counts.

    Args:
        confusion: int64 (classes, classes), the true class down, the predicted class across.
        names: of the classes.
        title: above it.
        path: of the PNG.
    """
    from matplotlib.colors import LinearSegmentedColormap

    count = len(names)
    side = min(max(2.6 + 0.42 * count, 4.2), 11.0)
    names = tuple(cut(name, LONGEST_NAME) for name in names)
    longest = max(len(name) for name in names)
    figure = new_figure(side + 0.9 + 0.05 * longest, side + 0.05 * longest)
    axes = figure.subplots()
    shares = confusion / confusion.sum(1, keepdim=True).clamp(min=1)
    colours = LinearSegmentedColormap.from_list("shares", ["#ffffff", "#d0e4f7", "#74b9f0", "#1971c2", "#0b3d73"])
    # The square root keeps rare confusions visible next to a strong diagonal.
    drawn = axes.imshow(shares.sqrt().numpy(), cmap=colours, vmin=0, vmax=1, interpolation="nearest")
    quiet(axes, title, "predicted class", "true class", grid="")
    step = max(1, -(-count // MOST_NAMED))
    upright = longest <= 3 and count <= 20
    slant: dict[str, Any] = {} if upright else {"rotation": 60, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(range(0, count, step), names[::step], **slant)
    axes.set_yticks(range(0, count, step), names[::step])
    if count <= MOST_NUMBERED:
        for i, row in enumerate(confusion.tolist()):
            for j, cell in enumerate(row):
                if cell:
                    light = float(shares[i, j].sqrt()) > 0.55
                    axes.text(
                        j, i, f"{cell:,}", ha="center", va="center_baseline", fontsize=7.5 if cell < 1000 else 6.5,
                        color="white" if light else INK if i == j else WRONG,
                    )  # fmt: skip
    for edge in axes.spines.values():
        edge.set(visible=True, edgecolor=RULE, linewidth=0.8)
    bar = figure.colorbar(drawn, ax=axes, shrink=0.7, ticks=[0, 0.1**0.5, 0.25**0.5, 0.5**0.5, 1])
    bar.ax.set_yticklabels(["0", "10 %", "25 %", "50 %", "100 %"])
    bar.set_label("share of the true class", fontsize=8.5, color=FAINT)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=8, colors=FAINT)
    save_figure(figure, path)


def draw_calibration(reliabilities: Mapping[str, Reliability], title: str, path: Path) -> None:
    """Reliability diagrams, one for each way to turn scores into confidences, over how often each confidence occurs.

    Args:
        reliabilities: the bins of each way.
        title: above all.
        path: of the PNG.
    """
    width = 4.3 * len(reliabilities)
    figure = new_figure(width, 5.5)
    figure_title(figure, title, width)
    grid = figure.subplots(2, len(reliabilities), squeeze=False, sharex=True, height_ratios=[3.2, 1])
    for place, (how, bins) in enumerate(reliabilities.items()):
        upper, lower = grid[0, place], grid[1, place]
        _reliability(upper, bins)
        quiet(upper, "", "", "share correct" if place == 0 else "")
        upper.set_title(HOW.get(how, how), fontsize=9, color=INK, loc="left")
        upper.set_ylim(0, 1.02)
        upper.set_xlim(0, 1)
        upper.text(
            0.97, 0.04, f"ECE {100 * expected_calibration_error(bins):.1f} %", ha="right", fontsize=9, color=INK,
            transform=upper.transAxes, bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8},
        )  # fmt: skip
        step = 1 / len(bins.images)
        shares = 100 * bins.images / bins.images.sum().clamp(min=1)
        lower.bar((bins.edges[:-1] + step / 2).numpy(), shares.numpy(), width=0.9 * step, color="#adb5bd")
        quiet(lower, "", "confidence", "% of images" if place == 0 else "", grid="y")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8.5, frameon=False, labelcolor=INK)
    save_figure(figure, path)


def _reliability(axes: Any, bins: Reliability) -> None:
    filled = bins.images > 0
    x, y = bins.confidence[filled], bins.accuracy[filled]
    pairs = list(zip(y.tolist(), bins.images[filled].tolist(), strict=True))
    spans = [wilson_interval(min(share, 1.0), int(count)) for share, count in pairs]
    axes.plot([0, 1], [0, 1], color=FAINT, linewidth=1, linestyle=(0, (4, 3)), label="perfect calibration")
    axes.vlines(x, y, x, color=WRONG, linewidth=5, alpha=0.25, label="gap")
    axes.vlines(x, [low for low, _ in spans], [high for _, high in spans], color="#1971c2", linewidth=1)
    axes.plot(x, y, color="#1971c2", marker="o", markersize=4.5, linewidth=1.2, label="network, 95 % interval")


def draw_scores(answers: Answers, title: str, path: Path) -> None:
    """Histograms over correct and wrong predictions: the highest score, and its lead over the next.

    Args:
        answers: predictions for every image.
        title: above the first.
        path: of the PNG.
    """
    figure = new_figure(9, 3.3)
    correct, what = answers.correct, HIGHEST[answers.kind]
    for axes, values, label in zip(figure.subplots(1, 2), highest_and_lead(answers), what, strict=True):
        top = max(1.0, float(values.max())) if len(values) else 1.0
        edges = [top * k / 40 for k in range(41)]
        for chosen, name, shade in ((correct, "correct", RIGHT), (~correct, "wrong", WRONG)):
            part = values[chosen]
            if len(part):
                # Each histogram sums to 100 %, because there are few wrong predictions.
                axes.hist(
                    part.numpy(), bins=edges, weights=[100 / len(part)] * len(part), histtype="stepfilled",
                    facecolor=f"{shade}47", edgecolor=shade, linewidth=1.4, label=f"{name} ({len(part):,})",
                )  # fmt: skip
        first = label == what[0]
        quiet(axes, title if first else "", label, "% of the correct, or of the wrong predictions" if first else "")
        axes.set_xlim(0, top)
    handles = figure.axes[0].get_legend_handles_labels()[0]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=8, frameon=False, labelcolor=INK)
    save_figure(figure, path)
