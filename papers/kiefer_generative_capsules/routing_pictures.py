"""The picture of the training conditions: the loss by epoch, and how sparse each layer is."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mereo.pictures import new_figure, plain_log, save_figure, whole_ticks

SHADES = {
    "routed_decoder": "#1971c2", "unrouted_decoder": "#e8590c", "routed": "#4dabf7", "unrouted": "#ffa94d",
    "middle_routed": "#2b8a3e", "middle_unrouted": "#9c36b5",
}  # fmt: skip


def draw_routing(
    losses: Mapping[str, Sequence[Sequence[float]]], sparsity: Sequence[Mapping[str, Any]], path: Path
) -> None:
    """Loss curves, a line a run, and Hoyer's sparsity, a bar a layer.

    Args:
        losses: variant -> for each seed the training loss by epoch.
        sparsity: rows with "variant", "layer" and "hoyer".
        path: of the PNG.
    """
    figure = new_figure(10, 3.9)
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    for variant, runs in losses.items():
        for seed, values in enumerate(runs):
            left.plot(
                range(1, len(values) + 1), values, color=SHADES[variant], marker=".", linewidth=1.4,
                linestyle="--" if "unrouted" in variant else "-", label=None if seed else variant.replace("_", ", "),
            )  # fmt: skip
    left.set_yscale("log")
    plain_log(left.yaxis)
    left.set_xlabel("epoch")
    left.set_title("Training loss (solid: routed, dashed: not)", fontsize=10, loc="left")
    whole_ticks(left.xaxis)
    left.legend(fontsize=8, frameon=False)
    names = [f"{row['variant'].replace('_', ', ')}: {row['layer']}" for row in sparsity]
    bars = right.barh(
        names, [row["hoyer"] for row in sparsity], color=[SHADES[row["variant"]] for row in sparsity], height=0.65
    )
    right.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
    right.invert_yaxis()
    right.set_xlim(0, 1.08)
    right.set_title("Hoyer sparsity of the capsules' lengths", fontsize=10, loc="left")
    right.tick_params(axis="y", length=0, labelsize=8)
    for axes in (left, right):
        axes.grid(alpha=0.25, axis="both" if axes is left else "x")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)
