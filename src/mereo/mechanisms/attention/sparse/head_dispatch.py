"""Heads weighted by gates: all heads for all tokens, or routed heads for their own tokens only."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mereo.core import Coupling
from mereo.core.kernels.attention import attend
from mereo.core.kernels.methods import execute
from mereo.core.kernels.transforms import transformed

GROUPS = 4
"""Heads of images are grouped by how many tokens they act for; each group is computed at once."""
LEAST_TOKENS = 384
"""Tokens from which it is faster to compute heads for their own tokens only."""
MOST_ACTIVE = 0.85
"""Share of active pairs of tokens and heads above which it is slower."""


@dataclass(frozen=True)
class Gated:
    """One call: (batch, heads, tokens, d) each; gates (batch, tokens, heads); how many heads always act.

    Attributes:
        straight_through: whether gates of 0 have a gradient, for which their heads must be computed.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    gates: Tensor
    coupling: Coupling
    shared: int
    active: int
    straight_through: bool = False


def dense(call: Gated) -> Tensor:
    """Every head for every token, times its gate."""
    out = attend(call.q, call.k, call.v, call.coupling)
    return out * call.gates.transpose(1, 2).unsqueeze(-1)


def gathered(call: Gated) -> Tensor:
    """Routed heads for the tokens that they act for, which are gathered and put back; others stay zero."""
    shared = call.shared
    gates = call.gates.transpose(1, 2)
    q, k, v = (x[:, shared:] for x in (call.q, call.k, call.v))
    own = gates[:, shared:].flatten(0, 1)
    (lines, length), heads = own.shape, q.shape[1]
    acts = own != 0
    # Tokens that a head acts for come first. Some of the next ones are computed too, and their gates are 0.
    order = acts.to(torch.uint8).argsort(dim=1, descending=True, stable=True)
    counts, by_count = acts.sum(1).sort()
    numbers = counts.tolist()
    size = -(-lines // GROUPS)
    pieces, places = [], []
    for first in range(0, lines, size):
        group = by_count[first : first + size]
        most = numbers[min(first + size, lines) - 1]
        if most == 0:
            continue
        chosen = order[group, :most]
        rows = (group.unsqueeze(1) * length + chosen).flatten()
        image, head = group // heads, group % heads
        queries = q[image.unsqueeze(1), head.unsqueeze(1), chosen].unsqueeze(1)
        keys, values = (x[image, head].unsqueeze(1) for x in (k, v))
        out = attend(queries, keys, values, call.coupling).flatten(0, 2)
        pieces.append(out * own.flatten().index_select(0, rows).unsqueeze(1))
        places.append(rows)
    routed = v.new_zeros(lines * length, v.shape[-1])
    if pieces:
        routed = routed.index_copy(0, torch.cat(places), torch.cat(pieces))
    routed = routed.view(gates.shape[0], -1, length, v.shape[-1])
    if not shared:
        return routed
    always = attend(call.q[:, :shared], call.k[:, :shared], call.v[:, :shared], call.coupling)
    return torch.cat((always * gates[:, :shared].unsqueeze(-1), routed), 1)


def _gathered_cannot(call: Gated) -> str | None:
    if call.straight_through and torch.is_grad_enabled() and call.gates.requires_grad:
        return "gates of 0 have a gradient"
    if call.coupling.topology is not None:
        return f"it does not support {call.coupling}"
    if call.coupling.watched:
        return "the couplings are observed"
    if torch.compiler.is_compiling() or torch.onnx.is_in_onnx_export() or transformed() or call.gates.is_meta:
        return "the tokens that a head acts for are known only when it runs"
    return None if call.q.numel() else "the batch is empty"


def _pays(call: Gated) -> bool:
    heads = call.q.shape[1]
    return call.q.shape[2] >= LEAST_TOKENS and (call.shared + call.active) / heads <= MOST_ACTIVE


METHODS: dict[str, tuple[Callable[[Gated], Tensor], Callable[[Gated], str | None]]] = {
    "gathered": (gathered, _gathered_cannot),
    "dense": (dense, lambda call: None),
}
"""Name -> (function, why it cannot run: None if it can), the preferred first."""


def gated_heads(call: Gated, method: str = "auto") -> Tensor:
    """The outputs of the heads for their tokens, times the gates: (batch, heads, tokens, d).

    Args:
        method: "auto", "gathered" or "dense".
    """
    if method == "auto" and not _pays(call):
        method = "dense"
    return execute(METHODS, call, method, always="dense")
