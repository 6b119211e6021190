"""Decoding of pointer networks: a batch whose sets share the steps, compared with a loop over sets."""

from typing import Any

import torch
from torch import Tensor

import mereo
from mereo.bench.counting import FLOAT
from mereo.bench.suite import Contender, Mode, Setting, Suite, Work, Workload


def inputs(setting: Setting, mode: Mode) -> tuple[Any, ...]:
    """Points (batch, points, 2)."""
    return (torch.rand(setting.size("batch"), setting.size("points"), 2, device=setting.device),)


def work(setting: Setting, mode: Mode) -> Work:
    """The cells of both LSTMs and the scores of every step, of one sequence for each set."""
    batch, points, dim = (setting.size(name) for name in ("batch", "points", "dim"))
    cells = 8 * dim * (2 + dim) * (2 * points + 1)
    scores = 2 * dim**2 * (2 * points + 2) + 3 * dim * (points + 1) ** 2
    return Work(batch * (cells + scores), FLOAT * batch * (points * (2 + dim) + points + 1))


def contenders(setting: Setting) -> tuple[Contender, ...]:
    """The loop over sets first; both search tours, so that every step is taken."""
    dim, beam = setting.size("dim"), setting.size("beam")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made: Any = mereo.create_model("pointer_network", dim=dim, embed=True, spread=0.4)
    model = made.to(setting.device).eval()

    def batch(points: Tensor) -> Tensor:
        chosen: Tensor = model.decode(points, beam=beam, constraint="tour")
        return chosen.to(points.dtype)

    def loop(points: Tensor) -> Tensor:
        return torch.cat([batch(each) for each in points.split(1)])

    return Contender("one set at a time", lambda mode: Workload(loop)), Contender("batch", lambda mode: Workload(batch))


POINTERS = Suite(
    "pointers",
    "tours of a pointer network for a batch of sets, compared with one set at a time, by greedy search and by a beam",
    "points (batch, points, 2) -> choices (batch, steps)",
    {"batch": 64, "points": 20, "dim": 64, "beam": 1},
    inputs,
    contenders,
    work,
    sweeps={"beam": (1, 4)},
    quick={"batch": 16, "points": 8},
    modes=("forward",),
    memory=("forward",),
)
