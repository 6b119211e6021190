"""A parse tree in words, for the pictures and the page."""

from mereo.explain.trees.tree import Edge, Node, ParseTree
from mereo.explain.wording import WORDINGS

ROWS = {
    ("vote", "patch"): "patches\nthat vote",
    ("vote", "capsule"): "capsules\nthat vote",
    ("coupling", "patch"): "patches\ncoupled",
    ("coupling", "capsule"): "capsules\ncoupled",
    ("agreement", "patch"): "patches that\nagree best",
    ("agreement", "capsule"): "capsules that\nagree best",
}
"""The label of a level, by the edge above it and the kind of its nodes."""


def level_labels(tree: ParseTree) -> list[str]:
    """The label of each level of a tree, the classes first."""
    labels = {0: "class"}
    for edge in tree.edges:
        node = tree.nodes[edge.child]
        labels.setdefault(node.level, ROWS[edge.kind, node.kind])
    return [labels[level] for level in sorted(labels)]


def edge_number(edge: Edge) -> str:
    """The number at an edge, signed for a vote: short, and 0 only where it is 0."""
    size = abs(edge.strength)
    digits = ".2f" if size >= 0.1 or size == 0 else ".3f" if size >= 0.001 else ".4f" if size >= 1e-4 else ".0e"
    return format(edge.strength, f"+{digits}" if edge.kind == "vote" else digits)


def carried(tree: ParseTree, place: int) -> str:
    """The share of the drawn votes in all votes for a node, or of couplings; empty if it has none."""
    node, below = tree.nodes[place], tree.below(place)
    if not node.senders:
        return ""
    if node.kind != "class":
        return f"{node.carried:.0%}"
    return f"{len(below)} of {node.senders} {_plural(tree, place)}, {node.carried:.0%}"


def _plural(tree: ParseTree, place: int) -> str:
    """The noun for the edges below a node."""
    below = tree.below(place)
    return "couplings" if below and all(edge.kind == "coupling" for edge in below) else "votes"


def agreement(tree: ParseTree) -> str:
    """How far votes and the effects of hiding parts agree, in a sentence; empty if that was not measured."""
    if tree.correlation is None:
        return ""
    return (
        f"Rank correlation of votes and what hiding really does, over the {tree.parts} parts below the class:"
        f" {tree.correlation:+.2f} (1: same order, 0: none)."
    )


def effect_number(node: Node) -> str:
    """The effect of hiding a patch, short; empty if that was not measured."""
    return "" if node.effect is None else f"hidden {-node.effect:+.2f}"


def caption(tree: ParseTree) -> list[str]:
    """How to read a tree, line by line."""
    kinds, lines = {edge.kind for edge in tree.edges}, list[str]()
    if "vote" in kinds or not kinds:
        lines.append(
            f"The strongest votes for each capsule, at most {tree.keep}; next to it, their share of all its votes."
        )
        lines.append(WORDINGS[tree.kind].votes.edges)
        if "coupling" in kinds:
            lines.append("Where votes are not known, numbers are couplings.")
    else:
        lines.append(f"The strongest couplings of each capsule, at most {tree.keep}; next to it, their share of all.")
        lines.append("The votes of this routing are not known, so the numbers are couplings.")
    if any(node.effect is not None for node in tree.nodes):
        lines.append('"hidden": how the score of the class at the top changes when the patch takes the mean colour.')
    if tree.correlation is not None:
        lines.append(agreement(tree))
    if "agreement" in kinds:
        lines.append("Dashed: the finer capsule that agreed best with that vote, and how well; it sets the coupling.")
    return lines


def _name(node: Node) -> str:
    return f"class {node.name}" if node.kind == "class" else f"the {node.name}"


def describe(tree: ParseTree, place: int) -> str:
    """The facts of a node, from its kind to its voters."""
    node, edge = tree.nodes[place], tree.above(place)
    facts = [f"class {node.name}" if node.kind == "class" else node.name]
    if node.box is not None:
        facts.append(f"{node.box.right - node.box.left:g} x {node.box.bottom - node.box.top:g} pixels")
    if node.length is not None:
        facts.append(f"{WORDINGS[tree.kind].one if node.kind == 'class' else 'length'} {node.length:.2f}")
    if edge is not None:
        parent = _name(tree.nodes[edge.parent])
        kinds = {
            "vote": f"vote {edge.strength:+.3f} to {WORDINGS[tree.kind].votes.capsule.format(parent)}",
            "agreement": f"agrees best with the vote of {parent}, score {edge.strength:.3f}",
            "coupling": f"coupled to {parent}",
        }
        facts += [kinds[edge.kind], f"coupling {edge.coupling:.3f}"]
    if node.effect is not None:
        facts.append(f"hidden, the score of the class changes by {-node.effect:+.3f}")
    if edge is None and node.number == tree.true:
        facts.append("the true class")
    if node.senders:
        share = f"{len(tree.below(place))} of its {node.senders} {_plural(tree, place)} drawn"
        facts.append(f"{share}, {node.carried:.0%} of the total")
    return "; ".join(facts)
