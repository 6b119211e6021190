"""Attention executed: softmax(q k^T scale) v, by the plain verbs or by PyTorch's fused call, chosen by predicates."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.core.coupling import Coupling
from mereo.core.kernels.transforms import transformed
from mereo.core.topology import Causal
from mereo.core.votes import SameVotes
from mereo.errors import UsageError, check_choice


def _plain(q: Tensor, k: Tensor, v: Tensor, coupling: Coupling, mask: Tensor | None, scale: float) -> Tensor:
    scores = SameVotes(k).agree(q * scale)
    return SameVotes(v).combine(coupling(scores, mask))


def _sdpa(q: Tensor, k: Tensor, v: Tensor, coupling: Coupling, mask: Tensor | None, scale: float) -> Tensor:
    dropout = coupling.dropout if coupling.training else 0.0
    if mask is None and coupling.topology == Causal() and q.shape[-2] == k.shape[-2]:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scale, is_causal=True)
    if coupling.topology is not None:
        mask = coupling.topology.restrict(mask, q.shape[-2], k.shape[-2], q.device)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)
    if mask is None:
        return out
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
    scale: float | None = None,
    method: str = "auto",
) -> Tensor:
    """combine(couple(agree)): what each query becomes.

    Args:
        coupling: makes the couplings; while it is watched, the plain path runs.
        mask: bool, broadcastable to (batch, heads, receivers, senders), True = takes part.
        scale: factor of the scores; 1 / sqrt(dim of the keys) by default.
        method: "auto", "sdpa" or "plain". On a CPU PyTorch's "sdpa" has no second derivatives; where those are needed,
            "plain" does, and so does everything under `torch.nn.attention.sdpa_kernel(SDPBackend.MATH)`.

    Shapes: q (batch, heads, receivers, dim), k (batch, heads, senders, dim), v (batch, heads, senders, pose)
        -> (batch, heads, receivers, pose).
    """
    check_choice("method", method, ["auto", *METHODS])
    if scale is None:
        scale = q.shape[-1] ** -0.5
    if method == "auto":
        method = next(name for name, (_, can_run) in METHODS.items() if can_run(coupling))
    run, can_run = METHODS[method]
    if not can_run(coupling):
        raise UsageError(
            f"method is {method!r}, which cannot run {coupling} (watched: {coupling.watched}); use 'plain'."
        )
    return run(q, k, v, coupling, mask, scale)
