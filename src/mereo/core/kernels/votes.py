"""combine and agree straight from children and transforms: votes are never made, a tile of children is live at a time.

All that linear votes can be asked is a derivative of one form, linear in each of its four arguments:

    F(c, u, W, v) = sum_brs c_brs <W_rs^T u_bs, v_br>

    combine = dF/dv,   agree = dF/dc,   and the gradients of these are dF/du, dF/dW and each other.

So one operator with one rule serves them all, to any order of differentiation: the gradient of <g, dF/dx> with respect
to another argument is F's own derivative with g in place of x. Where W is the same for every child, W_r, the sums over
children come before the transforms.

Cost: dense 2 B S R d D FLOPs each; shared 2 B S R d + 2 B R d D. Live at once, beyond arguments and result: dense a few
tensors (batch, receivers, tile, d_in), shared (batch, receivers, d_in). Dense forms in float32 on a CPU are compiled
C++ (`vote_form.cpp`), with no more alive than votes of one pair and parents. Saved for the gradient: the arguments.
"""

from ctypes import c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from mereo.core.kernels.direct import direct, direct_operator
from mereo.core.kernels.library import Entry, at, entry
from mereo.core.kernels.streamed import default_tile
from mereo.core.kernels.transforms import fallback_reason
from mereo.core.squash import accumulation_type

NAMES = "cuWv"
# Contracted from left to right, so that no step makes a tensor with children, parents and d_out together.
ORDER = {"v": "cuW", "c": "vWu", "u": "vWc", "W": "cuv"}
F32 = torch.float32

_vote_form = entry("mereo_vote_form", *[c_void_p] * 5, *[c_int64] * 6)


def _axes(shared: bool) -> dict[str, str]:
    return {"c": "brs", "u": "bsd", "W": "rde" if shared else "rsde", "v": "bre"}


def _sizes(axes: dict[str, str], given: dict[str, Tensor | None]) -> dict[str, int]:
    """How long each axis is."""
    pairs = [(axes[name], x) for name, x in given.items() if x is not None]
    return {letter: size for letters, x in pairs for letter, size in zip(letters, x.shape, strict=True)}


@direct_operator("mereo::vote_form")
def _derivative(
    wanted: str, c: Tensor | None, u: Tensor | None, W: Tensor | None, v: Tensor | None, shared: bool, tile: int
) -> Tensor:
    """dF/d(wanted), where `wanted` names the argument that is None."""
    axes, given = _axes(shared), dict(zip(NAMES, (c, u, W, v), strict=True))
    sizes = _sizes(axes, given)
    shape = [sizes[axis] for axis in axes[wanted]]
    operands = [(axes[name], x) for name in ORDER[wanted] if (x := given[name]) is not None]
    dtype = operands[0][1].dtype
    if not all(sizes.values()):
        return operands[0][1].new_zeros(shape)
    if not shared and _vote_form is not None and all(x.dtype == F32 and x.device.type == "cpu" for _, x in operands):
        return _compiled(_vote_form, shape, given, sizes)
    equation = f"{','.join(letters for letters, _ in operands)}->{axes[wanted]}"
    senders = next(x.shape[letters.index("s")] for letters, x in operands if "s" in letters)
    step = senders if shared else tile
    parts = []
    total: Tensor | None = None
    for first in range(0, senders, step):
        part = torch.einsum(equation, *(_tile(x, letters, first, step) for letters, x in operands))
        if "s" in axes[wanted]:
            parts.append(part.to(dtype))
        else:
            total = part if total is None else total.add_(part)
    result = torch.cat(parts, axes[wanted].index("s")) if total is None else total.to(dtype)
    return result.contiguous()


def _compiled(run: Entry, shape: list[int], given: dict[str, Tensor | None], sizes: dict[str, int]) -> Tensor:
    """By the library: float32 on a CPU, transforms that are not shared."""
    arguments = [None if x is None else x.contiguous() for x in given.values()]
    out = torch.empty(shape, dtype=F32, device="cpu")  # also where another device is the default
    run(*map(at, (*arguments, out)), *(sizes[axis] for axis in "bsrde"), torch.get_num_threads())
    return out


def _tile(x: Tensor, letters: str, first: int, step: int) -> Tensor:
    if "s" in letters:
        axis = letters.index("s")
        x = x.narrow(axis, first, min(step, x.shape[axis] - first))
    return x.to(accumulation_type(x))


@_derivative.register_fake
def _(wanted: str, *arguments: Any) -> Tensor:
    axes, given = _axes(arguments[4]), dict(zip(NAMES, arguments[:4], strict=True))
    sizes, first = _sizes(axes, given), next(x for x in arguments if x is not None)
    return first.new_empty([sizes[letter] for letter in axes[wanted]])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.wanted, *tensors, ctx.shared, ctx.tile = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    given = dict(zip(NAMES, ctx.saved_tensors, strict=True))
    needed = dict(zip(NAMES, ctx.needs_input_grad[1:5], strict=True))
    gradients: list[Tensor | None] = []
    for name in NAMES:
        others = given | {ctx.wanted: grad, name: None}
        if not needed[name]:
            gradients.append(None)
        elif fallback_reason() is None:
            gradients.append(_derivative(name, *others.values(), ctx.shared, ctx.tile))
        else:
            gradients.append(_plain_derivative(name, others, ctx.shared))
    return None, *gradients, None, None


_derivative.register_autograd(_gradients, setup_context=_save)


def _derived(
    wanted: str, c: Tensor | None, u: Tensor, W: Tensor, v: Tensor | None, shared: bool, tile: int | None
) -> Tensor:
    """By the operator, or by einsum where the operator must step aside."""
    if fallback_reason() is None:
        return direct(_derivative, wanted, c, u, W, v, shared, default_tile(u, W.shape[0]) if tile is None else tile)
    return _plain_derivative(wanted, dict(zip(NAMES, (c, u, W, v), strict=True)), shared)


def _plain_derivative(wanted: str, given: dict[str, Tensor | None], shared: bool) -> Tensor:
    """The same in operations of PyTorch, which can be differentiated and transformed in every way."""
    axes = _axes(shared)
    operands = [(axes[name], x) for name in ORDER[wanted] if (x := given[name]) is not None]
    equation = f"{','.join(letters for letters, _ in operands)}->{axes[wanted]}"
    wide = torch.einsum(equation, *(x.to(accumulation_type(x)) for _, x in operands))
    return wide.to(operands[0][1].dtype)


def combine(couplings: Tensor, children: Tensor, weight: Tensor, *, tile: int | None = None) -> Tensor:
    """The sums of the votes: sum_s c_brs W_rs^T u_bs.

    Args:
        tile: how many children einsum takes at a time; None chooses it from the sizes.

    Shapes: couplings (batch, receivers, senders), children (batch, senders, d_in), weight (receivers, senders, d_in,
        d_out) or, shared by all children, (receivers, d_in, d_out) -> (batch, receivers, d_out). All of one type.
    """
    return _derived("v", couplings, children, weight, None, weight.dim() == 3, tile)


def agree(children: Tensor, weight: Tensor, parents: Tensor, *, tile: int | None = None) -> Tensor:
    """How well each vote fits its parent: <W_rs^T u_bs, v_br>; the adjoint of `combine`.

    Args:
        tile: how many children einsum takes at a time; None chooses it from the sizes.

    Shapes: children (batch, senders, d_in), weight (receivers, senders, d_in, d_out) or, shared by all children,
        (receivers, d_in, d_out), parents (batch, receivers, d_out) -> (batch, receivers, senders). All of one type.
    """
    return _derived("c", None, children, weight, parents, weight.dim() == 3, tile)
