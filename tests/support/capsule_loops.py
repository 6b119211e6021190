"""Convolutions of capsules with loops over children and parents, each written from the equations."""

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Place = tuple[int, int, int]
Votes = dict[tuple[Place, Place], Tensor]
"""(parent, child) -> vote; both are (type, row, column)."""


def complex_product(pose: Tensor, weight: Tensor) -> Tensor:
    product = torch.complex(pose[0], pose[1]) @ torch.complex(weight[0], weight[1])
    return torch.stack((product.real, product.imag))


def all_votes(layer: Any, poses: Tensor) -> Votes:
    """Votes of one image, poses (types, *pose, rows, columns)."""
    (down, across), (kh, kw) = layer.stride, layer.kernel
    top, left = layer.padding
    rows, columns = poses.shape[-2:]
    votes: Votes = {}
    positions = (rows + 2 * top - kh) // down + 1, (columns + 2 * left - kw) // across + 1
    for y in range(positions[0]):
        for x in range(positions[1]):
            for o in range(kh * kw):
                cy, cx = y * down - top + o // kw, x * across - left + o % kw
                if not (0 <= cy < rows and 0 <= cx < columns):
                    continue
                for t in range(layer.in_types):
                    for r in range(layer.out_types):
                        weight = layer.weight[r, t] if layer.shared else layer.weight[r, o, t]
                        pose = poses[t, ..., cy, cx]
                        vote = complex_product(pose, weight) if layer.kind == "complex" else pose @ weight
                        vote = vote.flatten().clone()
                        if layer.coordinates is not None:
                            of_parent = layer.coordinates_of == "parents"
                            place, sides = ((y, x), positions) if of_parent else ((cy, cx), (rows, columns))
                            for entry, index, size in zip(layer.coordinates, place, sides, strict=True):
                                where = (index + layer.coordinate_offset) / size * layer.coordinate_scale
                                vote[entry] = vote[entry] + where
                        votes[(r, y, x), (t, cy, cx)] = vote
    return votes


def shares(scores: dict[tuple[Place, Place], Tensor], compete: str) -> dict[tuple[Place, Place], Tensor]:
    """Softmax over the parents that compete for a child."""
    totals: dict[Any, Any] = defaultdict(float)
    group: Callable[[Place, Place], Any] = lambda p, c: c if compete == "positions" else (c, p[1:])  # noqa: E731
    for (parent, child), score in scores.items():
        totals[group(parent, child)] = totals[group(parent, child)] + score.exp()
    return {(parent, child): score.exp() / totals[group(parent, child)] for (parent, child), score in scores.items()}


def em(layer: Any, poses: Tensor, activation: Tensor) -> tuple[dict[Place, Tensor], dict[Place, Tensor]]:
    """Poses and activations of the parents of one image."""
    routing, votes = layer.routing, all_votes(layer, poses)
    options = routing.options
    scores = {pair: poses.new_zeros(()) for pair in votes}
    means: dict[Place, Tensor] = {}
    present: dict[Place, Tensor] = {}
    for temperature in options.temperatures:
        share = shares(scores, layer.compete)
        for parent in {parent for parent, _ in votes}:
            weight = {c: share[p, c] * activation[c] for p, c in votes if p == parent}
            if options.renormalise:
                weight = {c: share[parent, c] * activation[c] / (activation[c] + 1e-8) for c in weight}
            total = sum(weight.values())
            mean = sum(w * votes[parent, c] for c, w in weight.items()) / total
            variance = sum(w * (votes[parent, c] - mean) ** 2 for c, w in weight.items()) / total
            if options.floor == "added":
                variance = variance + options.variance_floor
            else:
                variance = torch.maximum(variance, torch.full_like(variance, options.variance_floor))
            cost = sum((routing.beta_use[parent[0]] + v.log() / 2) * total for v in variance)
            if options.cost_per_children:
                cost = cost * 100 * layer.out_types / (layer.in_types * layer.offsets)
            means[parent] = mean
            present[parent] = torch.sigmoid(temperature * (routing.beta_activation[parent[0]] - cost))
            for c in weight:
                log_p = -((votes[parent, c] - mean) ** 2 / (2 * variance) + (2 * math.pi * variance).log() / 2).sum()
                scores[parent, c] = present[parent].log() + log_p
    return means, present


def dynamic(layer: Any, poses: Tensor) -> dict[Place, Tensor]:
    """Poses of the parents of one image by routing by agreement."""
    votes = all_votes(layer, poses)
    scores = {pair: poses.new_zeros(()) for pair in votes}
    parents: dict[Place, Tensor] = {}
    for _ in range(layer.routing.steps):
        share = shares(scores, layer.compete)
        for parent in {parent for parent, _ in votes}:
            total = sum(share[p, c] * vote for (p, c), vote in votes.items() if p == parent)
            square = (total**2).sum()
            parents[parent] = square / (1 + square) * total / square.sqrt()
        scores = {(p, c): score + votes[p, c] @ parents[p] for (p, c), score in scores.items()}
    return parents


def self_attention(layer: Any, poses: Tensor) -> dict[Place, Tensor]:
    """Poses of the parents of one image by agreement with the sum of all votes."""
    votes = all_votes(layer, poses)
    sums: dict[Place, Any] = defaultdict(float)
    for (parent, _), vote in votes.items():
        sums[parent] = sums[parent] + vote
    scores = {(p, c): vote @ sums[p] / math.sqrt(len(vote)) for (p, c), vote in votes.items()}
    share, parents = shares(scores, layer.compete), {}
    for parent in sums:
        total = sum(share[p, c] * vote for (p, c), vote in votes.items() if p == parent)
        length = total.norm()
        parents[parent] = (1 - (-length).exp()) * total / length
    return parents


def as_maps(parents: dict[Place, Tensor], pose: tuple[int, ...] = ()) -> Tensor:
    """(types, *pose, rows, columns) from a dictionary."""
    types, rows, columns = (max(place[i] for place in parents) + 1 for i in range(3))
    cells = [parents[t, y, x].reshape(pose) for t in range(types) for y in range(rows) for x in range(columns)]
    return torch.stack(cells, -1).unflatten(-1, (types, rows, columns)).movedim(-3, 0)
