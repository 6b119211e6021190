"""An explanation as data: lengths, maps of couplings, contributions of votes, and the reconstruction."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mereo.explain.contributions import vote_contributions
from mereo.explain.coupling_maps import CouplingMap, coupling_maps
from mereo.explain.observation import chosen_classes, observe
from mereo.explain.places import on_grid, spread
from mereo.models import CapsuleClassifier
from mereo.models.base import SenderGrid


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
    grid: SenderGrid


@dataclass(frozen=True)
class Explanation:
    """Why a network predicts what it predicts for a batch of images.

    Attributes:
        lengths: of the class capsules, (batch, classes).
        predicted: the longest, int64 (batch,).
        explained: the class that maps and contributions are about, int64 (batch,).
        maps: of the couplings, by their names; empty when no sender has a place on the image.
        contributions: of every sender of the class routing to the length of the class capsule before the squash,
            (batch, senders); None for a routing whose votes are not known.
        contribution_map: the same over the image; None when the senders have no place.
        rebuilt: the reconstruction from the explained class capsule, (batch, channels, height, width); None without
            a decoder.
        trace_shapes: (batch, heads, receivers, senders) of the couplings, by name.
    """

    lengths: Tensor
    predicted: Tensor
    explained: Tensor
    maps: dict[str, CouplingMap]
    contributions: Tensor | None
    contribution_map: ContributionMap | None
    rebuilt: Tensor | None
    trace_shapes: dict[str, tuple[int, ...]]


def explain(model: CapsuleClassifier, images: Tensor, *, classes: Tensor | None = None) -> Explanation:
    """Explain the predictions of a network for some images.

    Args:
        model: any capsule classifier; it runs once, in evaluation mode.
        images: in [0, 1], not normalised.
        classes: which class to explain for each image, int64 (batch,); the predicted one when None.

    Shapes: images (batch, channels, height, width).

    explanation = mereo.explain.explain(model, images)
    explanation.maps["head.coupling"].heat       # (batch, height, width)
    explanation.contributions.sum(1)             # the class capsules' lengths before the squash
    """
    observation = observe(model, images)
    chosen = chosen_classes(observation.capsules.activation, classes)
    contributions = vote_contributions(observation, chosen)
    grid = observation.model.sender_grids().get(observation.class_coupling)
    placed = None
    if contributions is not None and grid is not None:
        cells = on_grid(contributions, grid, average=False)
        placed = ContributionMap(cells, spread(cells, grid, *observation.model.image_shape[1:]), grid)
    rebuilt = None
    if observation.model.decoder is not None:
        with torch.no_grad():
            rebuilt = observation.model.reconstruct(observation.capsules, chosen)
    lengths = observation.capsules.activation
    return Explanation(
        lengths=lengths,
        predicted=lengths.argmax(1),
        explained=chosen,
        maps=coupling_maps(observation, chosen),
        contributions=contributions,
        contribution_map=placed,
        rebuilt=rebuilt,
        trace_shapes={name: tuple(c.shape) for name, c in observation.trace.items()},
    )
