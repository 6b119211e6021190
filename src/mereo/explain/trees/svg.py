"""A parse tree as SVG for the page: nodes that can be pointed at, focused and followed, each with its numbers in words.

Node n of the tree with prefix p is `p-n<n>`, the edge above it `p-e<n>`, its patch on the image `p-b<n>`.
"""

from html import escape

from mereo.explain.panels import short
from mereo.explain.places import Box
from mereo.explain.trees.layout import arrange, thickness
from mereo.explain.trees.tree import Edge, Node, ParseTree
from mereo.explain.trees.words import carried, describe, edge_number, effect_number

WIDTH, HEIGHT, THUMB, BADGE, CIRCLE, LEFT = 96, 162, 86, 46, 18, 94
"""Pixels: the room of a node (width, height), its picture, the height of a class, the radius of a capsule's circle, and
the labels of the rows."""


def patch_boxes(tree: ParseTree, prefix: str) -> str:
    """The rectangles on the image of all patches of a tree, hidden until their node is pointed at."""
    return "".join(
        f'<rect id="{prefix}-b{n}" class="box" x="{node.box.left:g}" y="{node.box.top:g}"'
        f' width="{node.box.right - node.box.left:g}" height="{node.box.bottom - node.box.top:g}"/>'
        for n, node in enumerate(tree.nodes)
        if node.box is not None
    )


def tree_svg(tree: ParseTree, size: tuple[int, int], prefix: str) -> str:
    """The tree as an SVG element.

    Args:
        tree: of one image.
        size: (height, width) of the image, an element with the id `<prefix>-image`.
        prefix: of every id.
    """
    layout = arrange(tree)
    width, height = LEFT + layout.width * WIDTH + 8, len(layout.labels) * HEIGHT
    centres = [(LEFT + x * WIDTH, (row + 0.38) * HEIGHT) for x, row in zip(layout.across, layout.rows, strict=True)]
    levels = "".join(
        f'<text class="level" x="{LEFT - 12}" y="{(n + 0.38) * HEIGHT - 6 + 14 * line:g}">{escape(words)}</text>'
        for n, label in enumerate(layout.labels)
        for line, words in enumerate(label.split("\n"))
    )
    halves = [_half_height(node, size) for node in tree.nodes]
    edges = "".join(
        _edge(edge, weight, centres, halves, prefix) for edge, weight in zip(tree.edges, thickness(tree), strict=True)
    )
    nodes = "".join(_node(tree, n, centre, size, prefix) for n, centre in enumerate(centres))
    return (
        f'<svg class="tree" role="tree" aria-label="Parse tree" data-words="{prefix}-words" viewBox="0 0 {width:g}'
        f' {height:g}" width="{width:g}" height="{height:g}">{levels}{edges}{nodes}</svg>'
    )


def _edge(edge: Edge, weight: float, centres: list[tuple[float, float]], halves: list[float], prefix: str) -> str:
    (x, y), (above_x, above_y) = centres[edge.child], centres[edge.parent]
    start, end = above_y + halves[edge.parent], y - halves[edge.child]
    middle = (start + end) / 2
    kind = "agrees" if edge.kind == "agreement" else "for" if edge.strength > 0 else "against"
    return (
        f'<g id="{prefix}-e{edge.child}" class="edge {kind}"><path stroke-width="{1 + 4 * weight:.1f}"'
        f' d="M{above_x:.1f} {start:.1f}C{above_x:.1f} {middle:.1f} {x:.1f} {middle:.1f} {x:.1f} {end:.1f}"/>'
        f'<text x="{x:.1f}" y="{end - 5:.1f}">{edge_number(edge)}</text></g>'
    )


def _node(tree: ParseTree, place: int, centre: tuple[float, float], size: tuple[int, int], prefix: str) -> str:
    node, edge = tree.nodes[place], tree.above(place)
    links = f' data-parent="{prefix}-n{edge.parent}" data-edge="{prefix}-e{place}"' if edge is not None else ""
    links += f' data-box="{prefix}-b{place}"' if node.box is not None else ""
    share = carried(tree, place)
    true = " true" if node.kind == "class" and node.number == tree.true else ""
    hidden = effect_number(node)
    effect = f'<text class="effect" y="{_half_height(node, size) + 13:g}">{hidden}</text>' if hidden else ""
    label = f'<text class="share" x="{_half_width(node) + 6:g}" y="4">{share}</text>' if share else ""
    return (
        f'<g id="{prefix}-n{place}" class="node {node.kind}{true}" role="treeitem" tabindex="{-1 if place else 0}"'
        f' aria-level="{node.level + 1}" aria-label="{escape(describe(tree, place))}"{links}'
        f' transform="translate({centre[0]:.1f} {centre[1]:.1f})">{_shape(node, size, prefix)}{effect}{label}</g>'
    )


def _shape(node: Node, size: tuple[int, int], prefix: str) -> str:
    if node.box is not None:
        return _spotlight(node.box, size, prefix)
    if node.kind == "class":
        half = _half_width(node)
        return (
            f'<rect class="shape" x="{-half:g}" y="{-BADGE // 2}" width="{2 * half:g}" height="{BADGE}" rx="8"/>'
            f'<text y="-2">{escape(short(node.name))}</text><text y="16">{node.length:.2f}</text>'
        )
    return f'<circle class="shape" r="{CIRCLE}"/><text y="5">{node.number}</text>'


def _half_height(node: Node, size: tuple[int, int]) -> float:
    if node.box is not None:
        return THUMB / 2 * size[0] / max(size)
    return BADGE / 2 if node.kind == "class" else CIRCLE


def _half_width(node: Node) -> float:
    letters = len(short(node.name)) if node.kind == "class" else 0
    return max((BADGE if node.kind == "class" else THUMB) / 2, 4.5 * letters + 7)


def _spotlight(box: Box, size: tuple[int, int], prefix: str) -> str:
    """The whole image, faded around the box."""
    high, wide = size
    scale = THUMB / max(high, wide)
    corner = f"translate({-wide * scale / 2:.2f} {-high * scale / 2:.2f}) scale({scale:.4f})"
    left, top, right, bottom = (f"{side:g}" for side in box)
    hole = f"M{left} {top}V{bottom}H{right}V{top}Z"
    return (
        f'<g transform="{corner}"><use href="#{prefix}-image"/><path class="fade" d="M0 0H{wide}V{high}H0Z{hole}"/>'
        f'<path class="shape" d="{hole}"/></g>'
    )
