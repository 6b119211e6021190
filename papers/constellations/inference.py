"""Inference for a generative capsule model from several starts, with a precision that grows as each start settles.

Source: Nazabal, Williams 2021, arXiv:2103.06676 and the authors' code.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mereo.errors import check_positive
from papers.constellations.generative_capsule_model import GenerativeCapsuleModel, Update
from papers.constellations.random_start import random_responsibilities

SETTLED = 1e-3
"""A chain has settled at its precision when an update changes the bound by less."""


class ConstellationInference(NamedTuple):
    """The best chain of every image.

    Attributes:
        labels (images, slots): the object of the likeliest part; for clutter, one more than the last object.
        responsibilities (images, slots, parts), with one more column for clutter; rows of absent points are 0.
        mean (images, objects, pose), pose_precision (images, objects, pose, pose): q(y_k).
        bound (images,), precision (images,): the evidence lower bound, and the precision at which it was reached.
        trace (images, updates): the bound after every update; it falls when the precision is doubled.
        finished (images,): whether the chain settled at its last precision before the updates were used up.
    """

    labels: Tensor
    responsibilities: Tensor
    mean: Tensor
    pose_precision: Tensor
    bound: Tensor
    precision: Tensor
    trace: Tensor
    finished: Tensor


def infer_constellations(
    model: GenerativeCapsuleModel,
    points: Tensor,
    mask: Tensor,
    generator: torch.Generator,
    *,
    precision: float = 50.0,
    max_precision: float | None = 1e4,
    restarts: int = 5,
    updates: int = 500,
) -> ConstellationInference:
    """Assign points to objects in each image: of several chains from random responsibilities, take the largest bound.

    A chain that settles doubles its precision, and it has finished when it settles above `max_precision`. With
    `doubly_stochastic`, one that explains a single point by a separate object restarts when it settles. Chains
    that finished come before those that ran out of updates, whose bound is of another precision.

    Args:
        model: of the objects.
        points, mask: the points, and which slots have one.
        generator: of the random numbers of the starts.
        precision: of the points around their places, at first.
        max_precision: doublings end above it; None: the precision stays as it is.
        restarts: chains of an image.
        updates: largest number per chain, including those before a restart.

    Shapes: points (images, slots, 2), mask (images, slots); see `ConstellationInference`.

    Reference: arXiv:2103.06676, section 3.3.
    """
    check_positive(precision=precision, restarts=restarts, updates=updates)
    points, mask = (x.repeat_interleave(restarts, 0) for x in (points, mask))
    exclusive, last = model.assignment == "doubly_stochastic", max_precision or 0.0

    def start(mask: Tensor) -> Tensor:
        return random_responsibilities(mask, model.columns, generator, sharp=model.clutter > 0).to(points.dtype)

    now = points.new_full((len(mask),), precision)
    state = model.update(points, mask, start(mask), now)
    running, trace = torch.ones_like(mask[:, 0]), [state.bound.clone()]
    while running.any() and len(trace) < updates:
        i = running.nonzero().squeeze(-1)
        after = model.update(points[i], mask[i], state.responsibilities[i], now[i])
        settled = (after.bound - state.bound[i]).abs() < SETTLED
        for old, new in zip(state, after, strict=True):
            old[i] = new
        trace.append(state.bound.clone())
        restarted = i[settled & model.single_point(after.responsibilities) & exclusive]
        state.responsibilities[restarted] = start(mask[restarted])
        double = i[settled & (now[i] <= last)]
        ended = i[settled & (now[i] > last)]
        now[double] *= 2
        now[restarted] = precision
        running[ended] = False
        running[restarted] = True
    return _best(model, state, now, torch.stack(trace, -1), ~running, restarts)


def _best(
    model: GenerativeCapsuleModel, state: Update, precision: Tensor, trace: Tensor, finished: Tensor, restarts: int
) -> ConstellationInference:
    """The chain of each image with the largest bound, of those that finished if there are any."""
    bound, ended = state.bound.unflatten(0, (-1, restarts)), finished.unflatten(0, (-1, restarts))
    eligible = ended | ~ended.any(1, keepdim=True)
    chain = bound.masked_fill(~eligible, -math.inf).argmax(1) + restarts * torch.arange(len(bound), device=bound.device)
    r, parts = state.responsibilities[chain], len(model.owner)
    r = torch.cat((r[..., :parts], r[..., parts:].sum(-1, keepdim=True)), -1) if model.clutter else r
    labels = torch.cat((model.owner, model.owner.new_tensor([model.objects])))[r.argmax(-1)]
    return ConstellationInference(
        labels, r, state.mean[chain], state.pose_precision[chain], state.bound[chain], precision[chain], trace[chain],
        finished[chain],
    )  # fmt: skip
