"""Gaussians fitted to the votes of windows without the tensor of votes, and the log density of every vote.

    V_nrs = U_ns W_rs,   mean, variance of V_nr under the weights w_nr,   fit_nrs = log N(V_nrs; mean, variance)

`fit_gaussians` and `log_density` are the same from stored votes. Here votes are made again in every pass, forward and
backward: in compiled C++ (`gaussians.cpp`, float32 on a CPU), a window and receiver at a time, or in PyTorch, a few
windows at a time. Couplings stay tensors, so that they can be recorded and changed whichever way runs.

Cost of a pass for N windows, S senders, R receivers and poses of A x C: about 2 N R S A C (K + 7) FLOPs forward and
2 N R S A C (3 K + 12) backward. Saved for the gradient: poses, transforms, weights, mean and variance.
"""

import math
from collections.abc import Callable
from ctypes import c_float, c_int, c_int64, c_void_p
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mereo.core.kernels import library
from mereo.core.kernels.again import gradients_again
from mereo.core.kernels.direct import direct, direct_operator
from mereo.core.kernels.gaussians import EMPTY, LEAST_FIT, Floor, fit_gaussians, log_density
from mereo.core.kernels.library import at, entry
from mereo.core.kernels.methods import execute
from mereo.core.kernels.transforms import fallback_reason
from mereo.core.modes import unconverted

TILE_BYTES = 1 << 24
"""Bytes of the votes of windows that PyTorch computes together; more windows share one reading of the transforms."""

Result = tuple[Tensor, Tensor, Tensor | None]

_sizes = (*[c_int64] * 7, c_float, c_int)
_fit = entry("mereo_gaussians", *[c_void_p] * 6, *_sizes)
_pull = entry("mereo_gaussians_gradients", *[c_void_p] * 11, *_sizes)


