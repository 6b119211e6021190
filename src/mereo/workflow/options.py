"""Keyword arguments as the options of a command: the same names, types, defaults and checks."""

from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from mereo.cli.parse import check_values, is_empty
from mereo.errors import UsageError, check_choice, type_of, unknown
from mereo.training.option_values import parse_size

T = TypeVar("T")
_WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "text", dict: "a dict", Path: "a path"}


def fit(name: str, value: Any, hint: Any) -> Any:
    """A value as an option of that type takes it: text for a path, one entry or a list for a tuple.

    Args:
        name: of the argument, for the message.
        hint: the type of the option.
    """
    if name == "img_size":
        return None if value is None else parse_size(value)
    if get_origin(hint) in (Union, UnionType):
        kinds = get_args(hint)
        if value is None and NoneType in kinds:
            return None
        (hint,) = [kind for kind in kinds if kind is not NoneType]
    if hint is Any:
        return value
    if get_origin(hint) is tuple:
        entries = list(value) if isinstance(value, list | tuple | set) else [value]
        return tuple(fit(name, entry, get_args(hint)[0]) for entry in entries)
    if get_origin(hint) is Literal:
        check_choice(name, value, get_args(hint))
        return value
    kind = get_origin(hint) or hint
    if kind is float and type(value) is int:
        return float(value)
    if kind is Path and value == "":  # which would be the working folder
        raise is_empty(name)
    if kind in (str, Path) and isinstance(value, str | Path):
        return kind(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise UsageError(f"{name} is {_shown(value)}; it must be {_WORDS.get(kind, kind.__name__)}.")
    return value


def _shown(value: Any) -> str:
    """A value in an error message: itself if it is short, otherwise its type."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else type_of(value)


def fit_all(kind: type, function: str, given: Mapping[str, Any], elsewhere: Mapping[str, str]) -> dict[str, Any]:
    """Keyword arguments as options of a command take them.

    Args:
        kind: the dataclass of the options.
        function: the name of the function that was called.
        given: its keyword arguments.
        elsewhere: options that are given otherwise in Python, and how.
    """
    hints = get_type_hints(kind)
    fitted = {}
    for name, value in given.items():
        if name in elsewhere:
            raise UsageError(f"{name} is an option of the command only; in Python {elsewhere[name]}.")
        if name not in hints:
            raise unknown(f"argument of {function}", name, set(hints) - set(elsewhere))
        fitted[name] = fit(name, value, hints[name])
    return fitted


def options_of(kind: type[T], function: str, given: Mapping[str, Any], elsewhere: Mapping[str, str], **own: Any) -> T:
    """The options of a command from keyword arguments, see `fit_all`; `own` are set by the function itself."""
    options = kind(**own, **fit_all(kind, function, given, elsewhere))
    check_values(options)
    return options
