"""Dynamic routing executed: as it is written, or without a tensor of votes; one table of predicates chooses."""

from collections.abc import Callable

import torch
from torch import Tensor

from mereo.core.kernels import library, triton_passes
from mereo.core.kernels.plain import Routing, plain
from mereo.core.kernels.vote_free import route_without_votes
from mereo.errors import UsageError, check_choice

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def _without_votes(method: str) -> Callable[[Routing], Tensor]:
    def run(call: Routing) -> Tensor:
        options = (call.steps, call.coupling.normaliser, method, call.tile)
        return route_without_votes(call.children, call.weight, call.prior, call.bias, *options)[0]

    return run


def _needs_couplings(call: Routing) -> str | None:
    """Why the couplings of this call, or its votes, must exist as tensors; None if they need not."""
    coupling = call.coupling
    if coupling.watched:
        return "a hook waits for the couplings"
    if torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export():
        return "the model is being exported"
    if torch._C._are_functorch_transforms_active():
        return "a transform of torch.func is active"
    if call.detach_routing:
        return "detach_routing is True"
    known = coupling.normaliser in {"softmax", "leaky_softmax"} or (
        coupling.normaliser == "none" and call.steps == 1 and call.prior is None
    )
    if coupling.over != "receivers" or not known or coupling.temperature != 1 or coupling.dropout:
        return f"it does not know {coupling}"
    return None


def _streamed_cannot(call: Routing) -> str | None:
    types = {x.dtype for x in (call.children, call.weight)}
    if not types <= {*FLOATS, torch.float64} or (torch.float64 in types and len(types) > 1):
        return f"children are {call.children.dtype} and weight is {call.weight.dtype}"
    return _needs_couplings(call)


def _float32_alone(call: Routing, device: str) -> str | None:
    if call.children.device.type != device or call.weight.device.type != device:
        return f"children are on {call.children.device} and weight is on {call.weight.device}, not on {device}"
    if call.children.dtype not in FLOATS or call.weight.dtype not in FLOATS:
        return f"it computes in float32, and children are {call.children.dtype}, weight is {call.weight.dtype}"
    if call.prior is not None:
        return "there is a learned prior"
    return _needs_couplings(call)


def _fused_cannot(call: Routing) -> str | None:
    return library.missing or _float32_alone(call, "cpu")


def _triton_cannot(call: Routing) -> str | None:
    return triton_passes.missing() or _float32_alone(call, "cuda") or triton_passes.too_large(call.weight)


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
        call: children (batch, senders, d_in), weight (receivers, senders, d_in, d_out), the coupling, how many passes,
            prior (receivers, senders), bias (receivers, d_out), and how many children a tile of "streamed" has.
        method: "auto", or a row of METHODS: "triton" (CUDA), "fused" (compiled, CPU), "streamed" or "plain".

    Shapes: -> (batch, receivers, d_out).
    """
    check_choice("method", method, ["auto", *METHODS])
    if call.children.dim() != 3 or call.weight.dim() != 4 or call.children.shape[1:] != call.weight.shape[1:3]:
        raise UsageError(
            f"children are {tuple(call.children.shape)} and weight is {tuple(call.weight.shape)}; they must be (batch,"
            " senders, d_in) and (receivers, senders, d_in, d_out)."
        )
    if call.tile is not None and call.tile < 1:
        raise UsageError(f"tile is {call.tile}; it must be at least 1, or None to choose it from the sizes.")
    if method == "auto":
        method = next(name for name, (_, cannot) in METHODS.items() if cannot(call) is None)
    run, cannot = METHODS[method]
    if (reason := cannot(call)) is not None:
        raise UsageError(f"method is {method!r}, which cannot run here: {reason}; use 'auto' or 'plain'.")
    return run(call)
