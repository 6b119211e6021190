"""Attention executed: softmax(q k^T scale + bias) v, by the plain verbs or PyTorch's fused call, by predicates."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.core.coupling import Coupling
from mereo.core.kernels.again import twice_differentiable
from mereo.core.kernels.transforms import transformed
from mereo.core.tiles import Tiles
from mereo.core.topology import Causal
from mereo.core.votes import SameVotes
from mereo.errors import UsageError, check_choice, check_finite

FEW_PAIRS = 2**18
"""Pairs of receivers and senders up to which the map of couplings of a head is made where that is faster."""


@dataclass(frozen=True)
class _Exchange:
    """Everything about one call but its tensors."""

    coupling: Coupling
    mask: Tensor | None
    bias: Tensor | None
    scale: float
    tiles: Tiles | None


def _plain(q: Tensor, k: Tensor, v: Tensor, given: _Exchange) -> Tensor:
    scores = SameVotes(k).agree(q * given.scale)
    if given.bias is not None:
        scores = scores + given.bias
    return SameVotes(v).combine(given.coupling(scores, given.mask, tiles=given.tiles))


def _of_one_size(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys as wide as the values by zeros, where PyTorch's fused call would else make a large map.

    On a CPU it computes without the map of couplings only what has one size. The map of few pairs is faster.
    """
    missing = v.shape[-1] - q.shape[-1]
    if missing <= 0 or q.device.type != "cpu" or torch.compiler.is_exporting():
        return q, k
    if q.shape[-2] * k.shape[-2] <= FEW_PAIRS:
        return q, k
    return F.pad(q, (0, missing)), F.pad(k, (0, missing))


def _sdpa(q: Tensor, k: Tensor, v: Tensor, given: _Exchange) -> Tensor:
    out, coupling = _fused(q, k, v, given), given.coupling
    if coupling.dropout and coupling.training:
        return out  # by what cannot be drawn again

    def again(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        scores, mask = SameVotes(k).agree(q * given.scale), given.mask
        if coupling.topology is not None:
            mask = coupling.topology.restrict(mask, q.shape[-2], k.shape[-2], q.device)
        shares = coupling.normalise(scores if bias is None else scores + bias, mask)
        return SameVotes(v).combine(shares.to(v.dtype))

    return twice_differentiable(out, again, q, k, v, given.bias)


def _fused(q: Tensor, k: Tensor, v: Tensor, given: _Exchange) -> Tensor:
    q, k = _of_one_size(q, k, v)
    coupling, mask, bias = given.coupling, given.mask, given.bias
    options: dict[str, Any] = {"dropout_p": coupling.dropout if coupling.training else 0.0, "scale": given.scale}
    if mask is None and bias is None and coupling.topology == Causal() and q.shape[-2] == k.shape[-2]:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, **options)
    if coupling.topology is not None:
        mask = coupling.topology.restrict(mask, q.shape[-2], k.shape[-2], q.device)
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, **options)
    added = mask if bias is None else bias.masked_fill(~mask, torch.finfo(bias.dtype).min)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=added, **options)
    # A receiver with every sender masked out gets zeros by our contract; the backends differ.
    return out.masked_fill(~mask.any(-1, keepdim=True), 0)


def _sdpa_can_run(coupling: Coupling) -> bool:
    # PyTorch's fused attention has no forward-mode derivative.
    return coupling.is_plain_softmax and not (coupling.watched or torch.onnx.is_in_onnx_export() or transformed())


METHODS: dict[str, tuple[Callable[..., Tensor], Callable[[Coupling], bool]]] = {
    "sdpa": (_sdpa, _sdpa_can_run),
    "plain": (_plain, lambda coupling: True),
}
"""Name -> (function, may it run?), the preferred first."""


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    coupling: Coupling,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    tiles: Tiles | None = None,
    method: str = "auto",
) -> Tensor:
    """combine(couple(agree)): what each query becomes.

    Args:
        coupling: makes the couplings; while it is watched, the plain path runs.
        mask: bool, broadcastable to (batch, heads, receivers, senders), True = takes part.
        bias: added to the scores, broadcastable to (batch, heads, receivers, senders), such as one of positions.
        scale: factor of q k^T; 1 / sqrt(dim of the keys) by default.
        tiles: of a mechanism whose batch axis is (batch * tiles): what each tile holds.
        method: "auto", "sdpa" or "plain". Second derivatives of "sdpa" are those of "plain".

    Shapes: q (batch, heads, receivers, dim), k (batch, heads, senders, dim), v (batch, heads, senders, pose)
        -> (batch, heads, receivers, pose).
    """
    check_choice("method", method, ["auto", *METHODS])
    check_finite(scale=scale)
    if scale is None:
        scale = q.shape[-1] ** -0.5
    if method == "auto":
        method = next(name for name, (_, can_run) in METHODS.items() if can_run(coupling))
    run, can_run = METHODS[method]
    if not can_run(coupling):
        raise UsageError(
            f"method is {method!r}, which cannot run {coupling} (watched: {coupling.watched}); use 'plain'."
        )
    return run(q, k, v, _Exchange(coupling, mask, bias, scale, tiles))
