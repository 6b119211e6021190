"""Sampled scanpaths of one scene: a batch with cached keys and values, compared with the loop of the authors' code."""

from typing import Any

import torch
from torch import Tensor

import mereo
from mereo.bench.counting import FLOAT
from mereo.bench.suite import Contender, Mode, Setting, Suite, Work, Workload


def inputs(setting: Setting, mode: Mode) -> tuple[Any, ...]:
    """A scene, and the random numbers that decide each fixation, so that both give the same paths."""
    scene = _network(setting).example_inputs(1)
    draws = torch.rand(1, setting.size("samples"), setting.size("steps"), generator=torch.Generator().manual_seed(1))
    return scene.to(setting.device), draws.to(setting.device)


def _network(setting: Setting) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        name = "oat" if setting.size("published") else "oat_small"
        return mereo.create_model(name).to(setting.device).eval()


def work(setting: Setting, mode: Mode) -> Work:
    """The decoder's projections for every step of every path."""
    dim, depth = (512, 4) if setting.size("published") else (64, 2)
    steps = setting.size("samples") * setting.size("steps")
    return Work(steps * depth * 20 * dim**2, FLOAT * steps)


def again(model: Any, scene: Tensor, draws: Tensor) -> Tensor:
    """One sample after the other; every step runs the crops, the encoder and the whole path so far."""
    found = torch.full(draws.shape, -1, device=draws.device)
    for sample in range(draws.shape[1]):
        for step in range(draws.shape[2]):
            shelf = model.forward_features(scene)
            shares = model.score(shelf, found[:, sample, :step])[:, -1].exp()
            if step == 0:
                shares[:, -1] = 0
            sums = shares.cumsum(-1)
            choice = (sums <= draws[:, sample, step, None] * sums[:, -1:]).sum(-1)
            if int(choice) == scene.shape[1] - 1:
                break
            found[:, sample, step] = choice
    return found


def contenders(setting: Setting) -> tuple[Contender, ...]:
    """The loop first."""
    model = _network(setting)

    @torch.no_grad()
    def cached(scene: Tensor, draws: Tensor) -> Tensor:
        shelf, (_, samples, steps) = model.forward_features(scene), draws.shape
        paths: Tensor = model.search(shelf, samples, sample=True, draws=draws, max_len=steps).fixations
        return paths.to(scene.dtype)

    @torch.no_grad()
    def loop(scene: Tensor, draws: Tensor) -> Tensor:
        return again(model, scene, draws).to(scene.dtype)

    return (
        Contender("everything again", lambda mode: Workload(loop)),
        Contender("cached batch", lambda mode: Workload(cached)),
    )


OAT = Suite(
    "oat",
    "sampled scanpaths of a scene in one cached batch, compared with a loop that runs everything again at each step",
    "scene (1, objects + 1, features), draws (1, samples, steps) -> fixations (1, samples, steps)",
    {"samples": 100, "steps": 10, "published": 0},
    inputs,
    contenders,
    work,
    quick={"samples": 4, "steps": 3},
    modes=("forward",),
    memory=(),
)
