"""Input checks: inputs that a mechanism cannot use raise a `UsageError` that names them."""

import inspect
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor, nn

from mereo.core.kernels.transforms import transformed
from mereo.core.meta_device import on_meta_device
from mereo.core.observe import Observable
from mereo.errors import MereoError, UsageError, first_line, type_of

_PASSED_ON = (UsageError, MereoError, torch.OutOfMemoryError, torch.AcceleratorError)
"""Errors that are clear already, or that no other input would prevent."""
CONVERT = "convert it to floating point, for example with .float()"
Expected = tuple[tuple[int, torch.dtype], ...]
"""For each positional input, how many axes it has, and its type."""


def _misfit(name: str, value: Any, axes: int, dtype: torch.dtype, like: Tensor | None) -> str | None:
    """What is wrong with one input by itself."""
    if not isinstance(value, Tensor):
        return f"{name} is {type_of(value)}; give a tensor with {axes} axes."
    if value.dim() != axes:
        return f"{name} has the shape {tuple(value.shape)}, with {value.dim()} axes; it must have {axes}."
    if dtype.is_floating_point and not value.is_floating_point():
        return f"{name} is {value.dtype}; {CONVERT}."
    if dtype == torch.int64 and value.dtype != dtype:
        return f"{name} is {value.dtype}; it must be whole numbers of torch.int64."
    if value.layout != torch.strided:
        return f"{name} is {value.layout}; convert it with .to_dense()."
    # PyTorch accepts a meta tensor with real weights, and returns uninitialised memory.
    if like is not None and value.device != like.device:
        return f"{name} is on {value.device} and the weights are on {like.device}; move one of them."
    return None


def check_tensors(**tensors: Tensor) -> None:
    """UsageError for the first keyword argument that is no tensor of floating point."""
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise UsageError(f"{name} is {type_of(value)}; give a tensor.")
        if not value.is_floating_point():
            raise UsageError(f"{name} is {value.dtype}; {CONVERT}.")


def check_finite(**tensors: Tensor) -> None:
    """UsageError for tensors with infinite values or NaN."""
    for name, x in tensors.items():
        if not x.isfinite().all():
            raise UsageError(f"{name} has values that are infinite or NaN; they must be finite.")


def _mismatch(module: nn.Module, named: dict[str, Any]) -> str:
    """What is wrong between the inputs and the weights, once an operation has failed."""
    like = next((p for p in module.parameters() if p.is_floating_point()), None)
    for name, value in named.items():
        if not isinstance(value, Tensor) or like is None:
            continue
        if value.device != like.device:
            return f"{name} is on {value.device} and the weights are on {like.device}; move one of them."
        if value.is_floating_point() and value.dtype != like.dtype:
            return f"{name} is {value.dtype} and the weights are {like.dtype}; convert one of them with .to(dtype)."
    return "types or sizes do not fit; its docstring gives the shapes."


def _watched(module: nn.Module) -> bool:
    """Whether functions of the caller run inside, which may fail for other reasons."""
    return any(isinstance(each, Observable) and each.watched for each in module.modules())


def _names(forward: Callable[..., Any]) -> Sequence[str]:
    return list(inspect.signature(forward).parameters)[1:]


def check_streamed(
    name: str,
    tokens: Tensor,
    axes: str,
    state: Any,
    kinds: type | tuple[type, ...],
    /,
    **shapes: Sequence[int | None] | None,
) -> None:
    """UsageError unless tokens have the axes of one call of a stream, and the state before them fits both.

    Args:
        name: of the module or network.
        axes: names of the axes, such as "(batch, dim)".
        state: None before the first token.
        kinds: what the module returns as its state; those with a field `mixer` state the name of their module there.
        shapes: for each field of the state the sizes of its tensor, or of each of its tensors, behind the batch; None
            among them is any number, and None in their place that there is no tensor.
    """
    if tokens.dim() != axes.count(",") + 1:
        raise UsageError(f"{name}: tokens are {tuple(tokens.shape)}; they must be {axes}.")
    if state is None:
        return
    if not isinstance(state, kinds):
        raise UsageError(f"{name}: state is {type_of(state)}; give a state that the same network returned, or None.")
    maker: str = getattr(state, "mixer", name)
    if maker != name:
        raise UsageError(f"{name}: the state is of {maker}; give a state that the same network returned, or None.")
    for field, shape in shapes.items():
        value = getattr(state, field)
        for each in value if isinstance(value, tuple) else (value,):
            _check_carried(name, field, each, shape, tokens.shape[0])


def _check_carried(
    name: str, field: str, value: Tensor | None, shape: Sequence[int | None] | None, samples: int
) -> None:
    """UsageError unless a tensor of a state has the sizes that a network gives it."""
    if value is None and shape is None:
        return
    if value is not None and value.dim() and value.shape[0] != samples:
        raise UsageError(
            f"{name}: tokens are of {samples} samples, and the state of {value.shape[0]}; give the same number."
        )
    have = None if value is None else value.shape[1:]
    if have is None or shape is None or len(have) != len(shape) or any(map(_differ, have, shape)):
        given = "None" if value is None else str(tuple(value.shape))
        needed = f"({', '.join(['batch', *('any' if n is None else str(n) for n in shape)])})" if shape else "None"
        raise UsageError(f"{name}: {field} of the state is {given}, and not {needed}; the state is of another network.")


def _differ(have: int, needed: int | None) -> bool:
    return needed is not None and have != needed


def check_inputs(module_class: type[nn.Module], example: Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]) -> None:
    """Make calls of a class of modules raise a `UsageError` if their inputs do not fit.

    Args:
        example: makes an instance and valid positional inputs, which state the expected axes and types. If arguments
            of the class decide how many axes inputs have, an instance lists the numbers in `input_axes`.
    """
    forward = module_class.forward
    names = _names(forward)

    @cache
    def expected() -> Expected:
        with torch.random.fork_rng(devices=[]), on_meta_device():
            return tuple((x.dim(), x.dtype) for x in example()[1])

    @wraps(forward)
    def checked(self: nn.Module, *inputs: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling() or transformed():
            return forward(self, *inputs, **options)
        # Finding a parameter takes longer than a small layer; PyTorch itself reports other devices than "meta".
        like = next(self.parameters(), None) if any(isinstance(x, Tensor) and x.is_meta for x in inputs) else None
        numbers = vars(self).get("input_axes") or [axes for axes, _ in expected()]
        for name, value, axes, (_, dtype) in zip(names, inputs, numbers, expected(), strict=False):
            if value is not None and (reason := _misfit(name, value, axes, dtype, like)) is not None:
                raise UsageError(f"{type(self).__name__}: {reason}")
        try:
            return forward(self, *inputs, **options)
        except (RuntimeError, IndexError, ValueError, TypeError, AttributeError) as error:
            if isinstance(error, _PASSED_ON) or _watched(self) or len(inputs) > len(names) or options.keys() - {*names}:
                raise
            named = {**dict(zip(names, inputs, strict=False)), **options}
            given = ", ".join(f"{n} {x.dtype} {tuple(x.shape)}" for n, x in named.items() if isinstance(x, Tensor))
            raise UsageError(
                f"{type(self).__name__} cannot take {given}: {_mismatch(self, named)} ({first_line(error)[:300]})"
            ) from error

    checked.checks_inputs = True  # type: ignore[attr-defined]
    module_class.forward = checked
