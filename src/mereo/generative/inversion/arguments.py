"""The arguments of `invert`, each checked and in the layout of routing: components before children."""

import math

import torch
from torch import Tensor

from mereo.errors import UsageError


def check_finite(**tensors: Tensor) -> None:
    """UsageError for tensors with infinite values or NaN."""
    for name, x in tensors.items():
        if not x.isfinite().all():
            raise UsageError(f"{name} has values that are infinite or NaN; they must be finite.")


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
