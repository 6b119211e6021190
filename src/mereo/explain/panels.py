"""The panels of an explanation: an image, bars of scores, and a map laid over an image."""

from collections.abc import Collection
from math import ceil
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.core import Grid
from mereo.pictures import displayable
from mereo.tasks.explained import Explained

INK, FAINT = "#24292f", "#6e7781"
PREDICTED, TRUE, OTHER = "#e8590c", "#2b8a3e", "#ced4da"
MARKED = "#37e05f"
"""Outlines of what is explained, on maps that are red, orange and blue."""
SHARES = ("#ffffff", "#ffe0b8", "#ffb65c", "#ff8a1f", "#f25c05")
VOTES = ("#1971c2", "#74b9f0", "#ffffff", "#ff9a8f", "#e03131")
MOST_BARS = 10
MOST_NUMBERED = 9
ROOM_FOR_NUMBER = 0.2
"""Least width of a cell that can hold a number, as a share of the image's width."""
LEAST_NUMBERED = 0.02
"""If a map's largest value is below this, two decimals do not tell its numbers apart."""
MOST_RULED = 32
"""Most cells along a side for which lines between cells are drawn; more lines would cover the picture."""
LONGEST_NAME = 12
LONGEST_TITLE = 22


def draw_image(axes: Any, image: Tensor) -> None:
    """An image (channels, height, width) in [0, 1], without axes."""
    axes.imshow(displayable(image), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_axis_off()


def short(name: str, longest: int = LONGEST_NAME) -> str:
    """A name shortened in the middle to fit, by default next to the bars: names often differ at their ends."""
    head = longest * 5 // 12
    return name if len(name) <= longest else f"{name[:head]}…{name[head - longest + 1 :]}"


def printable(text: str) -> str:
    """Text with a question mark for each character missing from the font: file names may contain any."""
    from matplotlib.font_manager import findfont, get_font

    font = get_font(findfont("DejaVu Sans"))
    return "".join(c if c.isprintable() and font.get_char_index(ord(c)) else "?" for c in text)


def draw_title(axes: Any, title: str) -> None:
    """A title above an image, shortened to fit."""
    axes.set_title(printable(short(title, LONGEST_TITLE)), fontsize=7.5, color=INK, pad=3, parse_math=False)


def outline(axes: Any, about: Explained | None, n: int) -> None:
    """The box or the area that is explained of image n, if there is one, on axes that show it at any size."""
    from matplotlib.patches import Rectangle

    height, width = axes.images[-1].get_array().shape[:2]
    if about is not None and about.boxes is not None:
        x0, y0, x1, y1 = (about.boxes[n].cpu() * torch.tensor((width, height, width, height))).tolist()
        corner = x0 - 0.5, y0 - 0.5
        axes.add_patch(Rectangle(corner, x1 - x0, y1 - y0, fill=False, lw=1.2, ec=MARKED, path_effects=_edge(3.0)))
    if about is not None and about.masks is not None and bool(about.masks[n].any()):
        padded = F.pad(about.masks[n].float().cpu(), (1, 1, 1, 1))
        down, across = (
            (torch.arange(count) - 0.5) * side / (count - 2) - 0.5
            for count, side in zip(padded.shape, (height, width), strict=True)
        )
        ends = axes.get_xlim(), axes.get_ylim()
        drawn = axes.contour(across, down, padded, levels=[0.5], colors=[MARKED], linewidths=1.2)
        drawn.set(path_effects=_edge(3.0))
        axes.set(xlim=ends[0], ylim=ends[1])


def shown_classes(scores: Tensor, wanted: set[int]) -> list[int]:
    """The classes to draw bars of: all in order, or the highest of many; `wanted` ones are always included."""
    if len(scores) <= MOST_BARS:
        return list(range(len(scores)))
    longest = [c for c in scores.argsort(descending=True).tolist() if c not in wanted]
    kept = [*wanted, *longest[: max(MOST_BARS - len(wanted), 0)]]
    return sorted(kept, key=lambda c: -float(scores[c]))


def draw_scores(
    axes: Any, scores: Tensor, explained: int, true: set[int], names: list[str], *, bounded: bool = True
) -> None:
    """Bars of scores (classes,), `bounded` by 0 and 1 or of any range.

    The explained class is orange, a true class has its name in green. The explained class and the highest of the others
    carry their numbers.
    """
    shown = shown_classes(scores, {explained, *true})
    values = [float(scores[c]) for c in shown]
    colours = [PREDICTED if c == explained else TRUE if c in true else OTHER for c in shown]
    axes.barh(range(len(shown)), values, color=colours, height=0.72)
    axes.set_yticks(range(len(shown)), [printable(short(names[c])) for c in shown])
    axes.set_ylim(max(len(shown), 4) - 0.5, -0.5)
    low, top = (0.0, 1.0) if bounded else (min(0.0, *values), max(0.0, *values))
    if bounded or low == top:
        axes.set_xlim(0, 1)
        axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    else:
        axes.set_xlim(low, top)
        axes.locator_params(axis="x", nbins=3)
    axes.grid(axis="x", color="#e9ecef", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=6.5, pad=2, colors=FAINT)
    for c, tick in zip(shown, axes.get_yticklabels(), strict=True):
        tick.set_parse_math(False)
        tick.set_color(TRUE if c in true else PREDICTED if c == explained else INK)
        tick.set_fontweight("bold" if c in true or c == explained else "normal")
    for side in axes.spines.values():
        side.set_visible(False)
    place = shown.index(explained)
    others = [other for other in range(len(shown)) if other != place]
    rival = max(others, key=lambda other: values[other], default=place)
    for numbered in {place, rival}:
        value, own = values[numbered], numbered == place
        span = (top - low) or 1.0
        inside = value > low + 0.7 * span
        axes.text(
            value + span * (-0.02 if inside else 0.02), numbered, f"{value:.2f}", va="center_baseline", fontsize=6.5,
            ha="right" if inside else "left", fontweight="bold" if own else "normal",
            color=INK if not own else "white" if inside else PREDICTED,
        )  # fmt: skip


def colour_scale(values: Tensor, *, signed: bool, start: float = 0.0) -> Any:
    """A ScalarMappable for a column of maps: from `start` to its largest value, or as far to both sides of 0.

    It reaches at least to twice the start: shares that are nearly uniform are nearly white.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    top = max(float(values.abs().max()), 2 * start, 1e-6)
    colours = LinearSegmentedColormap.from_list("explanation", VOTES if signed else SHARES)
    return ScalarMappable(Normalize(-top if signed else start, top), colours)


def draw_answer(
    axes: Any,
    image: Tensor,
    explained: Tensor | Explained,
    n: int,
    bars: Tensor,
    names: list[str],
    true: Collection[int] = (),
    *,
    bounded: bool,
    ticks: bool,
) -> None:
    """Beside image n: the scores of its classes, or the box, area or most similar image that is explained.

    Args:
        image: (channels, height, width) in [0, 1].
        explained: the class of each image, (batch,), or what its task explains.
        n: number of the image.
        bars: of the scores, (classes,).
        names: of the classes.
        true: numbers of the true classes.
        bounded: by 0 and 1.
        ticks: whether the scale of the scores is labelled.
    """
    if isinstance(explained, Tensor):
        draw_scores(axes, bars, int(explained[n]), {*true}, names, bounded=bounded)
        axes.tick_params(labelbottom=ticks)
        return
    axes.set_box_aspect(None)
    axes.set_adjustable("box")  # which a fixed shape had changed
    draw_image(axes, image if explained.beside is None else explained.beside[n])
    outline(axes, explained, n)
    draw_title(axes, explained.words[n])


def draw_map(axes: Any, image: Tensor, heat: Tensor, cells: Tensor, grid: Grid, scale: Any, numbers: str) -> None:
    """A map laid over the image: white leaves the image grey, colour tints it; few cells carry their numbers.

    Args:
        axes: where to draw.
        image: (channels, height, width) in [0, 1].
        heat: (height, width).
        cells: (rows, columns).
        grid: where the cells are.
        scale: from `colour_scale`.
        numbers: format of a cell's number.
    """
    grey = image.detach().float().clamp(0, 1).mean(0).cpu().unsqueeze(-1)
    values = heat.float().cpu()
    tint = torch.from_numpy(scale.to_rgba(values.numpy())[..., :3])
    # Dark pixels take the colour itself (a grey where it is white), light ones are drawn towards white.
    low, top = max(scale.norm.vmin, 0.0), scale.norm.vmax
    strength = ((values.abs() - low) / (top - low)).clamp(0, 1).unsqueeze(-1)
    film = tint * (0.62 + 0.38 * torch.maximum(strength, grey))
    axes.imshow((film + (1 - film) * 0.5 * grey).numpy(), interpolation="nearest")
    axes.set_axis_off()
    height, width = heat.shape
    downs, acrosses = (
        [ceil(grid.first + (n - 0.5) * grid.step - 0.5) - 0.5 for n in range(c + 1)] for c in cells.shape
    )
    if max(cells.shape) > MOST_RULED:
        return
    rules = {"colors": "white", "linewidth": 0.5, "alpha": 0.5}
    axes.hlines(
        [y for y in downs if 0 < y < height - 1], max(acrosses[0], -0.5), min(acrosses[-1], width - 0.5), **rules
    )
    axes.vlines([x for x in acrosses if 0 < x < width - 1], max(downs[0], -0.5), min(downs[-1], height - 0.5), **rules)
    room = ROOM_FOR_NUMBER * (1.4 if numbers.startswith("+") else 1)
    if grid.rows * grid.columns > MOST_NUMBERED or grid.step < room * width or top < LEAST_NUMBERED:
        return
    for r in range(grid.rows):
        for c in range(grid.columns):
            sides = ((acrosses, c, width), (downs, r, height))
            x, y = ((max(edges[n], -0.5) + min(edges[n + 1], s - 0.5)) / 2 for edges, n, s in sides)
            axes.text(
                x, y, format(float(cells[r, c]), numbers), ha="center", va="center", fontsize=7, color="white",
                fontweight="bold", path_effects=_edge(),
            )  # fmt: skip


def _edge(width: float = 1.8) -> list[Any]:
    """A dark outline that keeps white letters and bright lines visible on any colour."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=width, foreground="#00000099")]
