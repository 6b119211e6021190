"""The positions of the nodes of a parse tree, for the picture and the page."""

from typing import NamedTuple

from mereo.explain.trees.tree import ParseTree
from mereo.explain.trees.words import level_labels

APART = 0.35
"""Widths of a node between the families of neighbouring parents."""
WIDEST = 9.0
"""Widths of a node up to which the trees of the classes stand side by side; wider ones stand one above the other."""

MOST = 14.0
"""Widths of a node up to which a tree is drawn as a picture."""
CLASS = (0.72, 1.72)
"""Widths of a node that a class needs to the left and right of its middle: its box, and the line next to it."""


class Layout(NamedTuple):
    """Places of nodes, in rooms of one node.

    Attributes:
        across: the middle of each node from the left.
        rows: the row of each node from the top, the first 0.
        width: of all.
        labels: text of each row.
    """

    across: list[float]
    rows: list[int]
    width: float
    labels: list[str]


def arrange(tree: ParseTree) -> Layout:
    """Nodes without children side by side in the order of the tree, a parent over the middle of its children."""
    across, family = [0.0] * len(tree.nodes), [0] * len(tree.nodes)
    end = 0.0

    def settle(node: int, root: int) -> None:
        nonlocal end
        family[node] = root
        children = [edge.child for edge in tree.below(node)]
        for child in children:
            settle(child, root)
        if children:
            across[node] = (across[children[0]] + across[children[-1]]) / 2
            end += APART if len(children) > 1 else 0
        else:
            across[node] = end + 0.5
            end += 1

    starts, widths = [], []
    for place, root in enumerate(tree.roots):
        starts.append(end)
        settle(root, place)
        # A class over few votes is wider than they are.
        shift = max(0.0, CLASS[0] - (across[root] - starts[-1]))
        for node in range(root, [*tree.roots, len(across)][place + 1]):
            across[node] += shift
        end = max(end + shift, across[root] + CLASS[1]) + APART
        widths.append(end - starts[-1])
    labels, levels = level_labels(tree), [node.level for node in tree.nodes]
    if end <= WIDEST:
        return Layout(across, levels, end, labels)
    across = [x - starts[root] for x, root in zip(across, family, strict=True)]
    depths = [1 + max(level for level, one in zip(levels, family, strict=True) if one == n) for n in range(len(widths))]
    tops = [sum(depths[:n]) for n in range(len(depths))]
    rows = [level + tops[root] for level, root in zip(levels, family, strict=True)]
    return Layout(across, rows, max(widths), [label for depth in depths for label in labels[:depth]])


def fitting(tree: ParseTree) -> ParseTree:
    """The tree with the number of votes for each capsule that a picture has room for."""
    if arrange(tree).width <= MOST:
        return tree
    keep = 1
    while arrange(tree.with_votes(keep + 1)).width <= MOST:
        keep += 1
    return tree.with_votes(keep)


def thickness(tree: ParseTree) -> list[float]:
    """How thick each edge is drawn, in [0, 1]: its strength over the largest of its siblings; an agreement 0."""
    widths = []
    for edge in tree.edges:
        top = max(abs(other.strength) for other in tree.below(edge.parent))
        widths.append(0.0 if edge.kind == "agreement" or top == 0 else abs(edge.strength) / top)
    return widths
