"""The table: trains what is missing, measures it, compares it, and draws it.

Trainings and measurements are kept beside the run folders and, in a clone, in `papers/capsule_table/results`, so that
known results are not computed again.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mereo.pictures import new_figure, save_figure
from papers.capsule_table.controls import register_controls
from papers.capsule_table.differences import Difference, paired_difference
from papers.capsule_table.measured import Measured
from papers.capsule_table.protocol import EPOCHS, FAMILIES, KINDS, LIMIT, LINEAR, OWN, PLAIN, SEEDS, UNIFORM
from papers.capsule_table.trainings import Results, Table
from papers.common.settings import Settings

RESULTS = Path(__file__).parent / "results"
SHARES = ("accuracy", "familiar", "rotation", "translation", "scale", "occlusion", "noise", "apgd")
FOREST, REACHES = "forest.png", (10.0, 25.0, 50.0)
"""The picture, and the largest differences in points that it may show."""
Forms = Mapping[tuple[str, str], Sequence[Measured]]
"""The measurements of all seeds, by kind and control."""


class Compared(NamedTuple):
    """A network compared with another form of it or another network: the difference, and the epochs of both."""

    difference: Difference
    epochs: tuple[int, int]

    @classmethod
    def of(cls, runs: Sequence[Measured], others: Sequence[Measured], comparisons: int) -> "Compared":
        """The comparison of all seeds of two networks, of so many whose intervals hold together."""
        apart = paired_difference(_bits(runs), _bits(others), comparisons)
        return cls(apart, (runs[0].epochs, others[0].epochs))

    @property
    def verdict(self) -> str:
        """Whether the network is clearly "better" or "worse", or "no"."""
        better = "better" if self.difference.mean > 0 else "worse"
        return better if self.difference.is_clear else "no"


def run(settings: Settings) -> dict[str, Any]:
    """Complete the table of one data set for the networks that `variants` names, or all."""
    register_controls()
    kinds = settings.chosen(KINDS)
    data = str(settings.data)
    small = settings.epochs is not None or settings.limit is not None or settings.images is not None
    folder = settings.folder if small else RESULTS
    results = Results(folder / f"{data.replace(':', '_').replace('=', '_')}.csv")
    chosen = {"data_root": settings.data_root, "limit": settings.limit, "device": settings.device}
    given = {name: value for name, value in chosen.items() if value is not None}
    table = Table(
        data, results, {**given, "output": str(settings.folder / "runs")}, settings.say, epochs=settings.epochs,
        seeds=settings.seeds if small else SEEDS, images=settings.images,
    )  # fmt: skip
    for kind in kinds:
        table.complete(kind)
    return summarise(results, data, settings.folder / FOREST)


def forms_of(results: Results) -> Forms:
    """The measurements of each network, the seeds in order."""
    forms: dict[tuple[str, str], list[Measured]] = {}
    for each in sorted(results.measured.values(), key=lambda each: each.seed):
        forms.setdefault((each.kind, each.control), []).append(each)
    return forms


def summarise(results: Results, data: str, picture: Path) -> dict[str, Any]:
    """Tables, sentences and the picture of the results so far."""
    forms = forms_of(results)
    long = {key[:2] for key, each in results.trainings.items() if each.epochs == 2 * EPOCHS}
    rows = [_row(kind, runs, (kind, OWN) in long) for (kind, control), runs in forms.items() if control == OWN]
    rows.sort(key=lambda row: -row["accuracy %"])
    questions = {
        "does routing help": ("own couplings less uniform ones, both trained", _beside_control(forms, UNIFORM)),
        "do capsules help": ("the network less its encoder with a linear head", _beside_control(forms, LINEAR)),
        "beside plain networks": ("the network less the better residual network", _beside_plain(forms)),
    }
    tables: dict[str, Any] = {f"Networks on {data}, means of the seeds": rows}
    notes = [
        f"At most {LIMIT:,} images to train on; rotation to noise: means over severities. * trained for twice as many"
        " epochs.",
        "Intervals over images and seeds hold together for all networks of a table (95 %).",
        f"{len(results.trainings)} trainings stand, and {len(results.measured)} trained networks are measured.",
    ]
    for title, (words, apart) in questions.items():
        if apart:
            named = f"{title[0].upper()}{title[1:]}? {words}, points"
            tables[named] = [_points(kind, d) for kind, d in apart.items()]
            notes.append(_sentence(title, apart))
    _draw({title: apart for title, (_, apart) in questions.items() if apart}, data, picture)
    return {"tables": tables, "notes": notes, "pictures": [picture.name] if picture.exists() else [], "data": data}


def _row(kind: str, runs: Sequence[Measured], long: bool) -> dict[str, Any]:
    def mean(name: str) -> float | None:
        value = statistics.mean(getattr(each, name) for each in runs)
        return None if np.isnan(value) else 100 * value

    first = runs[0]
    row: dict[str, Any] = {"network": kind + "*" * long, "seeds": len(runs)}
    row |= {f"{name} %": mean(name) for name in SHARES}
    row |= {"calibration error %": mean("calibration_error")}
    row |= {f"{name} couplings %": mean(name) for name in ("uniform", "shuffled")}
    return row | {"parameters": first.parameters, "MACs": first.macs}


def _bits(runs: Sequence[Measured]) -> Any:
    return np.stack([each.bits for each in runs])


def _beside_control(forms: Forms, control: str) -> dict[str, Compared]:
    pairs = {
        kind: (runs, forms[kind, control])
        for (kind, own), runs in forms.items()
        if own == OWN and len(forms.get((kind, control), ())) == len(runs)
    }
    return {kind: Compared.of(*pair, len(pairs)) for kind, pair in pairs.items()}


def _beside_plain(forms: Forms) -> dict[str, Compared]:
    plain = [runs for (kind, _), runs in forms.items() if kind in PLAIN]
    if not plain:
        return {}
    best = max(plain, key=lambda runs: statistics.mean(each.accuracy for each in runs))
    others = {
        kind: runs
        for (kind, control), runs in forms.items()
        if control == OWN and kind not in PLAIN and len(runs) == len(best)
    }
    return {kind: Compared.of(runs, best, len(others)) for kind, runs in others.items()}


def _points(kind: str, compared: Compared) -> dict[str, Any]:
    apart, (own, other) = compared
    numbers = {"difference": apart.mean, "low": apart.low, "high": apart.high}
    row = {"network": kind, **{name: 100 * number for name, number in numbers.items()}, "clear": compared.verdict}
    return row | {"epochs": f"{own}" if own == other else f"{own} against {other}"}


def _sentence(title: str, apart: Mapping[str, Compared]) -> str:
    named: dict[str, list[str]] = {"better": [], "worse": []}
    for kind, each in apart.items():
        own, other = each.epochs
        name = kind if own == other else f"{kind} ({own} epochs against {other})"
        named.get(each.verdict, []).append(name)
    parts = [f"{word} for {', '.join(kinds)}" for word, kinds in named.items() if kinds]
    found = " and ".join(parts) or "different for none"
    return f"{title[0].upper()}{title[1:]}: clearly {found} of {len(apart)}."


def largest_shown(differences: Sequence[Difference]) -> float:
    """The first of `REACHES` that holds at least half of the intervals, or the last."""
    widest = [100 * max(abs(d.low), abs(d.high)) for d in differences]
    return next((reach for reach in REACHES if 2 * sum(w <= reach for w in widest) >= len(widest)), REACHES[-1])


def _draw(panels: Mapping[str, Mapping[str, Compared]], data: str, path: Path) -> None:
    """A forest plot of each question: a dot and its interval for each network, in the colour of its family.

    Dots are filled where the interval excludes zero, and arrows point to those outside of the panel.
    """
    from matplotlib.lines import Line2D

    if not panels:
        return
    shown = {kind for apart in panels.values() for kind in apart}
    families = {family: [kind for kind in named if kind in shown] for family, named in FAMILIES.items()}
    families["others"] = sorted(shown - {kind for named in families.values() for kind in named})
    colours = {kind: f"C{number}" for number, named in enumerate(families.values()) for kind in named}
    kinds = [*colours][::-1]
    reach = largest_shown([each.difference for apart in panels.values() for each in apart.values()])
    figure = new_figure(3.2 * len(panels), 1.5 + 0.24 * len(kinds))
    figure.suptitle(f"Accuracy on {data}: differences in points, 95 % intervals, cut at {reach:g}", fontsize=10)
    for place, (axes, (title, apart)) in enumerate(
        zip(np.atleast_1d(figure.subplots(1, len(panels), sharey=True)), panels.items(), strict=True)
    ):
        axes.axvline(0, color="0.5", linewidth=0.8)
        for kind, (d, _) in apart.items():
            middle, low, high = (float(np.clip(100 * value, -reach, reach)) for value in (d.mean, d.low, d.high))
            axes.errorbar(
                middle, kinds.index(kind), xerr=[[middle - low], [high - middle]], color=colours[kind], markersize=5,
                fmt="o" if abs(middle) < reach else ("<" if middle < 0 else ">"), capsize=2, clip_on=False,
                markerfacecolor=colours[kind] if d.is_clear else "white",
            )  # fmt: skip
        axes.set_title(title, fontsize=9)
        axes.set_xlim(-reach, reach)
        axes.tick_params(labelsize=8)
        axes.grid(axis="x", alpha=0.3)
        if place == 0:
            axes.set_yticks(range(len(kinds)), kinds)
            for label, kind in zip(axes.get_yticklabels(), kinds, strict=True):
                label.set_color(colours[kind])
    legend = {family: colours[named[0]] for family, named in families.items() if named}
    handles = [Line2D([], [], marker="o", linestyle="", color=colour) for colour in legend.values()]
    clear = Line2D([], [], marker="o", linestyle="", color="0.5", markerfacecolor="white")
    figure.legend(
        [*handles, clear], [*legend, "interval holds zero"], loc="outside lower center", ncols=len(legend) + 1,
        fontsize=8, frameon=False,
    )  # fmt: skip
    save_figure(figure, path)
