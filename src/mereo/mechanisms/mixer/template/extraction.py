"""The mixing matrix of any module: its recorded couplings, or its Jacobian, block by block for pairs of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mereo.core import record
from mereo.errors import UsageError, check_choice
from mereo.mechanisms.mixer.template.base import TokenMixer

WAYS = ("auto", "couplings", "jacobian")
MOST_OUTPUTS = 2**14
"""Outputs above which a Jacobian is refused: each takes a backward pass."""


def _token_axes(x: Tensor, axes: Sequence[int] | None) -> list[int]:
    """The axes that count tokens: 1 of (batch, tokens, dim), and the last two of maps (batch, channels, ...)."""
    if axes is not None:
        return [axis % x.dim() for axis in axes]
    if x.dim() not in (3, 4):
        raise UsageError(f"tokens are {tuple(x.shape)}; give (batch, tokens, dim), maps, or token_axes.")
    return [1] if x.dim() == 3 else [2, 3]


def _tokens_first(x: Tensor, axes: list[int]) -> Tensor:
    """(batch, ...) -> (batch, tokens, everything else)."""
    others = [axis for axis in range(1, x.dim()) if axis not in axes]
    counted = x.permute(0, *axes, *others)
    return counted.flatten(1, len(axes)).flatten(2)


def token_jacobian(module: nn.Module, *inputs: Tensor, token_axes: Sequence[int] | None = None) -> Tensor:
    """How each output of a token depends on each input of a token, by automatic differentiation.

    Args:
        module: takes `inputs`; the first are the tokens.
        token_axes: which axes count tokens, in the input and the output; by default 1 of three, 2 and 3 of four.

    Shapes: -> (batch, receivers, outputs of a token, senders, inputs of a token).
    """
    given = inputs[0].detach().requires_grad_()
    axes = _token_axes(given, token_axes)
    with torch.enable_grad():
        out = _tokens_first(module(given, *inputs[1:]), axes)
    total = out[0].numel()
    if total > MOST_OUTPUTS:
        raise UsageError(f"there are {total} outputs a sample; a Jacobian is made for up to {MOST_OUTPUTS}.")
    rows = []
    for number in range(total):
        # Samples do not see each other, so that all of them share one backward pass.
        (row,) = torch.autograd.grad(out.flatten(1)[:, number].sum(), given, retain_graph=True, materialize_grads=True)
        rows.append(_tokens_first(row, axes))
    return torch.stack(rows, 1).unflatten(1, out.shape[1:]).detach()


def mixing_matrix(
    module: nn.Module,
    *inputs: Tensor,
    how: str = "auto",
    name: str | None = None,
    token_axes: Sequence[int] | None = None,
) -> Tensor:
    """The mixing matrix of a module for these inputs: the weight of each sender in each receiver.

    Args:
        module: a `TokenMixer`, or any mechanism or layer whose inputs and outputs are tokens.
        how: "couplings": as `record` shows them. "jacobian": the norm of the derivative of token t's output by token
            s's input, which exists for every module. "auto": the matrix of a `TokenMixer`, else couplings if there
            are any.
        name: of the coupling, if there are several; the last by default.
        token_axes: see `token_jacobian`.

    Shapes: -> (batch, heads, receivers, senders); one head for a Jacobian; of a `TokenMixer` with a matrix for each
        channel, heads are channels.
    """
    check_choice("how", how, WAYS)
    if how == "auto" and isinstance(module, TokenMixer):
        matrix = module.mix.matrix(inputs[0]).detach()
        if matrix.dim() < 4:
            matrix = (matrix if matrix.dim() == 3 else matrix.unsqueeze(0)).expand(len(inputs[0]), -1, -1, -1)
        return matrix
    if how != "jacobian":
        with torch.no_grad(), record(module) as trace:
            module(*inputs)
        names = [each for each, kind in trace.kinds.items() if kind == "couplings"]
        if names and (name is None or name in names):
            couplings = trace[names[-1] if name is None else name]
            return couplings.to_dense() if couplings.layout != torch.strided else couplings
        if how == "couplings" or name is not None:
            raise UsageError(
                f"{type(module).__name__} records {names or 'no couplings'}; give one of them as name, or"
                " how='jacobian'."
            )
    jacobian = token_jacobian(module, *inputs, token_axes=token_axes)
    return jacobian.square().sum((2, 4)).sqrt().unsqueeze(1)


@dataclass(frozen=True)
class MixingFacts:
    """Facts about a mixing matrix.

    Attributes:
        depends_on_input: whether other inputs give another matrix.
        causal: whether no receiver takes anything from a later sender.
        rows_sum_to_one: whether each row sums to one.
        rank: the largest numerical rank of a matrix.
        filled: share of entries that are not zero.
        tokens: receivers.
    """

    depends_on_input: bool
    causal: bool
    rows_sum_to_one: bool
    rank: int
    filled: float
    tokens: int


def mixing_facts(
    module: nn.Module, *inputs: Tensor, how: str = "auto", token_axes: Sequence[int] | None = None
) -> MixingFacts:
    """Measure a mixing matrix with these inputs and with others of the same shapes; best in float64."""
    matrix = mixing_matrix(module, *inputs, how=how, token_axes=token_axes)
    generator = torch.Generator().manual_seed(2302_06218)
    others = [
        torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device) if x.is_floating_point() else x
        for x in inputs
    ]
    other = mixing_matrix(module, *others, how=how, token_axes=token_axes)
    largest = matrix.abs().max().clamp(min=torch.finfo(matrix.real.dtype).tiny)
    tolerance = 1e-3 if matrix.dtype in (torch.float16, torch.bfloat16) else 1e-5
    receivers, senders = matrix.shape[-2:]
    later = matrix.triu(1 + senders - receivers).abs().max()
    sums = matrix.sum(-1)
    return MixingFacts(
        depends_on_input=bool((matrix - other).abs().max() > tolerance * largest),
        causal=bool(later <= 1e-9 * largest),
        rows_sum_to_one=bool((sums - 1).abs().max() <= tolerance),
        rank=int(torch.linalg.matrix_rank(matrix, rtol=1e-9 if matrix.real.dtype == torch.float64 else 1e-4).max()),
        filled=float((matrix.abs() > 1e-9 * largest).float().mean()),
        tokens=receivers,
    )
