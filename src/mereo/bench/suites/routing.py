"""Dynamic routing: at CapsNet's size, along its sizes, and the memory it takes.

The baseline is written here: votes stored, an einsum for each sum and agreement, gradients by autograd.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mereo.bench.cases import compiled
from mereo.bench.counting import routing_work, stored_votes_bytes, stored_votes_work
from mereo.bench.suite import Contender, Mode, Setting, Suite, UnavailableError, Work, Workload
from mereo.core.kernels import backends
from mereo.mechanisms.routing import dynamic_routing

TAKES = "(children (B, S, d), weight (R, S, d, D), steps) -> parents (B, R, D)"
VOTE_COPIES = {"forward": 3, "training": 6}
"""Tensors of the votes' size that the einsum form has alive at once, nearly."""


def einsum_routing(children: Tensor, weight: Tensor, steps: int) -> Tensor:
    """Procedure 1 of arXiv:1710.09829, term by term."""
    votes = torch.einsum("bsd,rsdh->brsh", children, weight)
    scores = children.new_zeros(votes.shape[:3])
    for step in range(steps):
        couplings = scores.softmax(1)
        total = torch.einsum("brs,brsh->brh", couplings, votes)
        square = total.square().sum(-1, keepdim=True)
        parents = total * square.sqrt() / (1 + square)
        if step < steps - 1:
            scores = scores + torch.einsum("brsh,brh->brs", votes, parents)
    return parents


def _ours(method: str) -> Callable[[Mode], Workload]:
    """dynamic_routing by one method, or the reason why this installation cannot."""

    def build(mode: Mode) -> Workload:
        reason = backends().get(method, "available")
        if reason != "available":
            raise UnavailableError(f"{method}: {reason}")

        def call(children: Tensor, weight: Tensor, steps: int) -> Tensor:
            return dynamic_routing(children, weight, steps, method=method)

        return Workload(call)

    return build


def inputs(setting: Setting, mode: Mode) -> tuple[Any, ...]:
    """Children as capsules are (lengths below 1), weights as a layer starts."""
    size, device = setting.size, setting.device
    children = torch.randn(size("batch"), size("children"), size("child_dim"), device=device)
    children /= 1.5 * size("child_dim") ** 0.5
    shape = (size("parents"), size("children"), size("child_dim"), size("parent_dim"))
    weight = torch.randn(shape, device=device) * (size("children") ** -0.5 + 0.05)
    training = mode == "training"
    return children.requires_grad_(training), weight.requires_grad_(training), size("steps")


def _einsum(setting: Setting) -> Contender:
    def needs(mode: Mode) -> int:
        return VOTE_COPIES[mode] * stored_votes_bytes(setting)

    def work(mode: Mode) -> Work:
        return stored_votes_work(setting, mode)

    return Contender("einsum", lambda mode: Workload(einsum_routing), needs=needs, work=work)


def _methods(setting: Setting, *names: str) -> list[Contender]:
    def contender(name: str) -> Contender:
        plain = _einsum(setting)
        return Contender(name, _ours(name), needs=plain.needs if name == "plain" else lambda mode: 0)

    on_cuda = setting.device.startswith("cuda")
    # The compiled C++ is for CPUs, Triton for GPUs.
    return [contender(name) for name in names if name != ("fused" if on_cuda else "triton")]


def contenders(setting: Setting) -> tuple[Contender, ...]:
    """Einsum, einsum under torch.compile, and every method of ours."""
    naive = _einsum(setting)
    return naive, compiled(naive), *_methods(setting, "plain", "streamed", "fused", "triton")


def growing_contenders(setting: Setting) -> tuple[Contender, ...]:
    """Einsum and the methods that store no votes."""
    return _einsum(setting), *_methods(setting, "streamed", "fused", "triton")


SIZES = {"batch": 128, "children": 1152, "parents": 10, "child_dim": 8, "parent_dim": 16, "steps": 3}

ROUTING = Suite(
    "routing",
    "dynamic routing at CapsNet's size: 1152 children of 8, 10 parents of 16, batch 128, 3 passes",
    TAKES,
    SIZES,
    inputs,
    contenders,
    routing_work,
    quick={"batch": 16, "children": 288},
    threads=(1, 0),
)
ROUTING_SCALING = Suite(
    "routing_scaling",
    "dynamic routing from 10 to 1000 parents and from 144 to 4608 children, operations and time",
    TAKES,
    {**SIZES, "batch": 8},
    inputs,
    growing_contenders,
    routing_work,
    sweeps={"parents": (10, 32, 100, 316, 1000), "children": (144, 576, 1152, 4608)},
    growth=("parents", "children"),
    quick={"batch": 4, "children": 144},
    quick_sweeps={"parents": (8, 32), "children": (72, 288)},
    modes=("training",),
)


def _layer(setting: Setting) -> Setting:
    """The routing that CapsNet has for an image: 32 types of children at every place of its second convolution."""
    side = (setting.size("image") - 17) // 2 + 1
    sizes = {**SIZES, "batch": setting.size("batch"), "children": 32 * side * side, "parents": setting.size("classes")}
    return Setting(sizes, setting.device)


def _automatic(setting: Setting) -> Contender:
    return Contender("auto", _ours("auto"))


MEMORY = Suite(
    "memory",
    "peak memory of a routing layer over classes and image size, up to where stored votes no longer fit",
    TAKES,
    {"batch": 32, "classes": 10, "image": 28},
    lambda setting, mode: inputs(_layer(setting), mode),
    lambda setting: (_einsum(_layer(setting)), _automatic(setting)),
    lambda setting, mode: routing_work(_layer(setting), mode),
    sweeps={"classes": (10, 32, 100, 316, 1000), "image": (28, 40, 56, 80)},
    growth=("classes", "image"),
    quick={"batch": 8},
    quick_sweeps={"classes": (10, 100), "image": (28, 40)},
    modes=("training",),
    timed=False,
    limit=4 * 2**30,
)
