"""A parse tree as a picture: classes at the top, the parts that voted for them below, patches shown on the image."""

import warnings
from pathlib import Path
from typing import Any

from torch import Tensor

from mereo.explain.layout import DPI
from mereo.explain.panels import FAINT, INK, OTHER, PREDICTED, TRUE, printable, short
from mereo.explain.places import Box
from mereo.explain.trees.layout import arrange, fitting, thickness
from mereo.explain.trees.tree import Node, ParseTree
from mereo.explain.trees.words import caption, carried, edge_number, effect_number
from mereo.files import write_atomically
from mereo.pictures import fitted, new_canvas, paste, png_of

FOR, AGAINST = "#e03131", "#1971c2"
WIDTH, HEIGHT, THUMB, BADGE, CIRCLE = 1.14, 1.64, 1.02, 0.52, 0.19
"""Inches: the room of a node (width, height), its picture, the height of a class, the radius of a capsule's circle."""
LEFT, TOP, CAPTION_LINE, MARGIN = 3.1, 0.44, 0.2, 0.12
IMAGE = 1.8
UNCHANGED = 0.005
"""Fall of a score that is shown as 0.00 or 0.01, without colour."""
FADED = 0.72
"""How white the image becomes around a patch."""


def spotlight(image: Tensor, box: Box) -> Tensor:
    """The image faded to white everywhere but in a box.

    Shapes: (channels, height, width) in [0, 1] -> the same.
    """
    image = image.detach().float().cpu()
    faded = image * (1 - FADED) + FADED
    left, top, right, bottom = (round(side) for side in box)
    faded[:, top:bottom, left:right] = image[:, top:bottom, left:right]
    return faded


def draw_parse_tree(
    tree: ParseTree, image: Tensor, path: str | Path, *, title: str = "", shown: Tensor | None = None
) -> Path:
    """Draw the parse tree of one image as PNG.

    Red votes are for their parent, blue ones against it, and the number is what a vote adds to the parent's length
    before the squash; dashed lines lead to the witness that agreed best with a vote. For a tree too wide for a picture
    it draws fewer votes for each capsule, the strongest, with a warning; `write_page` lists them all.

    Args:
        tree: from `parse_trees`.
        image: in [0, 1], not normalised.
        path: of the file.
        title: above the image.
        shown: the image at a multiple of its size, to draw in its place.

    Shapes: image (channels, height, width), shown (channels, k height, k width).
    """
    write_atomically(Path(path), tree_picture(tree, image, title=title, shown=shown))
    return Path(path)


def tree_picture(tree: ParseTree, image: Tensor, *, title: str = "", shown: Tensor | None = None) -> bytes:
    """The picture of `draw_parse_tree` as PNG."""
    times = 1.0 if shown is None else shown.shape[-1] / image.shape[-1]
    image = image if shown is None else shown
    whole, tree = tree, fitting(tree.with_votes(tree.keep, rivals_deep=False))
    layout, lines = arrange(tree), caption(tree)
    if tree.keep < whole.keep:
        lines.append(f"The picture has no room for {whole.keep} votes for each capsule; the page lists them all.")
        warnings.warn(
            f"{whole.keep} votes for each capsule are too many for the picture of a tree, which draws fewer of them;"
            " the page lists them all",
            stacklevel=2,
        )
    width = max(LEFT + layout.width * WIDTH + MARGIN, 5.8)
    foot = MARGIN + CAPTION_LINE * len(lines)
    height = TOP + max(len(layout.labels) * HEIGHT, IMAGE + 0.2) + foot
    figure, canvas = new_canvas(width, height, DPI)
    rows = [height - TOP - (row + 0.36) * HEIGHT for row in range(len(layout.labels))]
    centres = [(LEFT + x * WIDTH, rows[row]) for x, row in zip(layout.across, layout.rows, strict=True)]
    _draw_edges(canvas, tree, centres, [_half_height(node, image) for node in tree.nodes])
    for place, (node, (x, y)) in enumerate(zip(tree.nodes, centres, strict=True)):
        _draw_node(canvas, node, image, x, y, times=times, true=node.kind == "class" and node.number == tree.true)
        if (share := carried(tree, place)) != "":
            half = _half_width(node, true=node.number == tree.true)
            canvas.text(x + half + 0.03, y, share, ha="left", va="center", fontsize=8.5, color=FAINT)
    for y, label in zip(rows, layout.labels, strict=True):
        canvas.text(LEFT - 0.08, y, label, ha="right", va="center", fontsize=9, color=FAINT)
    paste(canvas, image, MARGIN, height - TOP, *fitted(image, IMAGE))
    canvas.text(
        MARGIN, height - 0.1, printable(short(title, 60)), ha="left", va="top", fontsize=11, color=INK, weight="bold",
        parse_math=False,
    )  # fmt: skip
    for n, line in enumerate(reversed(lines)):
        canvas.text(MARGIN, 0.08 + n * CAPTION_LINE, line, ha="left", va="bottom", fontsize=9, color=FAINT)
    return png_of(figure)


