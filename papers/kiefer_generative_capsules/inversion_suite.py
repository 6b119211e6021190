"""Inversion of the capsule mixture: one sweep of each family, and dynamic routing of the same sizes.

The baseline is written here: predictions stored, an einsum for each sum, the full T^T T recomputed.
"""

import math
from typing import Any

import torch
from torch import Tensor

from mereo.bench.counting import FLOAT, routing_work
from mereo.bench.suite import Contender, Mode, Setting, Suite, Work, Workload
from mereo.bench.suites import routing
from mereo.errors import check_choice
from mereo.generative.bessel import log_vmf_normaliser, mean_resultant_length
from mereo.generative.inversion.invert import assign
from mereo.generative.inversion.prepare import Problem, prepare
from mereo.generative.inversion.sphere import SphereParents

TASKS = ("free", "sphere", "routing")
TAKES = (
    "free, sphere: (a mereo.generative.inversion.prepare.Problem) -> responsibilities (B, R, S), means of the parents"
    " (B, R, D); routing: as the suite routing"
)
SIGMA, KAPPA = 0.5, 2.0
COPIES = 3
"""Tensors of the predictions' size that the einsum form has alive at once."""


def _task(setting: Setting) -> str:
    task = setting.word("task")
    check_choice("task", task, TASKS)
    return task


def _routing(setting: Setting) -> Setting:
    """Three passes with parents of the children's size."""
    sizes = {name: setting.size(name) for name in ("batch", "children", "parents")}
    return Setting(
        {**sizes, "child_dim": setting.size("dim"), "parent_dim": setting.size("dim"), "steps": 3}, setting.device
    )


def inversion_work(setting: Setting) -> Work:
    """One sweep of `invert`: agreement and sum of the parents, 2 d e a pair each.

    Free beliefs: their second moments and precisions meet T^T T, e (e + 1) a pair each, and every precision is
    factored, inverted and solved with, e^3 + 2 e^2. T^T T is there already.
    """
    batch, children, parents, dim = (setting.size(name) for name in ("batch", "children", "parents", "dim"))
    pairs, free = batch * parents * children, setting.word("task") == "free"
    flops, numbers = 4 * pairs * dim**2, batch * children * dim + parents * children * dim**2 + pairs
    beliefs = batch * parents * dim
    if free:
        flops += 2 * pairs * dim * (dim + 1) + batch * parents * (dim**3 + 2 * dim**2)
        numbers += parents * children * dim * (dim + 1) // 2
        beliefs *= 1 + dim
    return Work(flops, FLOAT * (numbers + 2 * beliefs))


def stored_predictions_bytes(setting: Setting) -> int:
    """The tensor of every parent's prediction for every child."""
    return FLOAT * setting.size("batch") * setting.size("children") * setting.size("parents") * setting.size("dim")


def stored_predictions_work(setting: Setting) -> Work:
    """A sweep with predictions stored: written once, read for the scores; weighted votes written and read."""
    passes = 5 if setting.word("task") == "free" else 4  # the free beliefs read them for their squares too
    return Work(inversion_work(setting).flops, passes * stored_predictions_bytes(setting))


def inputs(setting: Setting, mode: Mode) -> tuple[Any, ...]:
    """Children of length 1 or so, orthogonal transforms, and parents as their prior has them."""
    task, size, device = _task(setting), setting.size, setting.device
    if task == "routing":
        return routing.inputs(_routing(setting), mode)
    poses = torch.randn(size("batch"), size("children"), size("dim"), device=device) / size("dim") ** 0.5
    weight = torch.linalg.qr(torch.randn(size("parents"), size("children"), size("dim"), size("dim"), device=device))[0]
    prior = torch.randn(size("parents"), size("dim"), device=device)
    problem = prepare(
        poses, weight.transpose(0, 1), SIGMA, KAPPA, task, None, None, None, None, prior, 1.0, 0.0, None, None
    )
    return (problem,)


def sweep(problem: Problem) -> tuple[Tensor, Tensor]:
    """Responsibilities from beliefs, beliefs from responsibilities, as `invert` does it."""
    mixture, children, parents = problem.mixture, problem.children, problem.parents
    responsibilities, _, slope = assign(mixture, children, parents, parents.statistics(mixture, children))
    parents = parents.update(mixture, children, responsibilities, slope)  # type: ignore[arg-type]
    return responsibilities, parents.mean


def einsum_sweep(problem: Problem) -> tuple[Tensor, Tensor]:
    """The same, term by term."""
    mixture, parents, poses = problem.mixture, problem.parents, problem.children.poses
    weight, sigma, kappa, d = mixture.weight, mixture.sigma, mixture.kappa, mixture.dimension
    directions = poses / poses.norm(dim=-1, keepdim=True)
    seen = (poses / sigma**2 + kappa * directions).unsqueeze(1)
    predictions = torch.einsum("rsde,bre->brsd", weight, parents.mean)
    fits = (predictions * seen).sum(-1) - poses.square().sum(-1).unsqueeze(1) / (2 * sigma**2)
    constant = mixture.log_prior - d / 2 * (2 * math.pi * sigma**2).log()
    if isinstance(parents, SphereParents):
        scores = constant + fits - 1 / (2 * sigma**2) + log_vmf_normaliser(d, kappa)
        responsibilities = scores.softmax(1)
        pull = torch.einsum("rsde,brsd->bre", weight, responsibilities.unsqueeze(-1) * seen)
        return responsibilities, SphereParents(parents.prior + pull, parents.prior).mean
    gram = torch.einsum("rsde,rsdf->rsef", weight, weight)
    squares = predictions.square().sum(-1) + torch.einsum("bref,rsef->brs", parents.covariance, gram)
    xi = kappa * squares.sqrt()
    responsibilities = (constant + fits - squares / (2 * sigma**2) + log_vmf_normaliser(d, xi)).softmax(1)
    sure = responsibilities * (1 / sigma**2 + kappa**2 * mean_resultant_length(d, xi) / xi)
    precision = parents.prior_precision + torch.einsum("brs,rsef->bref", sure, gram)
    known = torch.einsum("ref,rf->re", parents.prior_precision, parents.prior_mean)
    pull = known + torch.einsum("rsde,brsd->bre", weight, responsibilities.unsqueeze(-1) * seen)
    return responsibilities, torch.linalg.solve(precision, pull)


def contenders(setting: Setting) -> tuple[Contender, ...]:
    """Einsum and `invert`; for routing, all that the suite of it has."""
    if _task(setting) == "routing":
        return routing.contenders(_routing(setting))
    plain = Contender(
        "einsum",
        lambda mode: Workload(einsum_sweep),
        needs=lambda mode: COPIES * stored_predictions_bytes(setting),
        work=lambda mode: stored_predictions_work(setting),
    )
    return plain, Contender("invert", lambda mode: Workload(sweep))


def work(setting: Setting, mode: Mode) -> Work:
    """Operations and traffic of the sweep, or of the routing."""
    return routing_work(_routing(setting), mode) if _task(setting) == "routing" else inversion_work(setting)


INVERSION = Suite(
    "inversion",
    "one sweep of the capsule mixture's inversion, free and on the sphere, and three passes of dynamic routing",
    TAKES,
    {"batch": 128, "children": 1152, "parents": 10, "dim": 16, "task": "free"},
    inputs,
    contenders,
    work,
    sweeps={"task": TASKS},
    quick={"batch": 8, "children": 144},
    modes=("forward",),
    memory=("forward",),
)
