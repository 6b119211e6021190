"""How routing by agreement is executed: by the verbs, or without a tensor of votes; a table of predicates chooses."""

from collections.abc import Callable

import torch
from torch import Tensor

from mereo.core.kernels import library, triton_passes
from mereo.core.kernels.direct import direct
from mereo.core.kernels.methods import FLOATS, execute
from mereo.core.kernels.plain import Routing, plain
from mereo.core.kernels.transforms import fallback_reason
from mereo.core.kernels.vote_free import route_without_votes
from mereo.errors import check_choice


def _without_votes(method: str) -> Callable[[Routing], Tensor]:
    def run(call: Routing) -> Tensor:
        votes, options = call.votes, (call.steps, call.coupling.normaliser, method, call.votes.tile)
        return direct(route_without_votes, votes.senders, votes.weight, call.prior, call.bias, *options)[0]

    return run


def _needs_couplings(call: Routing) -> str | None:
    """Why the couplings of this call, or its votes, must exist as tensors; None if they need not."""
    coupling = call.coupling
    if coupling.watched:
        return "the couplings are observed"
    if (reason := fallback_reason()) is not None:
        return reason
    if call.detach_routing:
        return "detach_routing is True"
    known = coupling.normaliser in {"softmax", "leaky_softmax"} or (
        coupling.normaliser == "none" and call.steps == 1 and call.prior is None
    )
    if (
        coupling.over != "receivers"
        or not known
        or coupling.temperature != 1
        or coupling.dropout
        or (coupling.topology is not None)
    ):
        return f"it does not support {coupling}"
    return None


def _streamed_cannot(call: Routing) -> str | None:
    types = {call.votes.senders.dtype, call.votes.weight.dtype}
    if not types <= {*FLOATS, torch.float64} or (torch.float64 in types and len(types) > 1):
        return f"children are {call.votes.senders.dtype} and weight is {call.votes.weight.dtype}"
    return _needs_couplings(call)


def _float32_alone(call: Routing, device: str) -> str | None:
    children, weight = call.votes.senders, call.votes.weight
    if children.device.type != device or weight.device.type != device:
        return f"children are on {children.device} and weight is on {weight.device}, not on {device}"
    if children.dtype not in FLOATS or weight.dtype not in FLOATS:
        return f"it computes in float32, and children are {children.dtype}, weight is {weight.dtype}"
    if call.prior is not None:
        return "there is a learned prior"
    return _needs_couplings(call)


def _fused_cannot(call: Routing) -> str | None:
    return library.missing or _float32_alone(call, "cpu")


def _triton_cannot(call: Routing) -> str | None:
    return triton_passes.missing() or _float32_alone(call, "cuda") or triton_passes.too_large(call.votes.weight)


METHODS: dict[str, tuple[Callable[[Routing], Tensor], Callable[[Routing], str | None]]] = {
    "triton": (_without_votes("triton"), _triton_cannot),
    "fused": (_without_votes("fused"), _fused_cannot),
    "streamed": (_without_votes("streamed"), _streamed_cannot),
    "plain": (plain, lambda call: None),
}
"""Name -> (function, why it cannot run: None if it can), the preferred first."""


def backends() -> dict[str, str]:
    """For each method of routing "available", or what it lacks here."""
    lacking = {"triton": triton_passes.missing(), "fused": library.missing}
    return {name: lacking.get(name) or "available" for name in METHODS}


def route(call: Routing, method: str = "auto") -> Tensor:
    """Route children to parents by agreement.

    Args:
        call: votes of children (batch, senders, d_in) by transforms (receivers, senders, d_in, d_out), the coupling,
            how many passes, prior (receivers, senders), bias (receivers, d_out).
        method: "auto", or a row of METHODS: "triton" (CUDA), "fused" (compiled, CPU), "streamed" or "plain".

    Shapes: -> (batch, receivers, d_out).
    """
    check_choice("method", method, ["auto", *METHODS])
    if 0 in call.votes.senders.shape or 0 in call.votes.weight.shape:
        return plain(call)  # zeros of the right shape
    return execute(METHODS, call, method, always="plain")
