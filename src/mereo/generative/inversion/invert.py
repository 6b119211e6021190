"""`invert`: coordinate ascent on the evidence lower bound, for both families of beliefs about parents."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from mereo.core import settle
from mereo.errors import MereoError, UsageError, check_choice, check_positive
from mereo.generative.inversion.free import FreeParents
from mereo.generative.inversion.learning import learn_parameters
from mereo.generative.inversion.prepare import prepare
from mereo.generative.inversion.problem import Children, Mixture, Statistics
from mereo.generative.inversion.sphere import SphereParents

Family = Literal["free", "sphere"]
LEARNABLE = ("sigma", "kappa", "log_prior")


class Inversion(NamedTuple):
    """The result of `invert`.

    Attributes:
        responsibilities: r, the share of child i that component j explains, (..., m, n); 0 for an absent child.
        mean: E v, (..., parents, e).
        covariance: of v, (..., parents, e, e).
        elbo: the bound at the end, (...).
        trace: the bound after the responsibilities of every sweep and at the end, (sweeps + 1, ...).
        sigma, kappa, log_prior: as given, or as learned.
        parents: the beliefs themselves, batch axes flattened to one.
    """

    responsibilities: Tensor
    mean: Tensor
    covariance: Tensor
    elbo: Tensor
    trace: Tensor
    sigma: Tensor
    kappa: Tensor
    log_prior: Tensor
    parents: FreeParents | SphereParents


def invert(
    poses: Tensor,
    transforms: Tensor,
    *,
    sigma: Tensor | float,
    kappa: Tensor | float = 0.0,
    family: Family = "free",
    directions: Tensor | None = None,
    log_prior: Tensor | None = None,
    owner: Tensor | None = None,
    mask: Tensor | None = None,
    prior: Tensor | None = None,
    prior_precision: Tensor | float = 1.0,
    sparsity: float = 0.0,
    start: Tensor | None = None,
    start_parents: tuple[Tensor, Tensor] | None = None,
    sweeps: int = 20,
    starts: int = 1,
    learn: Sequence[str] = (),
    largest_kappa: float = 100.0,
    smallest_sigma: float = 1e-3,
    generator: torch.Generator | None = None,
) -> Inversion:
    """Which parents, with what poses, explain these children: variational inference in the capsule mixture.

        z_i ~ rho,  v_j ~ prior,  V_i | z_i = j ~ N(T_ij v_j, sigma_ij^2 I),  D_i | z_i = j ~ vMF(T_ij v_j, kappa_ij)
        q = prod_i q(z_i) prod_j q(v_j),  r_ij = q(z_i = j) = softmax_j(log rho_j + E log N_ij + E log vMF_ij)
        ELBO = sum_ij r_ij (log rho_j + E log N_ij + E log vMF_ij - log r_ij) - sum_j KL(q(v_j) || p(v_j))

    Args:
        poses: V, the children as they are observed.
        transforms: T, the same for all children when it has no axis of children.
        sigma: standard deviation of a coordinate, above 0.
        kappa: concentration of the directions, at least 0.
        family: "free", Gaussian beliefs about poses of any length under any transform (`FreeParents`), or "sphere",
            beliefs about directions, for orthogonal transforms (`SphereParents`).
        directions: D, of length 1; the poses' own, V / |V|, when None.
        log_prior: log rho up to a constant, -inf for a component that is absent; equal when None.
        owner: int64, the parent of each component, for parents with several parts; when None each is a parent.
        mask: bool, True = the child is there.
        prior: free: the mean of the prior, 0 when None. sphere: its natural parameter, uniform when None.
        prior_precision: free only: a number, one a parent, or matrices.
        sparsity: free only: lambda of a prior exp(-lambda |v_j|) in addition to the Gaussian, which empties parents.
        start: responsibilities to begin with. When None the first start divides every child evenly, and each further
            start at random.
        start_parents: means and covariances to begin with, free only, instead of `start`.
        sweeps: how often responsibilities and beliefs are renewed, at least 1. 5 to 20 do in practice.
        starts: number of random starts. The one with the highest ELBO is kept, for each element of the batch; with
            `learn`, for the whole batch.
        learn: which of "sigma", "kappa" and "log_prior" to fit to the batch, within each sweep, in the shape in which
            they were given: a single number is one parameter, shared by all pairs.
        largest_kappa, smallest_sigma: limits of learning. The direction of a pose counts twice, in V and in D, so
            that kappa would grow without a limit.
        generator: for the random starts.

    Shapes: poses, directions (..., m, d); transforms (m, n, d, e) or (n, d, e); sigma and kappa broadcastable to
        (m, n); log_prior of the same shape; owner (n,) below the number of parents; mask (..., m); prior broadcastable
        to (parents, e); prior_precision (), (parents,) or (parents, e, e); start (..., m, n); start_parents (...,
        parents, e) and (..., parents, e, e).

    Raises UsageError for arguments that do not fit or are out of range, and MereoError if the type of
    `poses` does not hold the bound; half precision is computed in float32.

    The mean field is surer of its assignment than the exact posterior, and may end in a local optimum: give `starts`.
    Nothing here is differentiated: gradients for other parameters come from `elbo` at the result.

    Reference: arXiv:2209.02567, equations 7 and 8; the inversion is ours, docs/generative.md.
    """
    check_choice("family", family, ("free", "sphere"))
    check_positive(sweeps=sweeps, starts=starts, largest_kappa=largest_kappa, smallest_sigma=smallest_sigma)
    for argument, count in {"sweeps": sweeps, "starts": starts}.items():
        if not isinstance(count, int):
            raise UsageError(f"{argument} is {count!r}; it must be a whole number.")
    if largest_kappa == torch.inf:
        raise UsageError("largest_kappa is inf; it must be finite.")
    if isinstance(learn, str):
        raise UsageError(f"learn is {learn!r}; it must be a list of names, such as [{learn!r}].")
    for name in learn:
        check_choice("learn", name, LEARNABLE)
    if starts > 1 and (start is not None or start_parents is not None):
        raise UsageError(f"starts is {starts} and start is given; leave one of them out.")
    limits = (largest_kappa, smallest_sigma)
    with torch.no_grad():
        problem = prepare(
            poses, transforms, sigma, kappa, family, directions, log_prior, owner, mask, prior, prior_precision,
            sparsity, start, start_parents,
        )  # fmt: skip
        best: _Found | None = None
        for number in range(starts):
            begin = problem.start if number == 0 else problem.random_start(generator)
            parents = problem.parents
            try:
                result = _ascend(problem.children, problem.mixture, parents, begin, sweeps, learn, limits)
            except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
                raise _overflow(problem.children) from None
            best = result if best is None else best.or_better(result, whole=bool(learn))
        assert best is not None
        if not (best.trace.isfinite().all() and best.parents.mean.isfinite().all()):
            raise _overflow(problem.children)
    return best.shaped(poses.shape[:-2])


def _overflow(children: Children) -> MereoError:
    largest = children.poses.abs().max().item()
    return MereoError(
        f"the bound is not finite: with this sigma, kappa and prior, poses up to {largest:.3g} are more than"
        f" {children.poses.dtype} holds. Scale poses, sigma and the prior alike, or give poses as float64."
    )


class _Found(NamedTuple):
    responsibilities: Tensor
    parents: FreeParents | SphereParents
    trace: Tensor
    mixture: Mixture

    def or_better(self, other: "_Found", *, whole: bool) -> "_Found":
        """The result with the higher bound, for each element of the batch or for the complete batch."""
        mine, others = self.trace[-1], other.trace[-1]
        if whole:
            return other if others.sum() > mine.sum() else self
        better = others > mine

        def choose(a: Tensor, b: Tensor) -> Tensor:
            return torch.where(better.reshape(-1, *(1,) * (a.dim() - 1)), b, a)

        fields = ("natural",) if isinstance(self.parents, SphereParents) else ("mean", "covariance", "width")
        chosen: dict[str, Any] = {n: choose(getattr(self.parents, n), getattr(other.parents, n)) for n in fields}
        return _Found(
            choose(self.responsibilities, other.responsibilities),
            replace(self.parents, **chosen),
            torch.where(better, other.trace, self.trace),
            self.mixture,
        )

    def shaped(self, batch: torch.Size) -> Inversion:
        """In the layout of the caller."""
        mixture, trace = self.mixture, self.trace

        def rows(x: Tensor) -> Tensor:
            return x.reshape(*batch, *x.shape[1:])

        return Inversion(
            rows(self.responsibilities.mT.contiguous()),
            rows(self.parents.mean),
            rows(self.parents.covariance),
            trace[-1].reshape(batch),
            trace.reshape(len(trace), *batch),
            mixture.sigma.mT,
            mixture.kappa.mT,
            mixture.log_prior.mT,
            self.parents,
        )


class _Beliefs(NamedTuple):
    """The state from which a sweep starts; `slope` is the slope of the bound's tangent, if the prior is sparse."""

    mixture: Mixture
    parents: FreeParents | SphereParents
    responsibilities: Tensor | None = None
    slope: Tensor | None = None