def _half_height(node: Node, image: Tensor) -> float:
    if node.box is not None:
        return fitted(image, THUMB)[1] / 2
    return BADGE / 2 if node.kind == "class" else CIRCLE


def _half_width(node: Node, *, true: bool) -> float:
    if node.kind != "class":
        return THUMB / 2 if node.box is not None else CIRCLE
    number = 0.055 * (len(f"{node.length:.2f}") - 4)
    return max((0.7 if true else BADGE / 2) + number, 0.055 * len(short(node.name)) + 0.12)


def _draw_edges(canvas: Any, tree: ParseTree, centres: list[tuple[float, float]], halves: list[float]) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Curve

    for edge, weight in zip(tree.edges, thickness(tree), strict=True):
        (x, y), (above_x, above_y) = centres[edge.child], centres[edge.parent]
        start, end = above_y - halves[edge.parent], y + halves[edge.child]
        middle, agrees = (start + end) / 2, edge.kind == "agreement"
        points = [(above_x, start), (above_x, middle), (x, middle), (x, end)]
        shade = FAINT if agrees else FOR if edge.strength > 0 else AGAINST
        canvas.add_artist(
            PathPatch(
                Curve(points, [Curve.MOVETO, *[Curve.CURVE4] * 3]), facecolor="none", edgecolor=shade, alpha=0.75,
                linewidth=0.8 + 2.4 * weight, linestyle=(0, (2.5, 2)) if agrees else "solid",
            )
        )  # fmt: skip
        canvas.text(
            x, end + 0.03, edge_number(edge), ha="center", va="bottom", fontsize=8.5, color=shade,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85},
        )  # fmt: skip


def _draw_node(canvas: Any, node: Node, image: Tensor, x: float, y: float, *, times: float, true: bool) -> None:
    from matplotlib.patches import Circle, Rectangle

    if node.box is not None:
        wide, high = fitted(image, THUMB)
        left, top = x - wide / 2, y + high / 2
        box = Box(*(side * times for side in node.box))
        paste(canvas, spotlight(image, box), left, top, wide, high)
        canvas.add_artist(Rectangle((left, top - high), wide, high, facecolor="none", edgecolor=OTHER, linewidth=0.6))
        pixel = wide / image.shape[-1]
        canvas.add_artist(
            Rectangle(
                (left + box.left * pixel, top - box.bottom * pixel), (box.right - box.left) * pixel,
                (box.bottom - box.top) * pixel, facecolor="none", edgecolor=PREDICTED, linewidth=1,
            )
        )  # fmt: skip
        if node.effect is not None:
            colour = FAINT if abs(node.effect) < UNCHANGED else FOR if node.effect > 0 else AGAINST
            canvas.text(
                x, top - high - 0.03, effect_number(node), ha="center", va="top", fontsize=9, color=colour,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85},
            )  # fmt: skip
    elif node.kind == "class":
        name = printable(short(node.name))
        canvas.text(
            x, y, f"{name}\n{node.length:.2f}{'  true class' if true else ''}", ha="center", va="center", fontsize=11,
            color=TRUE if true else INK, weight="bold", parse_math=False,
            bbox={
                "boxstyle": "round,pad=0.35", "facecolor": "#ebfbee" if true else "#fff4e6",
                "edgecolor": TRUE if true else PREDICTED, "linewidth": 1,
            },
        )  # fmt: skip
    else:
        canvas.add_artist(Circle((x, y), CIRCLE, facecolor="#f1f3f5", edgecolor=FAINT, linewidth=0.8))
        canvas.text(x, y, str(node.number), ha="center", va="center_baseline", fontsize=9, color=INK)
