"""Dynamic routing without a tensor of votes, as one operator of PyTorch with its gradient.

Forward it runs the text of `mereo.core.agreement` with passes that make no votes:

    c = softmax_r(prior + <vote, V_t>),  s_t = sum_s c_rs vote_rs + bias,  v_t = squash(s_t),  V_t = v_1 + .. + v_(t-1)

The scores need not be kept: after t passes they are the agreement with the sum of the parents so far. Votes are not
kept either: each pass makes them anew from children and weight, a few at a time. Saved for the backward pass are the
arguments and s_t, (steps, batch, receivers, d_out); it walks the passes back with the exact gradient of all of them.
Second derivatives go through the plain form.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from mereo.core.agreement import iterate_agreement
from mereo.core.coupling import Coupling
from mereo.core.kernels import fused, triton_passes
from mereo.core.kernels.again import gradients_again
from mereo.core.kernels.direct import direct_operator
from mereo.core.kernels.plain import Routing, plain
from mereo.core.kernels.streamed import LARGEST, StreamedPasses
from mereo.core.kernels.transforms import forward_mode
from mereo.core.squash import EPS, accumulation_type, bounded
from mereo.core.votes import DenseVotes


class Passes(Protocol):
    """What each way without votes provides: passes over the same children; `StreamedPasses` describes them."""

    def forward(self, agreed: Tensor | None) -> Tensor: ...
    def start_backward(self) -> None: ...
    def backward(self, agreed: Tensor | None, grad: Tensor) -> Tensor | None: ...
    def gradients(self) -> tuple[Tensor, Tensor, Tensor | None]: ...


def _length(s: Tensor) -> tuple[Tensor, Tensor]:
    """Length of the poses as `lengths` has it, and 1 + its square."""
    # Not by sqrt, which PyTorch shares out to its threads even for a few numbers: they would spin for a while next to
    # the threads of the compiled passes.
    square = s.square().sum(-1, keepdim=True) + EPS
    return square * square.rsqrt(), 1 + square


def _squash(s: Tensor) -> Tensor:
    """`squash` of states, which are wide already."""
    s = bounded(s)
    length, more = _length(s)
    return s * (length / more)


def _squash_backward(s: Tensor, grad: Tensor) -> Tensor:
    """Gradient of `squash` at s."""
    inside, s = s.abs() <= LARGEST, bounded(s)
    length, more = _length(s)
    along = (2 - more) / more.square() / length  # derivative of length / (1 + length^2), over length
    return (grad * (length / more) + s * (along * (s * grad).sum(-1, keepdim=True))) * inside


def _passes(
    children: Tensor, weight: Tensor, prior: Tensor | None, normaliser: str, method: str, tile: int | None
) -> Passes:
    leaky = normaliser == "leaky_softmax"
    share = 1.0 if normaliser == "none" else 1 / (weight.shape[0] + leaky)
    if method == "triton":
        return triton_passes.TritonPasses(children, weight, leaky, share)
    if method == "fused":
        return fused.FusedPasses(children, weight, leaky, share)
    return StreamedPasses(children, weight, prior, leaky, share, tile)


@direct_operator("mereo::route")
def route_without_votes(
    children: Tensor,
    weight: Tensor,
    prior: Tensor | None,
    bias: Tensor | None,
    steps: int,
    normaliser: str,
    method: str,
    tile: int | None,
) -> tuple[Tensor, Tensor]:
    """The parents, and the parents before squashing in every pass: (steps, batch, receivers, d_out)."""
    passes = _passes(children, weight, prior, normaliser, method, tile)
    wide = accumulation_type(children)
    states = children.new_empty((steps, children.shape[0], weight.shape[0], weight.shape[3]), dtype=wide)
    rows = iter(states)

    def exchange(agreed: Tensor | None) -> Tensor:
        state = next(rows)
        state.copy_(passes.forward(agreed))
        return state if bias is None else state.add_(bias.to(wide))

    return iterate_agreement(exchange, _squash, steps).to(children.dtype), states


@route_without_votes.register_fake
def _(children: Tensor, weight: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    shape = (children.shape[0], weight.shape[0], weight.shape[3])
    return children.new_empty(shape), children.new_empty((options[2], *shape), dtype=accumulation_type(children))


@torch.library.custom_op("mereo::route_backward", mutates_args=())
def _route_backward(
    grad: Tensor,
    states: Tensor,
    children: Tensor,
    weight: Tensor,
    prior: Tensor | None,
    bias: Tensor | None,
    normaliser: str,
    method: str,
    tile: int | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of children, weight, prior and bias; an empty tensor for each that is None."""
    passes = _passes(children, weight, prior, normaliser, method, tile)
    passes.start_backward()
    # What each pass agreed with; a pass at a time, for small tensors are no work for several threads.
    agreed: list[Tensor | None] = [None]
    for state in states[:-1]:
        parents = _squash(state)
        agreed.append(parents if agreed[-1] is None else agreed[-1] + parents)
    total = torch.zeros_like(states[0])
    grad_parents = grad.to(states.dtype)
    for step in reversed(range(len(states))):
        grad_state = _squash_backward(states[step], grad_parents)
        total += grad_state
        d_agreed = passes.backward(agreed[step], grad_state)
        if d_agreed is not None:
            # What a pass agrees with is the sum of all parents before it; only the last ones have a gradient else.
            grad_parents = d_agreed if step == len(states) - 1 else grad_parents + d_agreed
    d_children, d_weight, d_prior = passes.gradients()
    nothing = grad.new_empty(0)
    return (
        d_children.to(children.dtype).contiguous(),
        d_weight.to(weight.dtype).contiguous(),
        nothing if prior is None or d_prior is None else d_prior.to(prior.dtype),
        nothing.clone() if bias is None else total.sum(0).to(bias.dtype),
    )


@_route_backward.register_fake
def _(grad: Tensor, states: Tensor, *tensors: Any) -> tuple[Tensor, ...]:
    return tuple(grad.new_empty(0) if x is None else x.new_empty(x.shape) for x in tensors[:4])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:4], output[1])
    ctx.steps, *ctx.options = inputs[4:]
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad: Tensor | None, grad_states: None) -> tuple[Any, ...]:
    *tensors, states = ctx.saved_tensors
    if grad is None:
        return (None,) * 8
    if torch.is_grad_enabled() or forward_mode():
        coupling, steps = Coupling("receivers", ctx.options[0]), ctx.steps

        def again(u: Tensor, W: Tensor, prior: Tensor | None, bias: Tensor | None) -> Tensor:
            return plain(Routing(DenseVotes(u, W), coupling, steps, prior, bias))

        grads: Sequence[Tensor | None] = gradients_again(again, tensors, [grad])
    else:
        grads = _route_backward(grad, states, *tensors, *ctx.options)
    return *(None if x is None else g for x, g in zip(tensors, grads, strict=True)), *(None,) * 4


route_without_votes.register_autograd(_gradients, setup_context=_save)
