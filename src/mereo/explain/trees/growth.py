"""Builds parse trees from the classes down, from one recorded pass of a model."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from mereo.core import Coupling, Grid, lengths
from mereo.core.observe import observables
from mereo.errors import UsageError
from mereo.explain.contributions import exchange_contributions, placed_contributions
from mereo.explain.deletion import deletion_test, hidden_scores
from mereo.explain.observation import Observation, OnMaps, Witnessed, class_coupling_of
from mereo.explain.places import box_of, on_grid
from mereo.explain.target import chosen_classes
from mereo.explain.trees.tree import Edge, Node, ParseTree
from mereo.explain.wording import kind_of
from mereo.inference.predict import class_names
from mereo.models import VisionModel


def why_no_tree(model: VisionModel) -> str | None:
    """Why parse trees cannot be made of a model; None if they can."""
    if not model.has_capsules:
        couples = any(isinstance(module, Coupling) for module in observables(model).values())
        return f"{type(model).__name__} has {'no class capsules' if couples else 'no couplings'}"
    return None if class_coupling_of(model) else f"{type(model).__name__} has no routing to its classes"


def parse_trees(
    observation: Observation,
    classes: Tensor | None = None,
    *,
    keep: int = 3,
    rivals: int = 1,
    true_labels: Tensor | None = None,
    images: Tensor | None = None,
) -> list[ParseTree]:
    """The parse tree of every image.

    strength_s = c_s <vote_s, v> / |v|

    Args:
        observation: from `observe`.
        classes: which class to explain for each image, int64 (batch,); the predicted one when None.
        keep: votes kept for each capsule, the strongest in absolute value; votes of strength 0 are never kept.
        rivals: number of other classes shown next to the explained one: the true class first, if it is known, then
            the longest.
        true_labels: the class of each image, int64 (batch,), -1 if it is not known; None for none.
        images: of the observation, to measure the effect of hiding each patch; None leaves that out.

    observation = mereo.explain.observe(model, images)
    tree = mereo.explain.parse_trees(observation)[0]
    [(tree.nodes[e.child].name, e.strength) for e in tree.below(0)]     # what voted for the prediction

    Reference: arXiv:1710.09829, section 1, for the idea of a parse tree; the strengths are ours.
    """
    for argument, value, least in (("keep", keep, 1), ("rivals", rivals, 0)):
        if not isinstance(value, int) or value < least:
            raise UsageError(f"{argument} is {value!r}; it must be a whole number of at least {least}.")
    if (reason := why_no_tree(observation.model)) is not None:
        raise UsageError(f"no parse tree can be made: {reason}.")
    chosen = chosen_classes(observation.scores, classes)
    true = [-1] * len(chosen) if true_labels is None else torch.as_tensor(true_labels).tolist()
    trees = [
        _Growth(observation, image, keep).tree(int(root), rivals, label if label >= 0 else None)
        for image, (root, label) in enumerate(zip(chosen, true, strict=True))
    ]
    return trees if images is None else with_effects(trees, observation, images, chosen)


def with_effects(
    trees: Sequence[ParseTree], observation: Observation, images: Tensor, classes: Tensor
) -> list[ParseTree]:
    """The trees with the effect of hiding each patch on the class above it, and how far the votes agree.

    Args:
        trees: of the images of the observation.
        observation, images: the observation, and its images in [0, 1].
        classes: that are explained, int64 (batch,).
    """
    tested = None
    for values, grid in placed_contributions(observation, classes)[:1]:
        cells = on_grid(values, grid, average=False)
        tested = deletion_test(observation.model, images, observation.scores, classes, cells, grid)
    measured = []
    for number, tree in enumerate(trees):
        boxes = list(dict.fromkeys(node.box for node in tree.nodes if node.box is not None))
        hidden = hidden_scores(observation.model, images[number : number + 1], boxes)[0].cpu()
        scores, place = observation.scores[number].cpu(), {box: n for n, box in enumerate(boxes)}
        above, nodes = dict[int, int](), []
        for n, node in enumerate(tree.nodes):
            edge = tree.above(n)
            root = above[n] = node.number if edge is None else above[edge.parent]
            fall = None if node.box is None else float(scores[root] - hidden[place[node.box], root])
            nodes.append(replace(node, effect=fall))
        agreed = None if tested is None else float(tested.correlation[number])
        parts = 0 if tested is None else tested.parts
        measured.append(replace(tree, nodes=tuple(nodes), correlation=agreed, parts=parts))
    return measured


class _Growth:
    """A tree of one image while it grows."""

    def __init__(self, observation: Observation, image: int, keep: int) -> None:
        self.observation, self.image, self.keep = observation, image, keep
        self.grids = observation.grids
        self.nodes: list[Node] = []
        self.edges: list[Edge] = []

    def tree(self, explained: int, rivals: int, true: int | None = None) -> ParseTree:
        lengths_of, names = self.observation.scores[self.image], class_names(self.observation.model)
        others = [c for c in lengths_of.argsort(descending=True).tolist() if c != explained]
        others.sort(key=lambda c: c != true)
        shown = max(rivals, int(true is not None and true != explained))
        for number in (explained, *others[:shown]):
            self.nodes.append(Node("class", names[number], number, 0, length=float(lengths_of[number])))
            self.grow(len(self.nodes) - 1, self.observation.class_coupling, number)
        kind = kind_of(self.observation.model)
        return ParseTree(tuple(self.nodes), tuple(self.edges), self.keep, true, kind=kind)

    def pair(self, receiver: int) -> tuple[Tensor, Tensor]:
        device = self.observation.scores.device
        return torch.tensor([self.image], device=device), torch.tensor([receiver], device=device)

    def votes(self, name: str, receiver: int) -> tuple[Literal["vote", "coupling"], Tensor, Tensor]:
        """The kind of the edges, their strengths and their couplings, by sender or by cell."""
        recorded, exchange = self.observation.trace[name], self.observation.exchanges[name]
        couplings = recorded[self.image].mean(0)[receiver]
        contributed = exchange_contributions(exchange, recorded, *self.pair(receiver))
        strengths = couplings if contributed is None else contributed[0]
        grid = self.grids.get(name)
        if grid is not None:
            strengths = _by_place(strengths, grid, average=contributed is None)
            couplings = _by_place(couplings, grid, average=True)
        return "coupling" if contributed is None else "vote", strengths.cpu(), couplings.cpu()

    def grow(self, parent: int, name: str, receiver: int) -> None:
        """Everything below a receiver of one routing."""
        kind, strengths, couplings = self.votes(name, receiver)
        sizes = strengths.abs()
        kept = [s for s in sizes.argsort(descending=True, stable=True)[: self.keep].tolist() if sizes[s] > 0]
        carried = float(sizes[kept].sum() / sizes.sum()) if kept else 1.0
        self.nodes[parent] = replace(self.nodes[parent], senders=len(sizes), carried=carried)
        exchange, last = self.observation.exchanges[name], name == self.observation.class_coupling
        crossed = isinstance(exchange.module, Witnessed)
        poses = exchange.inputs[1 if crossed else 0] if kind == "vote" else None
        if isinstance(exchange.module, OnMaps) and poses is not None:
            poses = exchange.module.in_a_row(poses)
        if isinstance(poses, tuple | list):  # sets of children, whose pose sizes may differ
            poses = poses[0] if len(poses) == 1 else None
        if poses is not None and poses.dim() != 3:  # votes, whose children it does not see
            poses = None
        grid = self.grids.get(name)
        # Where several types share a place, a node is the place and no single capsule.
        single = grid is None or _single(grid)
        # With a single scale a capsule would agree best with itself.
        vouched = crossed and exchange.inputs[0] is not exchange.inputs[1]
        agreement = None
        if vouched and isinstance(exchange.module, Witnessed):
            fine, coarse = exchange.inputs
            agreement = exchange.module.best_members(fine, coarse, *self.pair(receiver))
        for sender in kept:
            source = self.source(sender) if last and not crossed and single else None
            child = self.add(parent, sender, grid, poses)
            vote = Edge(child, parent, kind, float(couplings[sender]), float(strengths[sender]))
            self.edges.append(vote)
            if agreement is not None:
                self.vouch(vote, name, int(agreement[0][0, sender]), float(agreement[1][0, sender]))
            elif source is not None:
                self.grow(child, *source)

    def vouch(self, vote: Edge, name: str, witness: int, score: float) -> None:
        """The witness of a sender of cross-agreement, and everything below it."""
        source = self.source(witness) if name == self.observation.class_coupling else None
        exchange = self.observation.exchanges[name]
        grid, cells = (getattr(exchange.module, attribute, None) for attribute in ("fine_grid", "fine_cells"))
        child = self.add(vote.child, witness, grid, exchange.inputs[0], cells)
        self.edges.append(Edge(child, vote.child, "agreement", vote.coupling, score))
        if source is not None:
            self.grow(child, *source)

    def source(self, number: int) -> tuple[str, int] | None:
        """The earlier routing that made a capsule which the class routing reads, and the capsule's number there."""
        for name, grid in self.grids.items():
            if grid.feeds is not None and grid.through is None and name in self.observation.trace:
                receiver = number - grid.feeds
                if 0 <= receiver < self.observation.trace[name].shape[-2]:
                    return name, receiver
        return None

    def add(
        self, parent: int, number: int, grid: Grid | None, poses: Tensor | None, order: Tensor | None = None
    ) -> int:
        """A new node; its place in the list."""
        level = self.nodes[parent].level + 1
        placeless = poses is not None and (grid is None or _single(grid))
        length = float(lengths(poses[self.image, number])) if poses is not None and placeless else None
        if grid is None:
            node = Node("capsule", f"capsule {number}", number, level, length=length)
        else:
            cell = number if order is None else int(order[number])
            for _, part in grid.parts:
                if cell < part.rows * part.columns:
                    grid = part
                    break
                cell -= part.rows * part.columns
            row, column = divmod(cell, grid.columns)
            box = box_of(cell, grid, *self.observation.model.image_shape[1:])
            node = Node("patch", f"patch at row {row}, column {column}", cell, level, box, length)
        self.nodes.append(node)
        return len(self.nodes) - 1


def _single(grid: Grid) -> bool:
    """Whether each place holds one capsule, of the same number."""
    return grid.types == 1 and grid.after is None


def _by_place(values: Tensor, grid: Grid, *, average: bool) -> Tensor:
    """Values of senders (senders,) as values of places, grid by grid."""
    parts = [(values[start : start + part.size], part) for start, part in grid.parts]
    return torch.cat([on_grid(value[None], part, average=average).flatten() for value, part in parts])
