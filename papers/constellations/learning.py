"""Learning templates and noise of a constellation network from unlabelled points, by ascent on the lower bound.

Source: variational EM as in Nazabal, Tsagkas, Williams 2022, arXiv:2209.03115, for the mixture of arXiv:2209.02567.
Cost: of an epoch, two inversions of all images, images * slots * parts a sweep.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from mereo.errors import UsageError, check_positive
from papers.common.constellations import similarity_basis
from papers.constellations.capsnet import ConstellationCapsNet, Explanation

SMALLEST_SIGMA = 0.02
SWEEPS = 10
"""Of an epoch; the responsibilities are kept for the next."""


class Learned(NamedTuple):
    """A network, the bound of an image after every epoch (epochs,), and its explanations of the training images."""

    network: ConstellationCapsNet
    elbo: Tensor
    explanation: Explanation


def fit_templates(network: ConstellationCapsNet, points: Tensor, explanation: Explanation) -> ConstellationCapsNet:
    """The templates at which the bound is the largest for these beliefs.

    x = G_0 y + p_x G_x y + p_y G_y y is linear in the template p of a part, so that the best is a weighted least
    squares fit: sum r E|G_d y|^2 p = sum r E <G_d y, x - G_0 y>, d = x, y. A part that explains nothing stays.

    Shapes: points (images, slots, 2).
    """
    corners = torch.cat((points.new_zeros(1, 2), torch.eye(2, dtype=points.dtype, device=points.device)))
    basis = similarity_basis(corners)
    still, moving = basis[0], basis[1:] - basis[0]
    r, owner = explanation.responsibilities[..., : len(network.owner)], network.owner
    squares = (explanation.covariance + explanation.mean.unsqueeze(-1) * explanation.mean.unsqueeze(-2))[:, owner]
    squares = torch.einsum("bn,bnef->nef", r.sum(1), squares)
    system = torch.einsum("cxe,dxf,nef->ncd", moving, moving, squares)
    seen = torch.einsum("bmn,bmx,cxe,bne->nc", r, points, moving, explanation.mean[:, owner])
    right = seen - torch.einsum("xe,cxf,nef->nc", still, moving, squares)
    used = r.sum((0, 1)) > 1e-3
    system = torch.where(used[:, None, None], system, torch.eye(2, dtype=points.dtype, device=points.device))
    fitted = torch.linalg.solve(system, right)
    return replace(network, templates=torch.where(used.unsqueeze(-1), fitted, network.templates))


def fit_sigma(network: ConstellationCapsNet, points: Tensor, explanation: Explanation) -> ConstellationCapsNet:
    """The sigma at which the bound is the largest: sigma^2 = sum r E|x - F y|^2 / (2 sum r), at least 0.02.

    Shapes: points (images, slots, 2).
    """
    r, owner, basis = explanation.responsibilities[..., : len(network.owner)], network.owner, network.basis
    places = (basis @ explanation.mean[:, owner].unsqueeze(-1)).squeeze(-1)
    spread = torch.einsum("nde,bnef,ndf->bn", basis, explanation.covariance[:, owner], basis)
    errors = (points.unsqueeze(2) - places.unsqueeze(1)).square().sum(-1) + spread.unsqueeze(1)
    variance = (r * errors).sum() / (2 * r.sum())
    return replace(network, sigma=max(variance.sqrt().item(), SMALLEST_SIGMA))


def _start(points: Tensor, mask: Tensor, generator: torch.Generator, objects: int, parts: int) -> ConstellationCapsNet:
    """Templates that are some points of random images, centred and scaled."""
    full = (mask.sum(1) >= parts).nonzero().squeeze(-1)
    if not len(full):
        raise UsageError(f"parts is {parts}, more than any image has points; give fewer.")
    templates = []
    for _ in range(objects):
        image = full[torch.randint(len(full), (), generator=generator)]
        there = points[image][mask[image]]
        template = there[torch.randperm(len(there), generator=generator)[:parts]]
        template = template - template.mean(0)
        templates.append(template * (parts / template.square().sum().clamp(min=1e-6)) ** 0.5)
    owner = torch.arange(objects, device=points.device).repeat_interleave(parts)
    return ConstellationCapsNet(torch.cat(templates), owner)


def _epochs(
    network: ConstellationCapsNet,
    points: Tensor,
    mask: Tensor,
    generator: torch.Generator,
    before: Explanation | None,
    epochs: int,
    learn_sigma: bool,
) -> Learned:
    """Repeatedly explain every image from its last state and from a new start, keep the better, and fit the network."""
    trace = []
    for _ in range(epochs):
        fresh = network.random_start(mask, generator)
        explanation = network.settle(points, mask, fresh, sigma=network.sigma, sweeps=SWEEPS)
        if before is not None:
            again = network.settle(points, mask, before.responsibilities, sigma=network.sigma, sweeps=SWEEPS)
            explanation = again.or_better(explanation)
        network, before = fit_templates(network, points, explanation), explanation
        if learn_sigma:
            network = fit_sigma(network, points, explanation)
        trace.append(explanation.elbo.mean())
    assert before is not None
    return Learned(network, torch.stack(trace), before)


def learn_constellations(
    points: Tensor,
    mask: Tensor,
    generator: torch.Generator,
    *,
    objects: int = 3,
    parts: int = 4,
    candidates: int = 12,
    epochs: int = 40,
    say: Callable[[str], None] | None = None,
) -> Learned:
    """Learn objects from images whose points have no labels.

    Several candidates start from points of random images and learn their templates for an eighth of the epochs; the one
    with the largest bound continues. Sigma stays broad for the first half and is learned in the second. In each epoch
    every image is explained from its last state and from a new random start, so that the bound never falls.

    Args:
        points, mask: the points, and which slots have one.
        generator: of all random numbers.
        objects, parts: how many objects, and parts of each; a shape with fewer points leaves parts that coincide.
        candidates: how many are started.
        epochs: of the best candidate, at least 4.
        say: called with a line of progress now and then.

    Shapes: points (images, slots, 2), mask (images, slots).

    Reference: arXiv:2209.03115, section 3.3 (with permutations there, with a mixture here).
    """
    check_positive(objects=objects, parts=parts, candidates=candidates)
    if epochs < 4:
        raise UsageError(f"epochs is {epochs}; it must be at least 4.")
    report = say or (lambda line: None)
    early = max(epochs // 8, 1)
    best: Learned | None = None
    for number in range(candidates):
        network = _start(points, mask, generator, objects, parts)
        explanation = _epochs(network, points, mask, generator, None, early, learn_sigma=False)
        report(f"candidate {number + 1} of {candidates}: bound {explanation.elbo[-1]:.3f} after {early} epochs")
        best = explanation if best is None or explanation.elbo[-1] > best.elbo[-1] else best
    assert best is not None
    for count, learn_sigma in ((epochs // 2 - early, False), (epochs - epochs // 2, True)):
        more = _epochs(best.network, points, mask, generator, best.explanation, count, learn_sigma)
        best = Learned(more.network, torch.cat((best.elbo, more.elbo)), more.explanation)
        report(f"bound {best.elbo[-1]:.3f} after {len(best.elbo)} epochs, sigma {best.network.sigma:.3f}")
    return best
