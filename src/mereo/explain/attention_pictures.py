"""A picture of one image's attention: class token by head, rollout, one cell's couplings by layer, gates, filters."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from mereo.core import Coupling, Grid, Signal
from mereo.core.observe import observables
from mereo.explain.attention_layers import AttentionLayer, attention_layers, cells_of
from mereo.explain.captions import ROLLOUT
from mereo.explain.layout import caption_lines
from mereo.explain.observation import Observation, observe
from mereo.explain.panels import FAINT, INK, OTHER, PREDICTED, colour_scale, draw_image, draw_map, printable, short
from mereo.explain.places import spread
from mereo.explain.rollout import attention_rollout, class_attention
from mereo.explain.target import of_classes
from mereo.explain.uniform_test import uniform_test
from mereo.models import VisionModel
from mereo.pictures import new_figure, save_figure

MOST_HEADS, MOST_LAYERS, MOST_GATES, MOST_FILTERS = 8, 10, 24, 5
ACROSS, SIDE, HEAD = 5, 1.75, 0.42
UNPLACED = (
    "Nothing is drawn: the attention of this network is between places that are not known, as inside some windows."
)
MARK = "#1971c2"
"""The colour of the chosen cell and of the cells that it can attend to."""


@runtime_checkable
class HasSpectrum(Protocol):
    """A module that multiplies frequencies of a map by a learned filter."""

    def spectrum(self) -> Tensor:
        """Magnitudes of the filter, the frequency zero in the middle: (channels, rows, columns)."""
        ...


def why_no_attention(model: VisionModel) -> str | None:
    """Why there is no picture of attention; None if there may be one."""
    modules = [*model.modules(), *observables(model).values()]
    routed = {id(getattr(m, "coupling", None)) for m in modules if hasattr(m, "votes")}
    if any(isinstance(m, Coupling) and m.over == "senders" and id(m) not in routed for m in modules):
        return None
    if any((isinstance(m, Signal) and m.kind == "gates") or isinstance(m, HasSpectrum) for m in modules):
        return None
    return f"{type(model).__name__} has no attention between places, no gates and no filters of frequencies"


def chosen_layers(layers: Sequence[AttentionLayer], most: int = MOST_LAYERS) -> list[AttentionLayer]:
    """At most `most` layers whose receivers have places, evenly spaced within each kind.

    Layers are of one kind if their maps have the same size and their tiles the same form.
    """
    if most < 1:
        return []
    kinds: dict[Any, list[AttentionLayer]] = {}
    for layer in layers:
        if layer.receivers is None:
            continue
        tiles = layer.call.tiles
        form = None if tiles is None else (*tiles.senders.shape[-2:], tuple(tiles.receivers.flatten()[:2].tolist()))
        kinds.setdefault((layer.num_receivers, layer.num_senders, form), []).append(layer)
    each = max(1, most // max(len(kinds), 1))
    taken = []
    for group in list(kinds.values())[-most:]:
        count = min(each, len(group))
        taken += [group[-1 - (len(group) * n) // count] for n in range(count)]
    return sorted(taken, key=lambda layer: layer.call.number)


def cell_at(grid: Grid, row: float, column: float) -> tuple[int, int]:
    """The cell of a grid over a place of the image, in pixels."""
    down, across = ((place - grid.first) / grid.step + 0.5 for place in (row, column))
    return min(max(int(down), 0), grid.rows - 1), min(max(int(across), 0), grid.columns - 1)


def _outline(axes: Any, inside: Tensor, grid: Grid, colour: str, width: float) -> None:
    """Lines around the cells of a grid that are True: (rows, columns)."""
    edge = torch.nn.functional.pad(inside.int(), (1, 1, 1, 1)).cpu()
    left = grid.first - grid.step / 2 - 0.5
    for r, c in (edge[1:, 1:-1] != edge[:-1, 1:-1]).nonzero().tolist():
        y, x = left + r * grid.step, left + c * grid.step
        axes.plot([x, x + grid.step], [y, y], color=colour, linewidth=width, solid_capstyle="projecting", clip_on=False)
    for r, c in (edge[1:-1, 1:] != edge[1:-1, :-1]).nonzero().tolist():
        y, x = left + r * grid.step, left + c * grid.step
        axes.plot([x, x], [y, y + grid.step], color=colour, linewidth=width, solid_capstyle="projecting", clip_on=False)


def _head(axes: Any, title: str, note: str = "") -> None:
    axes.set_title(f"{printable(title)}\n{printable(note)}", fontsize=7.5, color=INK, pad=3, parse_math=False)


def _draw_shares(
    axes: Any, image: Tensor, cells: Tensor, grid: Grid, title: str, note: str, uniform: float = 0.0
) -> None:
    """Shares of the places (rows, columns) over an image; shares of at most `uniform` are white."""
    heat = spread(cells[None], grid, *image.shape[-2:])[0]
    low, high = float(cells.min()), float(cells.max())
    signed = low < -1e-6 * max(high, 1e-6)
    scale = colour_scale(cells, signed=signed, start=0.0 if signed else uniform)
    draw_map(axes, image, heat, cells, grid, scale, "+.2f" if signed else ".2f")
    above = f"{uniform:.2g} to " if 0 < uniform < high and not signed else "±" if signed else "≤ "
    _head(axes, title, f"{note}{above}{max(high, -low):.2g}")


def names_of(layers: Sequence[AttentionLayer]) -> dict[str, str]:
    """Short names of layers: without the parts at the end that are the same in all of them."""
    parts = {layer.name: layer.name.removesuffix(".coupling").split(".") for layer in layers}
    while (
        len(parts) > 1
        and len({names[-1] for names in parts.values()}) == 1
        and all(len(names) > 1 for names in parts.values())
    ):
        parts = {name: names[:-1] for name, names in parts.items()}
    return {name: ".".join(names) for name, names in parts.items()}


def _layer_panel(
    axes: Any, image: Tensor, layer: AttentionLayer, name: str, number: int, place: tuple[float, float]
) -> None:
    """The couplings of the cell over a place of the image, mean over heads, and the cells that it can attend to."""
    receivers, senders = layer.receivers, layer.senders
    assert receivers is not None
    row, column = cell_at(receivers, *place)
    index = receivers.prefix + row * receivers.columns + column
    couplings, reach = layer.rows(torch.full((layer.batch,), index))
    cells = couplings[number].mean(0)[senders.prefix :].view(senders.rows, senders.columns)
    near = reach[number, senders.prefix :].view(senders.rows, senders.columns)
    heads = couplings.shape[1]
    note = f"{senders.rows} x {senders.columns}, {heads} {'head' if heads == 1 else 'heads'}, "
    _draw_shares(axes, image, cells, senders, short(name, 28), note, 1 / max(int(near.sum()), 1))
    if not bool(near.all()):
        _outline(axes, near, senders, MARK, 0.9)
    own = torch.zeros(receivers.rows, receivers.columns, dtype=torch.bool)
    own[row, column] = True
    _outline(axes, own, receivers, INK, 1.6)


def _gates(observation: Observation, number: int) -> list[tuple[str, Tensor]]:
    """The gates of one image by module, a value for each channel or place; at most `MOST_GATES` modules."""
    names = [name for name, kind in observation.trace.kinds.items() if kind == "gates"]
    names = [names[len(names) * n // MOST_GATES] for n in range(MOST_GATES)] if len(names) > MOST_GATES else names
    batch = len(observation.scores)
    values = {name: observation.trace[name] for name in names}
    return [(name, value[number].float().flatten()) for name, value in values.items() if value.shape[0] == batch]


def _gate_maps(observation: Observation, number: int, most: int = MOST_FILTERS) -> list[tuple[str, Tensor, Grid]]:
    """The mean size of the gates at each place of one image, for modules with gates of places: (rows, columns)."""
    maps = []
    for name, kind in observation.trace.kinds.items():
        value = observation.trace[name] if kind == "gates" else None
        if value is None or value.dim() != 3 or len(value) != len(observation.scores):
            continue
        if (grid := cells_of(value.shape[1], *observation.image_shape[1:])) is not None:
            cells = value[number].float().abs().mean(1).view(grid.rows, grid.columns)
            maps.append((name.removesuffix(".gates"), cells, grid))
    step = max(1, len(maps) // max(most, 1))
    return maps[::step][:most]


def _draw_gates(axes: Any, gates: Sequence[tuple[str, Tensor]]) -> None:
    """Bars to the median gate of each module, and a line from the 10th to the 90th percentile."""
    marks = torch.tensor([0.1, 0.5, 0.9])
    rows = [value.cpu().quantile(marks).tolist() for _, value in gates]
    axes.barh(range(len(rows)), [middle for _, middle, _ in rows], color=OTHER, height=0.62)
    lows, highs = [low for low, _, _ in rows], [high for *_, high in rows]
    axes.hlines(range(len(rows)), lows, highs, color=PREDICTED, linewidth=1.6)
    names = [short(name.removesuffix(".gates"), 30) for name, _ in gates]
    axes.set_yticks(range(len(rows)), [printable(name) for name in names])
    if min(lows) >= 0 and max(highs) <= 1:
        axes.set_xlim(0, 1)
    axes.set_ylim(max(len(rows), 4) - 0.5, -0.5)
    axes.tick_params(length=0, labelsize=6.5, colors=FAINT)
    axes.grid(axis="x", color="#e9ecef", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)
    _head(axes, "gates of the channels", "median, and 10th to 90th percentile")


def _draw_spectrum(axes: Any, magnitudes: Tensor, name: str) -> None:
    """The mean magnitude over the channels at each frequency, zero in the middle, as a share of the largest."""
    mean = magnitudes.detach().float().mean(0).cpu()
    top = float(mean.max()) or 1.0
    rows, columns = mean.shape
    axes.imshow((mean / top).numpy(), cmap="magma", vmin=0, vmax=1, interpolation="nearest", aspect="auto")
    # Ticks at the frequency zero, on all sides so that they need no numbers.
    axes.set_xticks([columns // 2])
    axes.set_yticks([rows // 2])
    axes.tick_params(length=5, width=1.2, direction="in", color=INK, top=True, right=True)
    axes.tick_params(labelbottom=False, labelleft=False)
    for side in axes.spines.values():
        side.set_visible(False)
    _head(axes, short(name, 28), f"filter, {magnitudes.shape[0]} channels, ≤ {top:.2g}")


def _strongest(cells: Tensor, grid: Grid) -> tuple[float, float]:
    """The place of the largest share of (rows, columns), in pixels."""
    row, column = divmod(int(cells.argmax()), grid.columns)
    return grid.first + row * grid.step, grid.first + column * grid.step


Panel = Callable[[Any], None]


def draw_attention(
    model: VisionModel | Observation,
    images: Tensor,
    path: str | Path,
    *,
    number: int = 0,
    place: tuple[float, float] | None = None,
    layers: int = MOST_LAYERS,
    heads: int = MOST_HEADS,
    maps: int = MOST_FILTERS,
    title: str = "",
) -> Path:
    """Draw what was recorded of one image in a network with attention between places, gates or filters, as PNG.

    Panels: the image; what the class token takes in its last layer, by head; the rollout; the couplings of one cell in
    layers of every kind, with an outline around the cells that it can attend to (its window, group, block or regions);
    gates of places over the image; all gates as bars; the filters of spectral layers.

    Args:
        model: the network, or what `observe` returned for it and the same images.
        images: in [0, 1], not normalised.
        path: of the file.
        number: which of the images.
        place: (row, column) in pixels of the cell whose couplings are drawn; when None, the cell with the largest
            share of the rollout, or the middle of the image where the network has no rollout.
        layers: most layers for which the couplings of one cell are drawn.
        heads: most heads of the class token.
        maps: most layers with gates of places, and most layers with filters.
        title: a line above.

    Shapes: images (batch, channels, height, width).
    """
    observation = model if isinstance(model, Observation) else observe(model, images)
    image, attended, panels = images[number], attention_layers(observation), list[Panel]()
    names = names_of(attended)
    rollout, of_class = attention_rollout(observation), class_attention(observation)
    if place is None and rollout is not None:
        place = _strongest(rollout.cells[number], rollout.grid)
    elif place is None and attended:
        place = image.shape[-2] / 2, image.shape[-1] / 2

    def whole(axes: Any) -> None:
        draw_image(axes, image)
        _head(axes, title and short(title, 26))
        if place is not None:
            axes.plot(place[1] - 0.5, place[0] - 0.5, "o", markersize=5, color=MARK, markeredgecolor="white")

    def shares(cells: Tensor, grid: Grid, name: str, note: str, uniform: float = 0.0) -> Panel:
        return lambda axes: _draw_shares(axes, image, cells, grid, name, note, uniform)

    panels.append(whole)
    if rollout is not None:
        even = 1 / rollout.cells[number].numel()
        panels.append(shares(rollout.cells[number], rollout.grid, "rollout", f"{len(attended)} layers, ", even))
    if of_class:
        last, name = of_class[-1], "class attention"
        cells = last.cells[number]
        even = 1 / cells[0].numel()
        panels.append(shares(cells.mean(0), last.grid, name, f"{short(names[last.layers[0]], 18)}, ", even))
        for head in range(min(len(cells), heads) if len(cells) > 1 else 0):
            panels.append(shares(cells[head], last.grid, name, f"head {head}, ", even))
    for layer in (drawn := chosen_layers(attended, layers)):
        assert place is not None
        panels.append(
            partial(_layer_panel, image=image, layer=layer, name=names[layer.name], number=number, place=place)
        )
    for name, cells, grid in (on_places := _gate_maps(observation, number, maps)):
        note = f"gates, {grid.rows} x {grid.columns}, "
        panels.append(shares(cells, grid, name, note))
    filters = [(name, m) for name, m in observation.model.named_modules() if isinstance(m, HasSpectrum)]
    step = max(1, len(filters) // max(maps, 1))
    for name, module in filters[::step][:maps]:
        panels.append(partial(_draw_spectrum, magnitudes=module.spectrum(), name=name))
    caption, gates = _caption(rollout is not None, drawn, of_class, on_places, filters), _gates(observation, number)
    if len(panels) == 1 and not gates:
        caption = [UNPLACED]
    if attended and observation.model.output_kind == "scores" and of_classes(observation.model):
        caption += _effect(observation, images, number, [layer.name for layer in attended])
    return _sheet(panels, gates, image, Path(path), caption)


def _effect(observation: Observation, images: Tensor, number: int, names: Sequence[str]) -> list[str]:
    """Whether this attention matters for the answer, in a line."""
    scores = observation.scores[number : number + 1]
    if scores.dim() != 2:
        return []
    tested = uniform_test(observation.model, images[number : number + 1], scores, scores.argmax(1), names)
    does = "matters" if tested.matters else "does not matter"
    answer = "another" if bool(tested.answers.any()) else "the same"
    return [
        f"White: no more than uniform attention. It {does} for this answer: with uniform attention in all of these"
        f" layers the answer is {answer}, the bar of its class {float(tested.change):+.2f}."
    ]


def _caption(
    rollout: bool,
    layers: Sequence[object],
    of_class: Sequence[object],
    gates: Sequence[object],
    filters: Sequence[object],
) -> list[str]:
    lines = []
    if rollout:
        lines.append(ROLLOUT)
    if layers:
        lines.append(
            "Named layers: what the cell at the blue point (black frame) takes from each place, mean over heads (blue"
            " where negative); blue outline: the cells that it can attend to."
        )
    if of_class:
        lines.append("Class attention: what the class token takes from each place in its last layer, mean and by head.")
    if gates:
        lines.append("Gates over the image: the mean size of the factors of a place's channels.")
    if filters:
        lines.append(
            "Filters: how strongly each frequency of a map passes, mean over channels; the ticks mark frequency zero."
        )
    return lines


def _sheet(
    panels: Sequence[Panel], gates: Sequence[tuple[str, Tensor]], image: Tensor, path: Path, caption: list[str]
) -> Path:
    """Panels in rows of five, the gates below them, and the caption."""
    across = min(ACROSS, len(panels))
    high = SIDE * min(max(image.shape[-2] / image.shape[-1], 0.5), 2.0)
    rows, width = -(-len(panels) // across), across * (SIDE + 0.14) + 0.14
    below = 0.5 + 0.17 * max(len(gates), 4) if gates else 0.0
    width = max(width, 4.6)
    lines = caption_lines(caption, width)
    foot = 0.1 + 0.15 * len(lines)
    height = rows * (high + HEAD) + below + foot
    figure = new_figure(width, height, layout=None, dpi=160)

    def place(left: float, top: float, wide: float, tall: float) -> Any:
        return figure.add_axes((left / width, 1 - (top + tall) / height, wide / width, tall / height))

    for n, draw in enumerate(panels):
        row, column = divmod(n, across)
        draw(place(0.14 + column * (SIDE + 0.14), row * (high + HEAD) + HEAD - 0.04, SIDE, high))
    if gates:
        _draw_gates(place(1.9, rows * (high + HEAD) + 0.36, width - 2.1, below - 0.5), gates)
    for n, line in enumerate(reversed(lines)):
        figure.text(0.14 / width, (0.07 + 0.15 * n) / height, line, fontsize=6.5, color=FAINT, va="bottom")
    save_figure(figure, path)
    return path
