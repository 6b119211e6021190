"""Couplings as maps over the image: one for each routing whose senders have a place.

The map of the class routing is the couplings of its senders with the class that is explained. An earlier routing has
receivers of its own, capsules r that the class routing reads; their couplings are averaged with weights w_r for
how much the class relied on r:

    map_s = sum_r w_r c_rs,   sum_r w_r = 1

    dynamic           w_r ~ c_class,r: the share of its vote that capsule r gave to the class
    cross-agreement   w_r ~ sum of c_class,k over the coarse capsules k for which r was the witness, the fine capsule
                      whose vote agreed best with the vote of k and which therefore set the score of k

In a chain of routings, the map of one routing gives the weights w_r for the routing before it.

A plain mean over r would be constant where couplings sum to one over the receivers.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mereo.core import Coupling, Grid
from mereo.core.coupling import Axis
from mereo.explain.observation import Observation, Witnessed
from mereo.explain.places import on_grid, spread
from mereo.explain.target import chosen_classes


@dataclass(frozen=True)
class CouplingMap:
    """How strongly each place of the image was coupled to one class.

    Attributes:
        name: of the Coupling module.
        receiver: the class explained, int64 (batch,).
        cells: the map on the grid of the senders, mean over their types, (batch, rows, columns).
        heat: the same over the image, (batch, height, width).
        grid: positions of the senders.
        num_receivers: how many capsules the coupling leads to.
        over: axis along which its couplings sum to one: "receivers" (a part divides its vote), "senders", "both", or
            "none" for factors of any sign.
        uniform: the mean coupling, which all couplings would have if they were uniform; 0 for factors.
    """

    name: str
    receiver: Tensor
    cells: Tensor
    heat: Tensor
    grid: Grid
    num_receivers: int
    over: Axis
    uniform: float


def receiver_weights(observation: Observation, classes: Tensor, first: int, count: int) -> Tensor:
    """How much a class relied on each receiver of an earlier routing: (batch, count), rows that sum to one.

    Args:
        observation: from `observe`.
        classes: the class explained, (batch,).
        first, count: the first receiver and their number, among the capsules that the class routing reads.
    """
    row, exchange = observation.class_row(classes), observation.exchanges[observation.class_coupling]
    if isinstance(exchange.module, Witnessed):
        samples = torch.arange(len(row), device=row.device)
        fine, coarse = exchange.inputs
        best, _ = exchange.module.best_members(fine, coarse, samples, classes)
        row = row.new_zeros(len(row), exchange.inputs[0].shape[1]).scatter_add(1, best, row)
    return _normalised(row[:, first : first + count])


def _normalised(weights: Tensor) -> Tensor:
    return weights / weights.sum(1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)


def _weighted(couplings: Tensor, weights: Tensor) -> Tensor:
    """sum_r w_r c_rs, mean over heads; couplings (batch, heads, receivers, senders), dense or sparse."""
    if couplings.layout == torch.strided:
        return torch.einsum("br,brs->bs", weights, couplings.mean(1))
    batch, heads, _, senders = couplings.shape
    image, _, receiver, sender = couplings.indices()
    values = couplings.values() * weights[image, receiver] / heads
    return weights.new_zeros(batch, senders).index_put_((image, sender), values, accumulate=True)


def _has_map(observation: Observation, name: str) -> bool:
    """Whether couplings differ from place to place and from image to image, unless the routing declares otherwise."""
    exchange = observation.exchanges.get(name)
    return exchange is None or getattr(exchange.module, "has_coupling_map", True)


def coupling_maps(observation: Observation, classes: Tensor | None = None) -> dict[str, CouplingMap]:
    """The map of each routing whose senders have a place, by name, in the order in which the model couples.

    Attention of a backbone, whose receivers vote for no class, is left out: see `attention_layers`. So are
    routings that declare `has_coupling_map = False`, such as those whose couplings are the same for all images.

    Args:
        observation: what the model did, from `observe`.
        classes: which class to explain for each image, (batch,); the predicted one when None.
    """
    chosen = chosen_classes(observation.scores, classes)
    grids, (_, height, width) = observation.grids, observation.model.image_shape
    if observation.class_coupling not in observation.trace:
        return {}
    maps: dict[str, CouplingMap] = {}
    senders: dict[str, Tensor] = {}
    names = [name for name in observation.trace if name in grids and _has_map(observation, name)]
    # The last first: the map of a routing weighs the receivers of the one before it.
    for name in reversed(names):
        grid, couplings = grids[name], observation.trace[name]
        receivers, coupling = couplings.shape[2], observation.model.get_submodule(name)
        over: Axis = coupling.over if isinstance(coupling, Coupling) else "receivers"
        if grid.feeds is None:
            values = observation.class_row(chosen)
        elif grid.through in senders:
            weights = _normalised(senders[grid.through][:, grid.feeds : grid.feeds + receivers])
            values = _weighted(couplings, weights)
        else:
            values = _weighted(couplings, receiver_weights(observation, chosen, grid.feeds, receivers))
        senders[name] = values
        cells = on_grid(values, grid, average=True)
        uniform = 0.0 if over == "none" else float(couplings.sum()) / couplings.numel()
        heat = spread(cells, grid, height, width)
        maps[name] = CouplingMap(name, chosen, cells, heat, grid, receivers, over, uniform)
    return {name: maps[name] for name in names}
