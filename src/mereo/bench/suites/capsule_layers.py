"""Convolutions of capsules by each routing: our executions, and the plain form of public implementations."""

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

STEPS = {"em": 3, "variational_bayes": 3, "self_routing": 1, "inverted_dot_product": 2}
"""Routings with how often each fits the parents."""
OPTIONS: dict[str, dict[str, Any]] = {"variational_bayes": {"normalise": False}}
"""The batch norms after variational routing are the same in all contenders and are left out."""
WITHOUT_ACTIVATIONS = ("inverted_dot_product",)
POSES: dict[str, tuple[int, ...]] = {**dict.fromkeys(STEPS, (4, 4)), "self_routing": (16,)}


def layer_of(routing: str, setting: Setting, compete: str = "window") -> ConvCapsules:
    """The layer with random weights, always the same."""
    pose = POSES[routing]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        types, kernel, stride = (setting.size(name) for name in ("types", "kernel", "stride"))
        layer = ConvCapsules(
            types, types, kernel, stride, in_pose=pose, pose="matrix" if len(pose) == 2 else "vector",
            compete=compete, routing=routing, routing_options=OPTIONS.get(routing),
        )  # fmt: skip
        if routing == "self_routing":
            torch.nn.init.normal_(layer.routing.gate, std=0.1)  # type: ignore[arg-type]
    return layer.to(setting.device)


def inputs(routing: str, setting: Setting, mode: Mode) -> tuple[Any, ...]:
    """Poses (batch, types, *pose, side, side) and activations (batch, types, side, side)."""
    batch, types, side = (setting.size(name) for name in ("batch", "types", "side"))
    poses, present = torch.randn(batch, types, *POSES[routing], side, side), torch.rand(batch, types, side, side)
    trained = mode == "training"
    poses, present = poses.to(setting.device), present.to(setting.device)
    return poses.requires_grad_(trained), present.requires_grad_(trained and routing not in WITHOUT_ACTIVATIONS)


def work(routing: str, setting: Setting, mode: Mode) -> Work:
    """Votes once, and for every fit their weighted sum and what they agree with; training takes three times that."""
    layer = layer_of(routing, setting)
    windows = setting.size("batch") * layer.windows(setting.size("side"), setting.size("side")).count
    pairs = windows * layer.offsets * layer.in_types * layer.out_types
    # EM routing takes a mean, a variance, and a density, which its last fit leaves out.
    fits = STEPS[routing] * 9 - 4 if routing == "em" else STEPS[routing] * 4
    flops = pairs * 16 * (2 * layer.in_pose[-1] + fits)
    children = setting.size("batch") * layer.in_types * setting.size("side") ** 2
    entries = children * 17 + layer.weight.numel() + windows * layer.out_types * 17
    times = 1 if mode == "forward" else 3
    return Work(times * flops, FLOAT * times * entries)


def plain_votes(layer: ConvCapsules, children: Tensor) -> Tensor:
    """Every vote as a tensor, as public code makes it: transforms repeated for every window.

    Shapes: children (windows, senders, *pose), matrices or vectors -> (windows, senders, receivers, pose).
    """
    weight = layer.weight.flatten(1, 2).transpose(0, 1).unsqueeze(0).repeat(children.shape[0], 1, 1, 1, 1)
    rows = children if children.dim() == 4 else children.unsqueeze(2)
    return (rows.unsqueeze(2).repeat(1, 1, layer.out_types, 1, 1) @ weight).flatten(3)


