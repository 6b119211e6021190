"""An explanation as data: scores, maps of couplings, contributions of votes, occlusion, and the reconstruction."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mereo.core import Grid
from mereo.explain.contributions import placed_contributions, vote_contributions
from mereo.explain.coupling_maps import CouplingMap, coupling_maps
from mereo.explain.deletion import DeletionTest, deletion_test
from mereo.explain.observation import Observation, observe
from mereo.explain.occlusion import occlusion_maps
from mereo.explain.places import on_grid, spread
from mereo.explain.rollout import AttentionMap, attention_rollout, class_attention
from mereo.explain.target import Target, of_classes, resolve_target, value_of
from mereo.explain.uniform_test import UniformTest, uniform_test
from mereo.explain.wording import kind_of
from mereo.models import VisionModel
from mereo.tasks.explained import Explained


@dataclass(frozen=True)
class ContributionMap:
    """Votes for and against a class over the image: summed over the grid they are the capsule's length, unsquashed.

    Attributes:
        cells: sum over the types of senders at each place, (batch, rows, columns).
        heat: the same over the image, (batch, height, width).
        grid: where the senders sit.
    """

    cells: Tensor
    heat: Tensor
    grid: Grid


@dataclass(frozen=True)
class OcclusionMap:
    """How much the score of a class falls when a square of the image is hidden, see `occlusion_maps`.

    Attributes:
        cells: the fall for each square, (batch, rows, columns).
        heat: the same over the image, (batch, height, width).
        grid: where the squares are.
    """

    cells: Tensor
    heat: Tensor
    grid: Grid


@dataclass(frozen=True)
class Explanation:
    """Why a network predicts what it predicts for a batch of images.

    Attributes:
        scores: of the classes, (batch, classes): the lengths of the class capsules, or logits, see `kind`; the outputs
            of a network of another kind.
        kind: of the scores, see `VisionModel.score_kind`; "outputs" if the task is not to choose a class.
        predicted: the class of the highest score, int64 (batch,); -1 if the outputs are not class scores.
        explained: the class that maps and contributions are about, int64 (batch,); -1 if a function is explained.
        value: what is explained, (batch,): the score of that class, or what the function gives.
        about: what is explained, if the task chose it in place of a class: a box, an area, a similarity.
        maps: of the couplings, by their names; empty when no sender has a place on the image.
        contributions: of every sender of the class routing to the length of the class capsule before the squash,
            (batch, senders); None for a routing whose votes are not known.
        contribution_maps: the same over the image, a map for each grid of senders; senders of an earlier routing
            are shown if the senders of the class routing have no position; empty if no sender has one.
        occlusion_map: how much hiding a place lowers the score.
        attention: shares of the places, by kind: "class attention", mean over the heads of the last layer with
            a class token, and "rollout", see `attention_rollout`; empty for a network without attention between places.
        rebuilt: the reconstruction from the explained class capsule, (batch, channels, height, width); None without
            a decoder.
        sides: height and width of the images.
        deletion: the effect of hiding each part, compared with its contribution by votes, attention
            or couplings; None without such a map, and for fewer than 3 parts.
        uniform: of the couplings behind each of `maps` and `attention`, whether they matter for the answer; empty if
            a function is explained.
        trace_shapes: (batch, heads, receivers, senders) of the couplings, by name, and the shapes of signals.
    """

    scores: Tensor
    kind: str
    predicted: Tensor
    explained: Tensor
    value: Tensor
    maps: dict[str, CouplingMap]
    contributions: Tensor | None
    contribution_maps: list[ContributionMap]
    occlusion_map: OcclusionMap
    attention: dict[str, AttentionMap]
    rebuilt: Tensor | None
    sides: tuple[int, int]
    trace_shapes: dict[str, tuple[int, ...]]
    deletion: DeletionTest | None = None
    uniform: dict[str, UniformTest] = field(default_factory=dict)
    about: Explained | None = None

    @property
    def contribution_map(self) -> ContributionMap | None:
        """The first of `contribution_maps`, in most networks the only one."""
        return self.contribution_maps[0] if self.contribution_maps else None

    @property
    def lengths(self) -> Tensor:
        """The scores, under their name for capsule classifiers."""
        return self.scores


def explain(model: VisionModel, images: Tensor, *, target: Target | None = None) -> Explanation:
    """Explain the predictions of a network for some images.

    Args:
        model: any network of images; it runs in evaluation mode.
        images: in [0, 1], not normalised.
        target: the class to explain, one for all images or int64 (batch,); the predicted one when None. Or a function
            from the outputs to one number for each image, (batch,), which other networks may have of their task, see
            `Task.explained`: maps and contributions for a class are then left out.

    Shapes: images (batch, channels, height, width).

    explanation = mereo.explain.explain(model, images)
    explanation.maps["head.coupling"].heat       # (batch, height, width)
    explanation.contributions.sum(1)             # the class capsules' lengths before the squash
    """
    observation = observe(model, images, target=target)
    chosen = resolve_target(observation.model, observation.scores, target)
    classes = chosen if isinstance(chosen, Tensor) else None
    placed = []
    for values, grid in [] if classes is None else placed_contributions(observation, classes):
        cells = on_grid(values, grid, average=False)
        placed.append(ContributionMap(cells, spread(cells, grid, *observation.model.image_shape[1:]), grid))
    rebuilt = None
    network: Any = observation.model
    capsules = None if classes is None else observation.capsules
    if capsules is not None and network.decoder is not None:
        with torch.no_grad():
            rebuilt = network.reconstruct(capsules, classes)
    maps = {} if classes is None else coupling_maps(observation, classes)
    drops, squares = occlusion_maps(network, images, chosen)
    hidden = OcclusionMap(drops, spread(drops, squares, *images.shape[-2:]), squares)
    attention = _attention(observation)
    replaced: dict[str, UniformTest] = {}
    if classes is not None:
        layers = {name: (name,) for name in maps} | {title: each.layers for title, each in attention.items()}
        for title, names in layers.items():
            replaced[title] = uniform_test(network, images, observation.scores, classes, names)
    claimed = _claimed(placed, attention, maps)
    tested = None
    if claimed is not None:
        tested = deletion_test(network, images, observation.scores, chosen, *claimed)
    unknown = torch.full((len(images),), -1, device=observation.scores.device)
    return Explanation(
        scores=observation.scores,
        kind=chosen.kind if isinstance(chosen, Explained) else kind_of(network),
        predicted=observation.scores.argmax(1) if network.output_kind == "scores" and of_classes(network) else unknown,
        explained=unknown if classes is None else classes,
        value=value_of(observation.scores, chosen),
        maps=maps,
        contributions=None if classes is None else vote_contributions(observation, classes),
        contribution_maps=placed,
        occlusion_map=hidden,
        attention=attention,
        rebuilt=rebuilt,
        sides=observation.image_shape[1:],
        trace_shapes=_shapes(observation),
        deletion=tested,
        uniform=replaced,
        about=chosen if isinstance(chosen, Explained) else None,
    )


def _claimed(
    placed: list[ContributionMap], attention: dict[str, AttentionMap], maps: dict[str, CouplingMap]
) -> tuple[Tensor, Grid] | None:
    """The map that a deletion test is compared with: of votes, of attention, or of the last couplings."""
    for each in (placed[:1], list(attention.values())[-1:], list(maps.values())[-1:]):
        if each:
            return each[0].cells, each[0].grid
    return None


def _attention(observation: Observation) -> dict[str, AttentionMap]:
    """The maps of attention that a picture of several images shows."""
    maps, of_class, rollout = {}, class_attention(observation), attention_rollout(observation)
    if of_class:
        last = of_class[-1]
        maps["class attention"] = AttentionMap(last.cells.mean(1), last.grid, last.layers)
    if rollout is not None:
        maps["rollout"] = rollout
    return maps


def _shapes(observation: Observation) -> dict[str, tuple[int, ...]]:
    """Shapes of what was recorded; couplings inside tiles count over the whole image."""
    shapes, trace, batch = {}, observation.trace, len(observation.scores)
    for name, kind in trace.kinds.items():
        tiles = trace.calls(name)[-1].tiles if kind == "couplings" else None
        if tiles is None:
            shapes[name] = tuple(trace[name].shape)
        else:
            heads = trace.calls(name)[-1].scores.shape[1]
            shapes[name] = (batch, heads, tiles.num_receivers, tiles.num_senders)
    return shapes
