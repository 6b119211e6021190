"""A parse tree in words, for the pictures and the page."""

from mereo.explain.trees.tree import Edge, Node, ParseTree

ROWS = {
    ("vote", "patch"): "patches\nthat vote",
    ("vote", "capsule"): "capsules\nthat vote",
    ("coupling", "patch"): "patches\nlistened to",
    ("coupling", "capsule"): "capsules\nlistened to",
    ("agreement", "patch"): "patches that\nagree best",
    ("agreement", "capsule"): "capsules that\nagree best",
}
"""What stands on a level, by the edge above it and the kind of its nodes."""


def level_labels(tree: ParseTree) -> list[str]:
    """What stands on each level of a tree, the classes first."""
    found = {0: "class"}
    for edge in tree.edges:
        node = tree.nodes[edge.child]
        found.setdefault(node.level, ROWS[edge.kind, node.kind])
    return [found[level] for level in sorted(found)]


def edge_number(edge: Edge) -> str:
    """The number that stands on an edge, signed for a vote: short, and never 0 for what is not."""
    size = abs(edge.strength)
    digits = ".2f" if size >= 0.1 or size == 0 else ".3f" if size >= 0.001 else ".0e"
    return format(edge.strength, f"+{digits}" if edge.kind == "vote" else digits)


def carried(node: Node, kept: int, *, whole: bool) -> str:
    """How much of the votes for a node the drawn ones carry; empty where nobody votes for it."""
    if not node.senders:
        return ""
    return f"{kept} of {node.senders} votes, {node.carried:.0%}" if whole else f"{node.carried:.0%}"


def caption(tree: ParseTree) -> list[str]:
    """How to read a tree, line by line."""
    lines = [
        f"The strongest votes for each capsule, at most {tree.keep}; beside it, how much of all its votes they carry.",
        "A number is what a vote adds to the length of the capsule above (red) or takes from it (blue).",
    ]
    if any(edge.kind == "agreement" for edge in tree.edges):
        lines.append("Dashed: the finer capsule that agreed best with that vote, and how well; it sets the coupling.")
    if any(edge.kind == "coupling" for edge in tree.edges):
        lines.append("Where votes are not known, numbers are couplings.")
    return lines


def _spoken(node: Node) -> str:
    return f"class {node.name}" if node.kind == "class" else f"the {node.name}"


def describe(tree: ParseTree, place: int) -> str:
    """All that is known of a node, in sentences."""
    node, edge = tree.nodes[place], tree.above(place)
    told = f"Class {node.name}" if node.kind == "class" else node.name.capitalize()
    if node.box is not None:
        told += f", {node.box.right - node.box.left:g} x {node.box.bottom - node.box.top:g} pixels"
    if node.kind == "capsule":
        told += ", without a place on the image"
    if node.length is not None:
        told += f", length {node.length:.2f}"
    sentences = [told]
    if edge is not None:
        parent = _spoken(tree.nodes[edge.parent])
        if edge.kind == "vote":
            verb = "adds" if edge.strength > 0 else "takes"
            sentences.append(
                f"{verb.capitalize()} {abs(edge.strength):.3f} {'to' if edge.strength > 0 else 'from'} the length of"
                f" {parent} before the squash; coupling {edge.coupling:.3f}"
            )
        elif edge.kind == "agreement":
            sentences.append(
                f"Agrees best with the vote of {parent}, score {edge.strength:.3f}; the coupling that this gives is"
                f" {edge.coupling:.3f}"
            )
        else:
            sentences.append(f"Coupled to {parent} with {edge.coupling:.3f}")
    if node.senders:
        sentences.append(
            f"{len(tree.below(place))} of its {node.senders} votes are drawn and carry {node.carried:.0%} of the whole"
        )
    return ". ".join(sentences) + "."
