"""The toy model of appendix B: six descents, and their ends compared with the closed forms."""

from pathlib import Path
from typing import Any

from mereo.generative.toy import PENALTIES, ToyRouting, toy_routing
from mereo.pictures import new_figure, save_figure
from papers.common.settings import Settings

CLOSED_FORMS = {
    ("output only", "none"): ("-7/3, 11/3, 2/3", "0"),
    ("output only", "l1"): ("0, 3/2, 0", "7/4"),
    ("output only", "l2"): ("1/2, 1/2, 1/2", "1"),
    ("full", "none"): ("-2, 4, 1", "4"),
    ("full", "l1"): ("-3/4, 13/4, 1/4", "61/4"),
    ("full", "l2"): ("-1/3, 5/3, 2/3", "20"),
}
"""(energy, penalty) -> the equilibrium and its energy, from the conditions of a minimum."""
STEPS = 500
PICTURE = "toy_routing.png"
SHADES = ("#1971c2", "#e8590c", "#2b8a3e")


def run(settings: Settings) -> dict[str, Any]:
    """A table of equilibria and a picture of the descents."""
    rows, curves = [], {}
    for energy, penalty in CLOSED_FORMS:
        by_method = {m: toy_routing(penalty, energy == "output only", m, steps=STEPS) for m in ("sgd", "prox")}
        curves[energy, penalty] = by_method["sgd"]
        rows += [_row(energy, penalty, method, descent) for method, descent in by_method.items()]
    tied = toy_routing("l1", start=(1, 1, 1), steps=STEPS)
    _draw(curves, settings.folder / PICTURE)
    return {
        "tables": {f"Where {STEPS} steps end": rows},
        "notes": [
            "Only the energy of the output with an L1 penalty leaves one unit: the largest input wins.",
            f"It does not break a tie: from (1, 1, 1) all three units end at {tied.x[0].item():.4f}.",
        ],
        "pictures": [PICTURE],
        "end_from_a_tie": tied.x.tolist(),
    }


def _row(energy: str, penalty: str, method: str, descent: ToyRouting) -> dict[str, Any]:
    closed, least = CLOSED_FORMS[energy, penalty]
    units = {f"x{place}": value for place, value in enumerate(descent.x.tolist(), start=1)}
    end = {**units, "closed form": closed, "F": descent.energy[-1].item(), "closed F": least}
    return {"energy": energy, "penalty": penalty, "method": method, **end}


def _draw(curves: dict[tuple[str, str], ToyRouting], path: Path) -> None:
    figure = new_figure(9.5, 5.4)
    grid = figure.subplots(2, len(PENALTIES), sharex=True, sharey=True)
    figure.suptitle("Three units that are to sum to 2: their values over the steps of descent", fontsize=10)
    for axes, ((energy, penalty), descent) in zip(grid.flat, curves.items(), strict=True):
        for unit, shade in enumerate(SHADES):
            values = descent.trace[:, unit].tolist()
            axes.plot(values, color=shade, linewidth=1.8, label=f"unit of input {values[0]:g}")
        axes.axhline(0, color="#adb5bd", linewidth=0.8)
        ends = ", ".join(f"{end:z.2f}" for end in descent.x.tolist())
        axes.set_title(
            f"{energy}, {'no penalty' if penalty == 'none' else penalty.upper()}: {ends}", fontsize=9, loc="left"
        )
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in grid[-1]:
        axes.set_xlabel("step", fontsize=8)
    figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    save_figure(figure, path)
