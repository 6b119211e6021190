"""Saliency in two phases: the gradient of a virtual layer's weights at each place, made one number.

Source: Rebuffi, Fong, Ji, Vedaldi 2020, arXiv:2004.02866, section 3.
Cost: a pass over the signals; the norm, sum and extremes of an outer product follow from those of its factors.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.errors import UsageError, check_choice

Phase1 = Literal["scaling", "bias", "conv1x1", "conv3x3", "conv3x3_depthwise", "real"]
Phase2 = Literal["sum", "norm", "positive_norm", "max", "abs_max"]
PHASE1: tuple[Phase1, ...] = ("scaling", "bias", "conv1x1", "conv3x3", "conv3x3_depthwise", "real")
PHASE2: tuple[Phase2, ...] = ("sum", "norm", "positive_norm", "max", "abs_max")


def _factors(x: Tensor, g: Tensor, phase1: Phase1, real: nn.Conv2d | None) -> tuple[Tensor, Tensor]:
    """The factors of the outer product of each group: (batch, groups, outputs, *map), (batch, groups, inputs, *map)."""
    channels, sides = x.shape[1], g.shape[2:]
    if phase1 == "bias":
        return g.unsqueeze(2), torch.ones_like(g).unsqueeze(2)
    if phase1 == "scaling":
        return g.unsqueeze(2), x.unsqueeze(2)
    if phase1 == "real":
        if real is None:
            raise UsageError("phase1 is 'real'; give as layer a convolution of the network, an nn.Conv2d.")
        if isinstance(real.padding, str) or real.padding_mode != "zeros":
            raise UsageError(f"phase1 is 'real', and the layer pads with {real.padding!r}, {real.padding_mode!r}.")
        patches = F.unfold(x, real.kernel_size, real.dilation, real.padding, real.stride)
        groups = real.groups
    else:
        side, groups = (1 if phase1 == "conv1x1" else 3), (channels if phase1 == "conv3x3_depthwise" else 1)
        patches = F.unfold(x, side, padding=side // 2)
    return g.unflatten(1, (groups, -1)), patches.unflatten(1, (groups, -1)).unflatten(3, sides)


def aggregate(x: Tensor, g: Tensor, phase1: Phase1, phase2: Phase2, real: nn.Conv2d | None = None) -> Tensor:
    """What each place contributes to the gradient of a layer's weights, as one number.

    A layer of that kind with the weights of the identity is thought to stand behind the activation x; u is a place:

    scaling: x_u * g_u     bias: g_u     conv1x1: g_u x_u^T     conv3x3: g_u patch_u(x)^T, zeros around the map
    conv3x3_depthwise: g_cu patch_cu(x) for each channel c      real: a convolution of the network

    then the sum of these numbers, their Euclidean norm, the norm of the positive ones, the largest, or the largest
    modulus.

    Args:
        x, g: activation, and derivative of the explained value by it; for "real" the input of the convolution, and the
            derivative by its output.
        phase1, phase2: one of `PHASE1` and of `PHASE2`.
        real: the convolution, for "real".

    Shapes: x, g (batch, channels, rows, columns) -> (batch, 1, rows, columns).

    Reference: arXiv:2004.02866, section 3 and table 1.
    """
    check_choice("phase1", phase1, PHASE1)
    check_choice("phase2", phase2, PHASE2)
    if x.dim() != 4 or g.dim() != 4 or (phase1 != "real" and x.shape != g.shape):
        raise UsageError(
            f"x is {tuple(x.shape)} and g {tuple(g.shape)}; both must be (batch, channels, rows, columns)."
        )
    out, into = _factors(x, g, phase1, real)
    if phase2 == "sum":
        made = (out.sum(2) * into.sum(2)).sum(1)
    elif phase2 == "norm":
        made = (out.square().sum(2) * into.square().sum(2)).sum(1).sqrt()
    elif phase2 == "positive_norm":
        # A product is positive if both factors are, or neither.
        parts = [f(out).square().sum(2) * f(into).square().sum(2) for f in (torch.relu, lambda t: torch.relu(-t))]
        made = (parts[0] + parts[1]).sum(1).sqrt()
    elif phase2 == "abs_max":
        made = (out.abs().amax(2) * into.abs().amax(2)).amax(1)
    else:
        ends = [a * b for a in (out.amax(2), out.amin(2)) for b in (into.amax(2), into.amin(2))]
        made = torch.stack(ends).amax(0).amax(1)
    return made.unsqueeze(1)


def combine_layers(
    maps: Sequence[Tensor],
    weights: Sequence[float] | Literal["uniform", "depth"] = "uniform",
    mode: Literal["product", "sum"] = "product",
    size: tuple[int, int] | None = None,
) -> Tensor:
    """One map of several layers': each resized bilinearly and scaled to [0, 1], then their weighted mean.

    product: prod_l S_l^(w_l / sum w)     sum: sum_l w_l S_l / sum w

    A map that is the same everywhere counts as zeros.

    Args:
        weights: at least 0, in the order of the maps; "depth" is 1 / L, 2 / L ... 1.
        size: of the result, by default the largest map's.

    Shapes: maps (batch, 1, rows, columns) -> (batch, 1, *size).

    Reference: arXiv:2004.02866, section 4.
    """
    check_choice("mode", mode, ("product", "sum"))
    count = len(maps)
    if isinstance(weights, str):
        check_choice("weights", weights, ("uniform", "depth"))
        weights = [1.0] * count if weights == "uniform" else [(n + 1) / count for n in range(count)]
    if len(weights) != count or not count or min(weights) < 0 or not sum(weights) > 0:
        raise UsageError(f"weights is {list(weights)} for {count} maps; give a number of at least 0 for each.")
    size = size or max(((each.shape[2], each.shape[3]) for each in maps), key=lambda sides: sides[0] * sides[1])
    total = None
    for each, weight in zip(maps, weights, strict=True):
        unit, share = unit_range(resized(each, size)), weight / sum(weights)
        part = unit**share if mode == "product" else share * unit
        total = part if total is None else total * part if mode == "product" else total + part
    assert total is not None
    return total


def resized(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Maps (batch, 1, rows, columns) at another size, by bilinear interpolation."""
    return maps if maps.shape[2:] == size else F.interpolate(maps, size, mode="bilinear", align_corners=False)


def unit_range(maps: Tensor) -> Tensor:
    """Each map (batch, 1, rows, columns) moved and scaled to [0, 1]; zeros if it is the same everywhere."""
    low, high = maps.amin((2, 3), keepdim=True), maps.amax((2, 3), keepdim=True)
    return torch.where(high > low, (maps - low) / (high - low).clamp(min=torch.finfo(maps.dtype).tiny), 0.0)
