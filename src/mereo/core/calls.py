"""Arguments of the wrong type, such as text for a tensor, end in a `UsageError` that names them.

Nothing is checked while a call succeeds: only when it fails are the arguments compared with the annotations. If they
fit, the error stays what it was.
"""

import inspect
import types
from collections.abc import Callable, Collection, Iterable, MutableMapping
from functools import wraps
from numbers import Integral, Real
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from mereo.errors import MereoError, UsageError

P = ParamSpec("P")
R = TypeVar("R")
_FAILURES = (TypeError, AttributeError, KeyError, IndexError, ValueError, RuntimeError, NotImplementedError)
_SAYS_ENOUGH = (UsageError, MereoError, torch.OutOfMemoryError, torch.AcceleratorError)
_WORDS = {
    Tensor: "a tensor", nn.Module: "a network or layer", str: "text", int: "a whole number", float: "a number",
    bool: "True or False", type(None): "None", dict: "a dict", list: "a list", tuple: "a tuple",
}  # fmt: skip


def fits(value: Any, hint: Any) -> bool:
    """Whether a value may be of an annotated type; where that cannot be decided, it may."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return fits(value, inside[0])
    if origin in (Union, types.UnionType):
        return any(fits(value, kind) for kind in inside)
    if origin is Literal:
        return not isinstance(value, dict | list) and (not isinstance(value, str) or value in inside)
    kind = origin or hint
    if kind is None or kind is type(None):
        return value is None
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    if kind in (float, int):
        return isinstance(value, Real if kind is float else Integral | Tensor)
    try:
        if not isinstance(value, kind):
            return False
    except TypeError:
        return True
    # Text is a sequence of texts, but given where a list is expected it is a mistake.
    if isinstance(value, str) and kind is not str:
        return kind is object
    if isinstance(value, tuple | list) and isinstance(kind, type) and issubclass(kind, Collection) and inside:
        return all(fits(entry, inside[0]) for entry in value) if len(inside) < 2 or inside[1] is Ellipsis else True
    return True


def _words(hint: Any) -> str:
    """An annotated type in words."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _words(inside[0])
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_words(kind) for kind in inside))
    if origin is Literal:
        return " or ".join(map(repr, inside))
    kind = origin or hint
    if kind in _WORDS:
        several = f" of {_words(inside[0])}" if inside and kind in (list, tuple) else ""
        return f"{_WORDS[kind]}{several}"
    if isinstance(kind, type) and issubclass(kind, Collection) and inside:
        return f"a list of {_words(inside[0])}" if len(inside) == 1 else f"a {kind.__name__.lower()}"
    return f"a {getattr(kind, '__name__', kind)}"


def wrong_argument(function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> str | None:
    """What is wrong with the first argument whose type is not the annotated one; None if all may be."""
    try:
        given = inspect.signature(function).bind(*arguments, **options).arguments
        hints = get_type_hints(function)
    except (TypeError, NameError, AttributeError):
        return None
    kinds = {name: parameter.kind for name, parameter in inspect.signature(function).parameters.items()}
    for name, value in given.items():
        variable = kinds[name] in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        if name in hints and not variable and not fits(value, hints[name]):
            text = repr(value)
            shown = text if isinstance(value, str | int | float | None) and len(text) <= 60 else _kind_of(value)
            return f"{function.__name__}: {name} is {shown}; it must be {_words(hints[name])}."
    return None


def _kind_of(value: Any) -> str:
    name = type(value).__name__
    return f"a{'n' if name[0] in 'aeiou' else ''} {name}"


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose wrong types of arguments end in a `UsageError`."""
    late = inspect.isgeneratorfunction(inspect.unwrap(function))

    @wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return function(*arguments, **options)
        if late and (wrong := wrong_argument(function, arguments, options)) is not None:
            raise UsageError(wrong)
        try:
            return function(*arguments, **options)
        except _FAILURES as error:
            if isinstance(error, _SAYS_ENOUGH):
                raise
            wrong = wrong_argument(function, arguments, options)
            if wrong is None:
                raise
            raise UsageError(wrong) from error

    call.checks_types = True  # type: ignore[attr-defined]
    return call


def check_calls(namespace: MutableMapping[str, Any], names: Iterable[str]) -> None:
    """Replace the public functions of a package by checked ones.

    Args:
        namespace: of the package.
        names: its public names.
    """
    for name in names:
        value = namespace[name]
        if inspect.isfunction(value) and not hasattr(value, "checks_types"):
            namespace[name] = checked(value)
