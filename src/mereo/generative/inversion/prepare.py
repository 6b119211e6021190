"""From the arguments of `invert` to the problem that it solves; components before children, as in routing."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mereo.core.inputs import check_finite
from mereo.core.squash import accumulation_type
from mereo.errors import UsageError
from mereo.generative.inversion.free import FreeParents, gram
from mereo.generative.inversion.problem import Children, Mixture
from mereo.generative.inversion.sphere import SphereParents


def read_owner(owner: Tensor | None, n: int, like: Tensor) -> tuple[Tensor | None, int]:
    """The parent of each component, int64 (n,) or None, and the number of parents."""
    if owner is None:
        return None, n
    if owner.shape != (n,) or owner.dtype != torch.int64 or (n and owner.min() < 0):
        raise UsageError(
            f"owner is {owner.dtype} of shape {tuple(owner.shape)}; it must hold, for each of {n} components, the"
            " number of its parent, int64 and from 0."
        )
    return owner.to(like.device), int(owner.max()) + 1


def read_pairs(
    name: str, value: Tensor | float, m: int, n: int, like: Tensor, *, least: float, strictly: bool = False
) -> Tensor:
    """A parameter of pairs as (n or 1, m or 1)."""
    value = torch.as_tensor(value, dtype=like.dtype, device=like.device).detach()
    if value.dim() > 2 or any(size not in (1, full) for size, full in zip(reversed(value.shape), (n, m), strict=False)):
        raise UsageError(f"{name} has shape {tuple(value.shape)}, which does not broadcast to ({m}, {n}).")
    good = value.isfinite() & ((value > least) if strictly else (value >= least))
    if not good.all():
        bad = value[~good].flatten()[0].item()
        raise UsageError(f"{name} has a value of {bad}; it must be finite and {'above' if strictly else 'at least'} 0.")
    return value.reshape((1,) * (2 - value.dim()) + tuple(value.shape)).mT


def read_log_prior(value: Tensor | None, m: int, n: int, like: Tensor) -> Tensor:
    """The normalised prior as (n, 1 or m)."""
    value = like.new_zeros(n) if value is None else value.detach().to(like)
    if value.dim() not in (1, 2) or value.shape[-1] != n or (value.dim() == 2 and value.shape[0] not in (1, m)):
        raise UsageError(f"log_prior has shape {tuple(value.shape)}; it must be ({n},) or ({m}, {n}).")
    if value.isnan().any() or (value == torch.inf).any() or (value == -torch.inf).all(-1).any():
        raise UsageError("log_prior is NaN, +inf, or -inf for every component; one must be there.")
    return value.reshape(-1, n).log_softmax(-1).mT


def read_directions(directions: Tensor | None, batch: torch.Size, m: int, d: int, like: Tensor) -> Tensor | None:
    """The directions of the children, unit or zero, as (count, m, d); None for none."""
    if directions is None:
        return None
    if directions.shape != (*batch, m, d):
        raise UsageError(f"directions has shape {tuple(directions.shape)}; it must have the shape of poses.")
    check_finite(directions=directions)
    directions = directions.detach().to(like).reshape(like.shape)
    length = directions.norm(dim=-1)
    bad = ((length - 1).abs() > 1e-3) & (length > 0)
    if bad.any():
        raise UsageError(f"directions has a row of length {length[bad][0].item():.6g}; it must be 1, or 0 for none.")
    return directions


def read_mask(mask: Tensor | None, batch: torch.Size, m: int) -> Tensor | None:
    """The children that take part as bool (count, m); None for all."""
    if mask is None:
        return None
    if mask.dtype != torch.bool or mask.shape != (*batch, m):
        raise UsageError(f"mask has shape {tuple(mask.shape)} and type {mask.dtype}; it must be bool {(*batch, m)}.")
    return mask.reshape(math.prod(batch), m)


def read_rows(name: str, value: Tensor | None, parents: int, e: int, like: Tensor) -> Tensor:
    """A vector a parent: (parents, e), zero by default."""
    if value is None:
        return like.new_zeros(parents, e)
    try:
        rows = value.detach().to(like).broadcast_to(parents, e)
    except RuntimeError:
        raise UsageError(
            f"{name} has shape {tuple(value.shape)}, which does not broadcast to ({parents}, {e})."
        ) from None
    check_finite(**{name: rows})
    return rows


def read_precision(value: Tensor | float, parents: int, e: int, like: Tensor) -> Tensor:
    """A precision a parent: (parents, e, e)."""
    value = torch.as_tensor(value, dtype=like.dtype, device=like.device).detach()
    if value.shape == (parents, e, e):
        matrices = value
    elif value.shape in ((), (parents,)):
        matrices = value.expand(parents)[:, None, None] * torch.eye(e, dtype=like.dtype, device=like.device)
    else:
        raise UsageError(
            f"prior_precision has shape {tuple(value.shape)}; it must be a number, ({parents},) or"
            f" ({parents}, {e}, {e})."
        )
    check_positive_definite("prior_precision", matrices)
    return matrices


def check_positive_definite(name: str, matrices: Tensor) -> None:
    """UsageError for matrices that are not symmetric and positive definite."""
    check_finite(**{name: matrices})
    if not torch.allclose(matrices, matrices.mT) or torch.linalg.cholesky_ex(matrices).info.any():
        raise UsageError(f"{name} is not symmetric and positive definite; a number must be above 0.")


@dataclass(frozen=True)
class Problem:
    """The problem that `invert` solves; `start` is None if initial beliefs are given instead."""

    children: Children
    mixture: Mixture
    parents: FreeParents | SphereParents
    start: Tensor | None

    def random_start(self, generator: torch.Generator | None) -> Tensor:
        """Every child divided at random among the components that are there."""
        components, (batch, children) = self.mixture.weight.shape[0], self.children.poses.shape[:2]
        like = self.children.poses
        noise = torch.rand(batch, components, children, generator=generator, dtype=like.dtype, device=like.device)
        present = self.mixture.log_prior > -torch.inf
        shares = -noise.clamp(min=1e-12).log() * present
        shares = shares / shares.sum(1, keepdim=True)
        return shares if self.children.mask is None else shares * self.children.mask


def prepare(
    poses: Tensor,
    transforms: Tensor,
    sigma: Tensor | float,
    kappa: Tensor | float,
    family: str,
    directions: Tensor | None,
    log_prior: Tensor | None,
    owner: Tensor | None,
    mask: Tensor | None,
    prior: Tensor | None,
    prior_precision: Tensor | float,
    sparsity: float,
    start: Tensor | None,
    start_parents: tuple[Tensor, Tensor] | None,
) -> Problem:
    """Check everything, and flatten the batch axes to one; see `invert`."""
    if poses.dim() < 2 or 0 in poses.shape[-2:] or not poses.dtype.is_floating_point:
        raise UsageError(
            f"poses has shape {tuple(poses.shape)} and type {poses.dtype}; it must be floating (..., m, d), neither 0."
        )
    batch, (m, d) = poses.shape[:-2], poses.shape[-2:]
    shared = transforms.dim() == 3
    fits = transforms.dim() in (3, 4) and transforms.shape[-2] == d and 0 not in transforms.shape
    if not fits or (not shared and transforms.shape[0] != m):
        raise UsageError(
            f"transforms has shape {tuple(transforms.shape)}; for poses {tuple(poses.shape)} it must be"
            f" ({m}, components, {d}, e), or (components, {d}, e) if all children share them."
        )
    dtype = accumulation_type(poses)
    poses, transforms = (x.detach().to(dtype) for x in (poses, transforms))
    check_finite(poses=poses, transforms=transforms)
    n, e = transforms.shape[-3], transforms.shape[-1]
    weight = (transforms if shared else transforms.transpose(0, 1)).contiguous()
    owner, parents = read_owner(owner, n, poses)
    mixture = Mixture(
        weight,
        read_pairs("sigma", sigma, m, n, poses, least=0.0, strictly=True),
        read_pairs("kappa", kappa, m, n, poses, least=0.0),
        read_log_prior(log_prior, m, n, poses),
        owner,
        parents,
    )
    flat = poses.reshape(math.prod(batch), m, d)
    children = Children.observe(flat, read_directions(directions, batch, m, d, flat), read_mask(mask, batch, m))
    count = flat.shape[0]
    beliefs = (
        _sphere(mixture, prior, prior_precision, sparsity, start_parents, count, e, flat)
        if family == "sphere"
        else _free(mixture, prior, prior_precision, sparsity, start_parents, batch, e, flat)
    )
    return Problem(children, mixture, beliefs, _start(start, start_parents, batch, mixture, children))


def _start(
    start: Tensor | None,
    start_parents: tuple[Tensor, Tensor] | None,
    batch: torch.Size,
    mixture: Mixture,
    children: Children,
) -> Tensor | None:
    n, m = mixture.weight.shape[0], children.poses.shape[1]
    if start is not None and start_parents is not None:
        raise UsageError("start and start_parents are both given; leave one of them out.")
    if start_parents is not None:
        return None
    if start is None:
        present = (mixture.log_prior > -torch.inf).to(children.poses).expand(n, m)
        shares = (present / present.sum(0)).expand(children.poses.shape[0], n, m)
    else:
        if start.shape != (*batch, m, n):
            raise UsageError(f"start has shape {tuple(start.shape)}; it must be {(*batch, m, n)}.")
        shares = start.detach().to(children.poses).reshape(math.prod(batch), m, n).mT
        if not (shares.isfinite().all() and (shares >= 0).all() and ((shares.sum(1) - 1).abs() < 1e-3).all()):
            raise UsageError("start has rows that are not shares; each child's must be at least 0 and sum to 1.")
        if ((shares > 0) & (mixture.log_prior == -torch.inf)).any():
            raise UsageError("start gives a share to a component that is absent by log_prior; it must be 0 there.")
    return shares if children.mask is None else shares * children.mask


def _sphere(
    mixture: Mixture,
    prior: Tensor | None,
    prior_precision: Tensor | float,
    sparsity: float,
    start_parents: tuple[Tensor, Tensor] | None,
    count: int,
    e: int,
    like: Tensor,
) -> SphereParents:
    given = {"sparsity": sparsity != 0, "start_parents": start_parents is not None}
    given["prior_precision"] = isinstance(prior_precision, Tensor) or prior_precision != 1.0
    for name, is_given in given.items():
        if is_given:
            raise UsageError(f"{name} is given with family 'sphere', which has none; leave it out.")
    products = mixture.weight.mT @ mixture.weight
    off = (products - torch.eye(e, dtype=like.dtype, device=like.device)).abs().amax().item()
    if off > 1e-3:
        raise UsageError(
            f"transforms are not orthogonal: T^T T is {off:.3g} away from the identity. family 'sphere' needs |T v| ="
            " |v|; use 'free', or make them so with torch.linalg.qr."
        )
    natural = read_rows("prior", prior, mixture.parents, e, like).expand(count, -1, -1)
    return SphereParents(natural, natural)


def _free(
    mixture: Mixture,
    prior: Tensor | None,
    prior_precision: Tensor | float,
    sparsity: float,
    start_parents: tuple[Tensor, Tensor] | None,
    batch: torch.Size,
    e: int,
    like: Tensor,
) -> FreeParents:
    if not 0 <= sparsity < torch.inf:
        raise UsageError(f"sparsity is {sparsity!r}; it must be a number of at least 0.")
    p = mixture.parents
    mean, precision = read_rows("prior", prior, p, e, like), read_precision(prior_precision, p, e, like)
    count = like.shape[0]
    means, covariances = mean.expand(count, -1, -1), torch.linalg.inv(precision).expand(count, -1, -1, -1)
    if start_parents is not None:
        wanted = ((*batch, p, e), (*batch, p, e, e))
        for x, shape in zip(start_parents, wanted, strict=True):
            if x.shape != shape:
                raise UsageError(f"start_parents has a shape {tuple(x.shape)} where {shape} is needed.")
        means = start_parents[0].detach().to(like).reshape(count, p, e)
        covariances = start_parents[1].detach().to(like).reshape(count, p, e, e)
        check_finite(start_parents=means)
        check_positive_definite("start_parents", covariances)
    # w starts at 1 and is renewed with every belief.
    return FreeParents(means, covariances, mean, precision, gram(mixture.weight), sparsity, like.new_ones(count, p))
