"""Attention executed: softmax(q k^T scale + bias) v, by the plain verbs or PyTorch's fused call, by predicates."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.core.coupling import Coupling
from mereo.core.kernels.again import twice_differentiable
from mereo.core.kernels.methods import execute
from mereo.core.kernels.transforms import traced_for_onnx, transformed
from mereo.core.topology import Causal, Topology
from mereo.core.votes import SameVotes
from mereo.errors import check_finite

FEW_PAIRS = 2**18
"""Pairs of receivers and senders up to which the map of couplings of a head is made if that is faster."""


@dataclass(slots=True)
class _Exchange:
    """One call."""

    q: Tensor
    k: Tensor
    v: Tensor
    coupling: Coupling
    mask: Tensor | None
    bias: Tensor | None
    scale: float
    tiles: Topology | None


def _plain(given: _Exchange) -> Tensor:
    scores = SameVotes(given.k).agree(given.q * given.scale)
    if given.bias is not None:
        scores = scores + given.bias
    return SameVotes(given.v).combine(given.coupling(scores, given.mask, tiles=given.tiles))


def _of_one_size(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys padded with zeros to the width of the values, if PyTorch's fused call would make a large map.

    On a CPU that call avoids the map of couplings only for equal widths. For few pairs the map is faster.
    """
    missing = v.shape[-1] - q.shape[-1]
    if missing <= 0 or q.device.type != "cpu" or torch.compiler.is_exporting():
        return q, k
    if q.shape[-2] * k.shape[-2] <= FEW_PAIRS:
        return q, k
    return F.pad(q, (0, missing)), F.pad(k, (0, missing))


def _sdpa(given: _Exchange) -> Tensor:
    out, coupling = _fused(given), given.coupling
    if not out.requires_grad or (coupling.dropout and coupling.training):
        return out  # the dropout mask cannot be drawn again

    def again(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        scores, mask = SameVotes(k).agree(q * given.scale), given.mask
        if coupling.topology is not None:
            mask = coupling.topology.restrict(mask, q.shape[-2], k.shape[-2], q.device)
        shares = coupling.normalise(scores if bias is None else scores + bias, mask)
        return SameVotes(v).combine(shares.to(v.dtype))

    return twice_differentiable(out, again, given.q, given.k, given.v, given.bias)


def _fused(given: _Exchange) -> Tensor:
    q, k = _of_one_size(given.q, given.k, given.v)
    v, coupling, mask, bias = given.v, given.coupling, given.mask, given.bias
    options: dict[str, Any] = {"dropout_p": coupling.dropout if coupling.training else 0.0, "scale": given.scale}
    last = coupling.topology == Causal() and q.shape[-2] == 1  # the last token attends to all
    if mask is None and (coupling.topology is None or last):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, **options)
    if mask is None and bias is None and coupling.topology == Causal() and q.shape[-2] == k.shape[-2]:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, **options)
    if coupling.topology is not None:
        mask = coupling.topology.restrict(mask, q.shape[-2], k.shape[-2], q.device)
    assert mask is not None
    added = mask if bias is None else bias.masked_fill(~mask, torch.finfo(bias.dtype).min)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=added, **options)
    # A receiver with every sender masked out gets zeros by our contract; the backends differ.
    return out.masked_fill(~mask.any(-1, keepdim=True), 0)


def _sdpa_cannot(given: _Exchange) -> str | None:
    if not given.coupling.is_plain_softmax:
        return f"it does not support {given.coupling}"
    if given.coupling.watched:
        return "the couplings are observed"
    # PyTorch's fused attention has no forward-mode derivative.
    return "a derivative or an export needs the plain operations" if transformed() or traced_for_onnx() else None


METHODS: dict[str, tuple[Callable[[_Exchange], Tensor], Callable[[_Exchange], str | None]]] = {
    "sdpa": (_sdpa, _sdpa_cannot),
    "plain": (_plain, lambda given: None),
}
"""Name -> (function, why it cannot run: None if it can), the preferred first."""


def _first_watched(q: Tensor, k: Tensor, coupling: Coupling, mask: Tensor | None, bias: Tensor | None) -> int:
    """The first row of causal attention of a sequence to itself that an observer wants to see; 0 for all rows.

    An observer of some rows has a method `first_row` (receivers, senders) -> row. It sees only these rows, as if the
    others had been read before.
    """
    rows = [getattr(each, "first_row", None) for each in coupling.observers]
    if None in rows or not coupling.is_plain_softmax or (coupling.dropout and coupling.training):
        return 0
    first = min(row(q.shape[-2], k.shape[-2]) for row in rows if row is not None)
    whole = mask is None and bias is None and coupling.topology == Causal() and q.shape[-2] == k.shape[-2]
    hooked = coupling._forward_hooks or coupling._forward_pre_hooks
    return first if whole and not hooked and not q.requires_grad and not transformed() else 0


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    coupling: Coupling,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    tiles: Topology | None = None,
    method: str = "auto",
) -> Tensor:
    """combine(couple(agree)): the output for each query.

    Args:
        coupling: makes the couplings; while it is watched, the plain path runs.
        mask: bool, broadcastable to (batch, heads, receivers, senders), True = takes part.
        bias: added to the scores, broadcastable to (batch, heads, receivers, senders), such as one of positions.
        scale: factor of q k^T; 1 / sqrt(dim of the keys) by default.
        tiles: the topology of the whole image, for a mechanism whose batch axis is (batch * tiles).
        method: "auto", "sdpa" or "plain". Second derivatives of "sdpa" are computed by "plain".

    Shapes: q (batch, heads, receivers, dim), k (batch, heads, senders, dim), v (batch, heads, senders, pose)
        -> (batch, heads, receivers, pose).
    """
    if scale is None:
        scale = q.shape[-1] ** -0.5
    else:
        check_finite(scale=scale)
    start = _first_watched(q, k, coupling, mask, bias) if coupling.observers and method == "auto" else 0
    if start:
        before = _fused(_Exchange(q[:, :, :start], k[:, :, :start], v[:, :, :start], coupling, None, None, scale, None))
        if start == q.shape[-2]:
            return before
        rest = _Exchange(q[:, :, start:], k, v, coupling, None, None, scale, None)
        return torch.cat((before, _plain(rest)), -2)
    return execute(METHODS, _Exchange(q, k, v, coupling, mask, bias, scale, tiles), method, always="plain")