def fitted(
    poses: Tensor, weight: Tensor, weights: Tensor, floor: Floor, *, with_fit: bool = True, method: str = "auto"
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Mean and variance of the votes of every window for every receiver, and how well each vote fits them.

    Args:
        poses, weight: U and W.
        weights: how much each vote counts.
        floor: the least variance.
        with_fit: whether the log density is wanted.
        method: "compiled", "streamed" (PyTorch), "stored", or "auto".

    Shapes: poses (windows, senders, rows, inner), weight (receivers, senders, inner, columns), weights (windows,
        receivers, senders) -> mean, variance (windows, receivers, rows * columns), fit (windows, receivers, senders).
    """
    mean, variance, fit = execute(METHODS, Fit(poses, weight, weights, floor, with_fit), method, always="stored")
    return mean, variance, fit if with_fit else None


class Fit(NamedTuple):
    """One call: the arguments of `fitted`."""

    poses: Tensor
    weight: Tensor
    weights: Tensor
    floor: Floor
    with_fit: bool


def _stored(call: Fit) -> Result:
    votes = torch.einsum("nsak,rskc->nrsac", call.poses, call.weight).flatten(3)
    moments = fit_gaussians(votes, call.weights, call.floor)
    return moments.mean, moments.variance, log_density(votes, moments) if call.with_fit else None


def _without_votes(method: str) -> Callable[[Fit], Result]:
    def run(call: Fit) -> Result:
        options = (call.floor.least, call.floor.clamps, call.with_fit, method)
        result: Result = direct(_pass, call.poses, call.weight, call.weights, *options)
        return result

    return run


def _streamed_cannot(call: Fit) -> str | None:
    if 0 in (*call.poses.shape, *call.weight.shape):
        return f"poses are {tuple(call.poses.shape)} and weight is {tuple(call.weight.shape)}"
    return fallback_reason()


def _compiled_cannot(call: Fit) -> str | None:
    tensors = (call.poses, call.weight)
    if library.missing is None and any(x.dtype != torch.float32 or x.device.type != "cpu" for x in tensors):
        return f"it computes in float32 on a CPU, and poses are {call.poses.dtype} on {call.poses.device}"
    return library.missing or _streamed_cannot(call)


METHODS: dict[str, tuple[Callable[[Fit], Result], Callable[[Fit], str | None]]] = {
    "compiled": (_without_votes("compiled"), _compiled_cannot),
    "streamed": (_without_votes("streamed"), _streamed_cannot),
    "stored": (_stored, lambda call: None),
}
"""Name -> (function, why it cannot run: None if it can), the preferred first."""


def _lengths(poses: Tensor, weight: Tensor) -> tuple[int, ...]:
    windows, senders, rows, inner = poses.shape
    return windows, senders, weight.shape[0], rows, inner, weight.shape[3], torch.get_num_threads()


@direct_operator("mereo::gaussians")
def _pass(
    poses: Tensor, weight: Tensor, weights: Tensor, least: float, clamps: bool, with_fit: bool, method: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and, or else empty, fit."""
    windows, receivers, senders = weights.shape
    mean = poses.new_empty(windows, receivers, poses.shape[2] * weight.shape[3])
    variance, fit = torch.empty_like(mean), poses.new_empty((windows, receivers, senders) if with_fit else 0)
    if method == "compiled":
        assert _fit is not None
        given = [x.contiguous() for x in (poses, weight, weights)]
        pointers = map(at, (*given, mean, variance, fit if with_fit else None))
        _fit(*pointers, *_lengths(poses, weight), least, int(clamps))
        return mean, variance, fit
    transforms = _block_transforms(weight, poses.shape[2])
    for first, last in _tiles(poses, weight):
        share, total = _shares(weights[first:last])
        away = _votes(poses[first:last], transforms, mean.shape[2])
        here = (away * share).sum(0)
        away -= here
        parts = away * share
        rest = torch.where(total.squeeze(0) > EMPTY, parts.sum(0), 0)  # as in `fit_gaussians`
        spread = parts.mul_(away).sum(0).sub_(rest.square()).clamp_(min=0)
        spread = Floor(least, clamps)(spread)
        mean[first:last], variance[first:last] = here + rest, spread
        if with_fit:
            away.sub_(rest).square_()
            constant = (2 * math.pi * spread).log().sum(-1)
            fits = away.mul_(1 / spread).sum(-1).add_(constant).div_(-2).clamp_(min=LEAST_FIT)
            fit[first:last] = fits.permute(1, 2, 0)
    return mean, variance, fit


@_pass.register_fake
def _(poses: Tensor, weight: Tensor, weights: Tensor, *options: Any) -> tuple[Tensor, Tensor, Tensor]:
    windows, receivers, senders = weights.shape
    mean = poses.new_empty(windows, receivers, poses.shape[2] * weight.shape[3])
    fit = poses.new_empty((windows, receivers, senders) if options[2] else (0,))
    return mean, torch.empty_like(mean), fit


@torch.library.custom_op("mereo::gaussians_gradients", mutates_args=())
def _pass_gradients(
    poses: Tensor,
    weight: Tensor,
    weights: Tensor,
    mean: Tensor,
    variance: Tensor,
    d_mean: Tensor,
    d_variance: Tensor,
    d_fit: Tensor | None,
    least: float,
    clamps: bool,
    method: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of poses, weight and weights."""
    d_poses, d_weight, d_weights = (
        torch.empty_like(x, memory_format=torch.contiguous_format) for x in (poses, weight, weights)
    )
    if method == "compiled":
        assert _pull is not None
        tensors = (poses, weight, weights, mean, variance, d_mean, d_variance, d_fit)
        given = [None if x is None else x.contiguous() for x in tensors]
        pointers = map(at, (*given, d_poses, d_weight, d_weights))
        _pull(*pointers, *_lengths(poses, weight), least, int(clamps))
        return d_poses, d_weight, d_weights
    rows, inner, columns = poses.shape[2], poses.shape[3], weight.shape[3]
    transforms = _block_transforms(weight, rows)
    d_transforms = torch.zeros_like(transforms)
    precision, free = 1 / variance, variance > least if clamps else torch.ones_like(variance, dtype=torch.bool)
    for first, last in _tiles(poses, weight):
        share, total = _shares(weights[first:last])
        away = _votes(poses[first:last], transforms, mean.shape[2]).sub_(mean[first:last])
        q, to_mean, to_variance = precision[first:last], d_mean[first:last], d_variance[first:last]
        grad = torch.zeros((), dtype=away.dtype, device=away.device)
        if d_fit is not None:
            grad = d_fit[first:last].permute(2, 0, 1).unsqueeze(-1)
            far = (away.square() * q).sum(-1, keepdim=True)
            grad = torch.where(far < -2 * LEAST_FIT, grad, 0)
            part = grad * away
            to_mean = to_mean + q * part.sum(0)
            to_variance = to_variance + q / 2 * (q * part.mul_(away).sum(0) - grad.sum(0))
        to_variance = torch.where(free[first:last], to_variance, 0)
        change = (away * (to_mean + to_variance * away)).sum(-1, keepdim=True)
        empty = total <= EMPTY
        change = change + torch.where(empty, (to_mean * mean[first:last]).sum(-1, keepdim=True), 0)
        change = change - torch.where(empty, 0, (share * change).sum(0))
        d_weights[first:last] = (change / total.clamp(min=EMPTY)).squeeze(-1).permute(1, 2, 0)
        away.mul_(2 * share * to_variance - grad * q).add_(share * to_mean)
        flat, back = away.flatten(2), poses[first:last].transpose(0, 1).flatten(2)
        d_poses[first:last] = (flat @ transforms.mT).transpose(0, 1).unflatten(2, (rows, inner))
        d_transforms.baddbmm_(back.mT, flat)
    blocks = d_transforms.unflatten(2, (-1, rows, columns)).unflatten(1, (rows, inner))
    # The off-diagonal blocks are not parameters.
    d_weight.copy_(torch.einsum("sakrac->rskc", blocks))
    return d_poses, d_weight, d_weights


@_pass_gradients.register_fake
def _(poses: Tensor, weight: Tensor, weights: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    return poses.new_empty(poses.shape), weight.new_empty(weight.shape), weights.new_empty(weights.shape)


def _tiles(poses: Tensor, weight: Tensor) -> list[tuple[int, int]]:
    """From which window to which votes are made together."""
    each = poses.shape[1] * weight.shape[0] * poses.shape[2] * weight.shape[3] * poses.itemsize
    step = max(1, TILE_BYTES // max(each, 1))
    return [(first, min(first + step, len(poses))) for first in range(0, len(poses), step)]


def _block_transforms(weight: Tensor, rows: int) -> Tensor:
    """One matrix a sender that maps its whole pose to its votes for all receivers: block diagonal for each receiver.

    Shapes: weight (receivers, senders, inner, columns) -> (senders, rows * inner, receivers * rows * columns).
    """
    receivers, senders, inner, columns = weight.shape
    blocks = weight.new_zeros(senders, rows, inner, receivers, rows, columns)
    for row in range(rows):
        blocks[:, row, :, :, row] = weight.permute(1, 2, 0, 3)
    return blocks.flatten(3).flatten(1, 2)


def _votes(poses: Tensor, transforms: Tensor, pose: int) -> Tensor:
    """Votes of some windows: (senders, windows, receivers, pose)."""
    return torch.bmm(poses.transpose(0, 1).flatten(2), transforms).unflatten(2, (-1, pose))


def _shares(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (windows, receivers, senders) divided by their sums: (senders, windows, receivers, 1), and the sums."""
    total = weights.sum(-1).unsqueeze(-1)
    return (weights / total.clamp(min=EMPTY)).permute(2, 0, 1).unsqueeze(-1), total


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    poses, weight, weights, ctx.least, ctx.clamps, ctx.with_fit, ctx.method = inputs
    ctx.save_for_backward(poses, weight, weights, output[0], output[1])


def _gradients(ctx: Any, d_mean: Tensor, d_variance: Tensor, d_fit: Tensor) -> tuple[Any, ...]:
    if fallback_reason() is None and not torch.is_grad_enabled():
        given = (*ctx.saved_tensors, d_mean, d_variance, d_fit if ctx.with_fit else None)
        with unconverted(d_mean):  # a backward pass inside of autocast
            return *_pass_gradients(*given, ctx.least, ctx.clamps, ctx.method), None, None, None, None
    # Second derivatives come from the plain operations.

    def again(poses: Tensor, weight: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        floor = Floor(ctx.least, ctx.clamps)
        return fitted(poses, weight, weights, floor, with_fit=ctx.with_fit, method="stored")

    given = (d_mean, d_variance, d_fit if ctx.with_fit else None)
    return *gradients_again(again, ctx.saved_tensors[:3], given), None, None, None, None


_pass.register_autograd(_gradients, setup_context=_save)