def plain_em(layer: ConvCapsules, poses: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
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


def plain_self_routing(layer: ConvCapsules, poses: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Gates by a product over every window, votes as a tensor, a mean of them."""
    windows, routing = layer.windows(*poses.shape[-2:]), layer.routing
    children, alive = windows.gather(poses), windows.gather(present)
    votes = plain_votes(layer, children)  # (windows, senders, receivers, pose)
    gates = torch.einsum("nsd,rsd->nsr", children, routing.gate) + routing.gate_bias.T  # type: ignore[operator]
    taken = alive.unsqueeze(2) * gates.softmax(2)
    total = taken.sum(1)
    mean = (taken.unsqueeze(3) * votes).sum(1) / total.unsqueeze(2)
    return windows.place(mean), windows.place(total / alive.sum(1, keepdim=True))


def plain_inverted(layer: ConvCapsules, poses: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Votes as a tensor; their agreement with the parents, a softmax over the parents, a layer norm."""
    windows, norm = layer.windows(*poses.shape[-2:]), layer.routing.norm
    votes = plain_votes(layer, windows.gather(poses))
    share = votes.new_full((*votes.shape[:2], layer.out_types), 1 / layer.out_types)
    parents = norm(torch.einsum("nsr,nsrd->nrd", share, votes))  # type: ignore[operator]
    for _ in range(STEPS["inverted_dot_product"] - 1):
        share = (torch.einsum("nrd,nsrd->nsr", parents, votes) * votes.shape[-1] ** -0.5).softmax(2)
        parents = norm(torch.einsum("nsr,nsrd->nrd", share, votes))  # type: ignore[operator]
    maps = windows.place(parents.unflatten(2, layer.out_pose))
    return maps, maps.new_ones(*maps.shape[:2], *maps.shape[-2:])


def plain_variational(layer: ConvCapsules, poses: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Votes as a tensor; in every step posterior means, scatters and densities from tensors of their size."""
    windows, routing = layer.windows(*poses.shape[-2:]), layer.routing
    children, alive = windows.gather(poses), windows.gather(present).unsqueeze(2)
    votes = plain_votes(layer, children)
    dim = votes.shape[-1]
    share = votes.new_full((*votes.shape[:2], layer.out_types), 1 / layer.out_types)
    numbers = torch.arange(dim, device=votes.device)
    for step in range(STEPS["variational_bayes"]):
        taken = (share * alive).unsqueeze(3)
        total = taken.sum(1, keepdim=True)  # (windows, 1, receivers, 1)
        average = (taken * votes).sum(1, keepdim=True) / total
        mean = total * average / (1 + total)
        scatter = 1 + (taken * (votes - average) ** 2).sum(1, keepdim=True) + total / (1 + total) * average**2
        freedom = total + dim + 1
        precision = torch.digamma((freedom - numbers) / 2).sum(3) + dim * math.log(2) - scatter.log().sum(3)
        weight = torch.digamma(1 + total.squeeze(3)) - torch.digamma((1 + total).sum(2))
        if step < STEPS["variational_bayes"] - 1:
            far = freedom.squeeze(3) * ((votes - mean) ** 2 / scatter).sum(3) + dim / (1 + total.squeeze(3))
            share = (weight + (precision - dim * math.log(2 * math.pi) - far) / 2).softmax(2)
    entropy = (dim * math.log(2 * math.pi * math.e) - precision) / 2
    cost = weight.exp() * entropy + routing.beta_use  # type: ignore[operator]
    active = (routing.beta_activation - cost).sigmoid().squeeze(1)  # type: ignore[operator]
    return windows.place(mean.squeeze(1).unflatten(2, layer.out_pose)), windows.place(active)


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


PLAIN: dict[str, Plain] = {
    "em": plain_em, "variational_bayes": plain_variational, "self_routing": plain_self_routing,
    "inverted_dot_product": plain_inverted,
}  # fmt: skip


def contenders(routing: str, setting: Setting) -> tuple[Contender, ...]:
    """Ours first; competition over all positions computes something else."""
    make: Callable[..., ConvCapsules] = partial(layer_of, routing, setting)
    kind = partial(layer_contender, poses_only=routing in WITHOUT_ACTIVATIONS)
    stored, plain = kind("stored votes", make, "stored"), kind("plain", make, plain=PLAIN[routing])
    if routing != "em":
        return kind("ours", make), stored, plain
    over = layer_contender("compiled, over positions", partial(make, "positions"), "compiled", checked=False)
    return kind("compiled", make, "compiled"), kind("streamed", make, "streamed"), stored, plain, over


def _suite(name: str, routing: str, title: str, batch: int, types: int, side: int) -> Suite:
    return Suite(
        name,
        f"one convolution of capsules with {title}: without stored votes, with them, and as in public code",
        "poses (batch, types, *pose, side, side), activations -> poses and activations of the parents",
        {"batch": batch, "types": types, "side": side, "kernel": 3, "stride": 2},
        partial(inputs, routing),
        partial(contenders, routing),
        partial(work, routing),
        quick={"batch": 2, "types": 4, "side": 7},
    )


CAPSULE_LAYERS = _suite("capsule_layers", "em", "EM routing", 16, 32, 14)
VARIATIONAL_LAYERS = _suite("variational_layers", "variational_bayes", "variational Bayes routing", 16, 16, 14)
SELF_ROUTING_LAYERS = _suite("self_routing_layers", "self_routing", "self-routing", 16, 32, 8)
INVERTED_LAYERS = _suite("inverted_layers", "inverted_dot_product", "inverted dot-product routing", 16, 32, 8)
