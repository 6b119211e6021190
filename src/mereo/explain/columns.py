"""The maps of an explanation, as columns of its picture."""

from dataclasses import dataclass

from torch import Tensor

from mereo.core import Grid
from mereo.explain.explanation import Explanation
from mereo.explain.places import spread
from mereo.explain.wording import WORDINGS

FIRST, LAST, VOTES, HIDDEN, TESTED = "first routing", "last routing", "votes", "occlusion", "part hidden"
SHARE, MESSAGES, FACTOR = "share of a part's vote", "share of all messages", "factor of a part"
FALL = "fall of the score"
LABELS = {"receivers": SHARE, "senders": MESSAGES, "both": MESSAGES, "none": FACTOR}
"""Words for a coupling, by the axis over which couplings sum to one."""


@dataclass(frozen=True)
class MapColumn:
    """One column of maps: its title, the line below, what the colours mean, and the maps of all rows."""

    title: str
    note: str
    label: str
    heat: Tensor
    cells: Tensor
    grid: Grid
    signed: bool = False


def map_columns(explanation: Explanation) -> list[MapColumn]:
    """Couplings of routings, votes, attention, and the tests that hide parts, in this order."""
    columns, maps = [], list(explanation.maps.values())
    earlier = sum(m.grid.feeds is not None for m in maps)
    for place, coupling_map in enumerate(maps, start=1):
        grid, last = coupling_map.grid, coupling_map.grid.feeds is None
        earlier_title = FIRST if earlier == 1 else f"routing {place}"
        last_title = LAST if earlier else "routing"
        title = last_title if last else earlier_title
        kinds = "" if grid.types == 1 else f" x {grid.types}"
        receivers = f"{coupling_map.num_receivers} {'classes' if last else 'capsules'}"
        note = f"{grid.rows} x {grid.columns}{kinds} parts → {receivers}"
        label, cells = LABELS[coupling_map.over], coupling_map.cells
        signed = coupling_map.over == "none" and bool(cells.min() < 0)
        columns.append(MapColumn(title, note, label, coupling_map.heat, cells, grid, signed=signed))
    for votes in explanation.contribution_maps:
        note, label = "for (red), against (blue)", f"added to the {WORDINGS[explanation.kind].votes.target}"
        if len(explanation.contribution_maps) > 1:
            note = f"of {votes.grid.rows} x {votes.grid.columns} x {votes.grid.types} parts"
        columns.append(MapColumn(VOTES, note, label, votes.heat, votes.cells, votes.grid, signed=True))
    for title, shares in explanation.attention.items():
        grid, sides = shares.grid, explanation.sides
        note, label = f"{grid.rows} x {grid.columns} places", "share of all places"
        columns.append(MapColumn(title, note, label, spread(shares.cells, grid, *sides), shares.cells, grid))
    if explanation.deletion is not None:
        tested, note = explanation.deletion, "fall of the score without it"
        columns.append(MapColumn(TESTED, note, FALL, tested.heat, tested.falls, tested.grid, signed=True))
    if explanation.occlusion_map is not None:
        hidden = explanation.occlusion_map
        note = f"{hidden.grid.rows} x {hidden.grid.columns} squares hidden"
        columns.append(MapColumn(HIDDEN, note, FALL, hidden.heat, hidden.cells, hidden.grid, signed=True))
    return columns
