"""The maps of an explanation, as columns of its picture."""

from dataclasses import dataclass

from torch import Tensor

from mereo.core import Grid
from mereo.explain.explanation import Explanation
from mereo.explain.places import spread
from mereo.explain.wording import WORDINGS

FIRST, LAST, VOTES, HIDDEN = "first routing", "last routing", "votes", "part hidden"
SHARE, MESSAGES, FACTOR = "share of a part's vote", "share of all messages", "factor of a part"
FALL = "fall of the score"
LABELS = {"receivers": SHARE, "senders": MESSAGES, "both": MESSAGES, "none": FACTOR}
"""Words for a coupling, by the axis over which couplings sum to one."""


@dataclass(frozen=True)
class MapColumn:
    """One column of maps.

    Attributes:
        title, note: what is above it.
        label: meaning of the colours.
        heat, cells, grid: the maps of all rows.
        signed: whether values may be above and below 0.
        start: the value that is white.
    """

    title: str
    note: str
    label: str
    heat: Tensor
    cells: Tensor
    grid: Grid
    signed: bool = False
    start: float = 0.0


def routing_titles(explanation: Explanation) -> dict[str, str]:
    """The name in the picture of the routing of each coupling map."""
    maps = explanation.maps
    earlier = sum(m.grid.feeds is not None for m in maps.values())
    titles = {}
    for place, (name, each) in enumerate(maps.items(), start=1):
        last_title, earlier_title = LAST if earlier else "routing", FIRST if earlier == 1 else f"routing {place}"
        titles[name] = last_title if each.grid.feeds is None else earlier_title
    return titles


def matters(explanation: Explanation, name: str) -> bool:
    """Whether the couplings behind a map change the answer, so that it is drawn."""
    return name not in explanation.uniform or explanation.uniform[name].matters


def map_columns(explanation: Explanation) -> list[MapColumn]:
    """The columns: effects of hiding a part, votes, and couplings of routings and attention that change the answer."""
    hidden = explanation.occlusion_map
    note = f"{hidden.grid.rows} x {hidden.grid.columns} squares"
    columns = [MapColumn(HIDDEN, note, FALL, hidden.heat, hidden.cells, hidden.grid, signed=True)]
    for votes in explanation.contribution_maps:
        note, label = "for (red), against (blue)", f"added to the {WORDINGS[explanation.kind].votes.target}"
        if len(explanation.contribution_maps) > 1:
            note = f"of {votes.grid.rows} x {votes.grid.columns} x {votes.grid.types} parts"
        columns.append(MapColumn(VOTES, note, label, votes.heat, votes.cells, votes.grid, signed=True))
    for name, title in routing_titles(explanation).items():
        coupling_map = explanation.maps[name]
        if not matters(explanation, name):
            continue
        grid = coupling_map.grid
        kinds = "" if grid.types == 1 else f" x {grid.types}"
        receivers = f"{coupling_map.num_receivers} {'classes' if grid.feeds is None else 'capsules'}"
        note = f"{grid.rows} x {grid.columns}{kinds} parts → {receivers}"
        label, cells = LABELS[coupling_map.over], coupling_map.cells
        signed, start = coupling_map.over == "none" and bool(cells.min() < 0), coupling_map.uniform
        columns.append(MapColumn(title, note, label, coupling_map.heat, cells, grid, signed=signed, start=start))
    for title, shares in explanation.attention.items():
        if matters(explanation, title):
            grid, heat = shares.grid, spread(shares.cells, shares.grid, *explanation.sides)
            note, start = f"{grid.rows} x {grid.columns} places", 1 / (grid.rows * grid.columns)
            columns.append(MapColumn(title, note, "share of all places", heat, shares.cells, grid, start=start))
    return columns