def _ascend(
    children: Children,
    mixture: Mixture,
    parents: FreeParents | SphereParents,
    start: Tensor | None,
    sweeps: int,
    learn: Sequence[str],
    limits: tuple[float, float],
) -> _Found:
    if start is not None:
        _, slope = parents.log_normaliser(mixture, parents.statistics(mixture, children))
        parents = parents.update(mixture, children, start, slope)  # type: ignore[arg-type]
    trace = []

    def expect(state: _Beliefs) -> _Beliefs:
        mixture, statistics = state.mixture, state.parents.statistics(state.mixture, children)
        if learn and state.responsibilities is not None:
            mixture = learn_parameters(
                mixture, children, statistics, state.responsibilities, state.parents, learn, limits
            )
        responsibilities, elbo, slope = assign(mixture, children, state.parents, statistics)
        trace.append(elbo)
        return _Beliefs(mixture, state.parents, responsibilities, slope)

    def sweep(state: _Beliefs) -> _Beliefs:
        state = expect(state)
        parents = state.parents.update(state.mixture, children, state.responsibilities, state.slope)  # type: ignore[arg-type]
        return state._replace(parents=parents)

    last = expect(settle(sweep, _Beliefs(mixture, parents, start), steps=sweeps))
    assert last.responsibilities is not None
    return _Found(last.responsibilities, last.parents, torch.stack(trace), last.mixture)


def assign(
    mixture: Mixture, children: Children, parents: FreeParents | SphereParents, statistics: Statistics
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The best responsibilities for these beliefs, the ELBO there, and the tangent's slope for the next beliefs.

    Shapes: (batch, components, children), (batch,), (batch, components, children) or None.
    """
    log_normaliser, slope = parents.log_normaliser(mixture, statistics)
    scores = mixture.evidence(children, statistics, log_normaliser)
    totals = scores.logsumexp(1)
    responsibilities = scores.softmax(1)  # and not by the totals, whose rounding is large where scores are
    if children.mask is not None:
        responsibilities = responsibilities * children.mask
        totals = totals.masked_fill(~children.mask.squeeze(1), 0)
    return responsibilities, totals.sum(-1) - parents.divergence(), slope
