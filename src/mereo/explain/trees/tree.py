"""Parse trees: which part voted for which whole, from a class down to the patches of the image.

A tree starts at a class capsule. Below a capsule are the senders of its routing with the strongest votes, by

    strength_s = c_s <vote_s, v> / |v|        coupling times vote, along the pose v of the capsule

In cross-agreement routing the coupling of a sender is set by another capsule, the fine one that agreed best with its
vote; this witness is placed below the sender. Capsules made by an earlier routing are expanded further. A sender of
two capsules appears below each of them.
"""

from dataclasses import dataclass, replace
from typing import Literal

from mereo.explain.places import Box


@dataclass(frozen=True)
class Node:
    """A capsule of a parse tree.

    Attributes:
        kind: "class", "capsule" (without a position on the image) or "patch" (with one).
        name: a description; rows and columns count from 0.
        number: of the class, of the capsule among those that its routing reads, or of the cell row by row.
        level: 0 for a class, and one more for each step away from it.
        box: its place on the image; None unless it is a patch.
        length: of the capsule, or of a class the score; None for a patch at which several types of capsules sit.
        senders: how many could vote for it; 0 where the tree ends.
        carried: the share of all their strengths, in absolute value, that the edges below it carry; 1 for nothing.
        effect: of a patch, how much the score of the class above it falls when the patch is hidden; None if that was
            not measured.
    """

    kind: Literal["class", "capsule", "patch"]
    name: str
    number: int
    level: int
    box: Box | None = None
    length: float | None = None
    senders: int = 0
    carried: float = 1.0
    effect: float | None = None


@dataclass(frozen=True)
class Edge:
    """The link of a sender to a receiver.

    Attributes:
        child, parent: places in `ParseTree.nodes`.
        kind: "vote" of a sender for a receiver; "agreement" of a witness with the vote of a sender; "coupling" for a
            routing whose votes are not known.
        coupling: the share c of the vote, or for an agreement of the vote that it supports; a mean over types that sit
            at one place.
        strength: of a vote, what it adds to the parent along its pose, before any squash, summed over types at one
            place; of an agreement its score; of a coupling the coupling.
    """

    child: int
    parent: int
    kind: Literal["vote", "agreement", "coupling"]
    coupling: float
    strength: float


@dataclass(frozen=True)
class ParseTree:
    """The explained class of an image and its rivals, each with the capsules that voted for it.

    Attributes:
        nodes: a parent before its children; the class explained is first.
        edges: one to every node that is no class, in the same order.
        keep: largest number of votes kept for a capsule.
        true: the true class of the image; None if it is not known.
        correlation: of the votes of all parts for the first class and the effects of hiding them, see
            `rank_correlation`; None if that was not measured.
        parts: how many these are.
        kind: of the scores, see `VisionModel.score_kind`; "outputs" if the task is not to choose a class.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    keep: int
    true: int | None = None
    correlation: float | None = None
    parts: int = 0
    kind: str = "lengths"

    @property
    def roots(self) -> list[int]:
        """The classes, the one explained first."""
        return [place for place, node in enumerate(self.nodes) if node.kind == "class"]

    def below(self, parent: int) -> list[Edge]:
        """The edges to the children of a node, the strongest first."""
        return [edge for edge in self.edges if edge.parent == parent]

    def with_votes(self, keep: int, *, rivals_deep: bool = True) -> "ParseTree":
        """The same tree with at most `keep` votes for each capsule, the strongest, and their branches.

        Args:
            rivals_deep: whether the votes for other classes than the first have branches too.
        """
        nodes, edges = list[Node](), list[Edge]()

        def grow(old: int, deep: bool = True) -> None:
            place, edges_below = len(nodes), self.below(old)
            nodes.append(self.nodes[old])
            if len(edges_below) > keep:
                sizes = [abs(edge.strength) for edge in edges_below]
                carried = self.nodes[old].carried * sum(sizes[:keep]) / sum(sizes)
                nodes[place] = replace(self.nodes[old], carried=carried)
            for edge in edges_below[:keep]:
                edges.append(replace(edge, child=len(nodes), parent=place))
                if deep:
                    grow(edge.child)
                else:
                    nodes.append(replace(self.nodes[edge.child], senders=0, carried=1.0))

        for number, root in enumerate(self.roots):
            grow(root, rivals_deep or number == 0)
        return replace(self, nodes=tuple(nodes), edges=tuple(edges), keep=keep)

    def above(self, child: int) -> Edge | None:
        """The edge to the parent of a node; None for a class."""
        return next((edge for edge in self.edges if edge.child == child), None)
