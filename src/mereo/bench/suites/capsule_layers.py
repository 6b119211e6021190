"""One convolution of matrix capsules with EM routing: our executions, and the plain form of public implementations."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mereo.bench.counting import FLOAT
from mereo.bench.suite import Contender, Mode, Setting, Suite, UnavailableError, Work, Workload
from mereo.core.kernels import library
from mereo.core.window_votes import WindowVotes
from mereo.layers.capsules import ConvCapsules
from mereo.mechanisms.routing.em import EMVoteRouting

STEPS, SIDE = 3, 4
"""Fits of EM routing, and the side of a pose."""


def inputs(setting: Setting, mode: Mode) -> tuple[Any, ...]:
    """Poses (batch, types, 4, 4, side, side) and activations (batch, types, side, side)."""
    batch, types, side = (setting.size(name) for name in ("batch", "types", "side"))
    shape = (batch, types, SIDE, SIDE, side, side)
    poses, present = torch.randn(shape, device=setting.device), torch.rand(batch, types, side, side)
    return tuple(x.to(setting.device).requires_grad_(mode == "training") for x in (poses, present))


def layer_of(setting: Setting, compete: str) -> ConvCapsules:
    """The layer with random weights, always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        types = setting.size("types")
        layer = ConvCapsules(types, types, setting.size("kernel"), setting.size("stride"), compete=compete)
    return layer.to(setting.device)


def work(setting: Setting, mode: Mode) -> Work:
    """Votes once, and for every fit their mean, their variance and their density; training takes three times that."""
    layer = layer_of(setting, "window")
    windows = setting.size("batch") * layer.windows(setting.size("side"), setting.size("side")).count
    votes = windows * layer.offsets * layer.in_types * layer.out_types * SIDE * SIDE
    flops = votes * (2 * SIDE + STEPS * 2 + STEPS * 3 + (STEPS - 1) * 4)
    children = setting.size("batch") * layer.in_types * setting.size("side") ** 2
    entries = children * (SIDE * SIDE + 1) + layer.weight.numel() + windows * layer.out_types * (SIDE * SIDE + 1)
    times = 1 if mode == "forward" else 3
    return Work(times * flops, FLOAT * times * entries)


def plain_votes(layer: ConvCapsules, children: Tensor) -> Tensor:
    """Every vote as a tensor, as public code makes it: transforms repeated for every window.

    Shapes: children (windows, senders, *pose), matrices or vectors -> (windows, senders, receivers, pose).
    """
    weight = layer.weight.flatten(1, 2).transpose(0, 1).unsqueeze(0).repeat(children.shape[0], 1, 1, 1, 1)
    rows = children if children.dim() == 4 else children.unsqueeze(2)
    return (rows.unsqueeze(2).repeat(1, 1, layer.out_types, 1, 1) @ weight).flatten(3)


def plain_layer(layer: ConvCapsules, poses: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """EM routing inside each window, as public code does it."""
    windows = layer.windows(*poses.shape[-2:])
    children, alive = windows.gather(poses), windows.gather(present).unsqueeze(-1)
    votes = plain_votes(layer, children)
    count, receivers = children.shape[0], layer.out_types
    routing = layer.routing
    assert isinstance(routing, EMVoteRouting)
    options = routing.options
    share = votes.new_full((count, votes.shape[1], receivers), 1 / receivers)
    for step, temperature in enumerate(options.temperatures):
        taken = share * alive
        total = taken.sum(1, keepdim=True)
        parts = (taken / total).unsqueeze(-1)
        mean = (parts * votes).sum(1, keepdim=True)
        variance = (parts * (votes - mean) ** 2).sum(1, keepdim=True) + options.variance_floor
        cost = (routing.beta_use.view(-1, 1) + variance.sqrt().log()) * total.unsqueeze(-1)
        active = (temperature * (routing.beta_activation - cost.sum(-1))).sigmoid()
        if step < len(options.temperatures) - 1:
            fits = -((votes - mean) ** 2) / (2 * variance) - variance.sqrt().log() - 0.5 * math.log(2 * math.pi)
            share = (fits.sum(-1) + active.log()).softmax(2)
    maps = mean.squeeze(1).unflatten(-1, layer.out_pose)
    return windows.place(maps), windows.place(active.squeeze(1))


Plain = Callable[[ConvCapsules, Tensor, Tensor], tuple[Tensor, Tensor]]
"""A layer's computation as public code has it: layer, poses, activations -> poses, activations."""


def layer_contender(
    name: str,
    make: Callable[[], ConvCapsules],
    method: str = "auto",
    *,
    plain: Plain | None = None,
    checked: bool = True,
    poses_only: bool = False,
) -> Contender:
    """A layer that computes its votes by one method, or a plain form of it; all its outputs, or only the poses."""

    def build(mode: Mode) -> Workload:
        if method == "compiled" and library.missing is not None:
            raise UnavailableError(library.missing)
        layer = make()
        make_votes: Callable[[Tensor], WindowVotes] = layer.votes

        def votes(poses: Tensor, activation: Tensor | None = None) -> WindowVotes:
            made = make_votes(poses)
            made.method = method
            return made

        object.__setattr__(layer, "votes", votes)

        def call(poses: Tensor, present: Tensor) -> tuple[Tensor, ...]:
            made = tuple(layer(poses, present)) if plain is None else plain(layer, poses, present)
            return made[:1] if poses_only else made

        leaves = tuple(layer.parameters())
        return Workload(call, leaves=leaves if mode == "training" else ())

    return Contender(name, build, "contender" if checked else "unchecked")


def contenders(setting: Setting) -> tuple[Contender, ...]:
    """Ours first; competition over all positions computes something else."""
    inside, over_positions = partial(layer_of, setting, "window"), partial(layer_of, setting, "positions")
    return (
        layer_contender("compiled", inside, "compiled"),
        layer_contender("streamed", inside, "streamed"),
        layer_contender("stored votes", inside, "stored"),
        layer_contender("plain", inside, plain=plain_layer),
        layer_contender("compiled, over positions", over_positions, "compiled", checked=False),
    )


CAPSULE_LAYERS = Suite(
    "capsule_layers",
    "one convolution of matrix capsules with EM routing: without stored votes, with them, and as in public code",
    "poses (batch, types, 4, 4, side, side), activations -> poses and activations of the parents",
    {"batch": 16, "types": 32, "side": 14, "kernel": 3, "stride": 2},
    inputs,
    contenders,
    work,
    quick={"batch": 2, "types": 4, "side": 7},
)
