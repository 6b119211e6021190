"""Values of arguments in Python, as the options of a command take them, and the checks that hold for both.

The checks cover empty words, NUL characters, numbers beyond 2^31, names of outputs, and whether inputs are regular
files. torch is not imported here, so that `--help` is quick.
"""

import inspect
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from mereo.errors import UsageError, check_choice, type_of, unknown
from mereo.files import check_name
from mereo.runtime.progress import silenced
from mereo.training.option_values import parse_size

P = ParamSpec("P")
R = TypeVar("R")
_WORDS: dict[Any, str] = {
    int: "a whole number", float: "a number", bool: "True or False", str: "text", dict: "a dict", Path: "a path",
    Callable: "a function",
}  # fmt: skip
_LARGEST = 2**31
LONGEST_PATH = 4096
OUTPUTS = ("out", "output", "name", "report")
"""Options that name outputs, in addition to `json` if it is a path."""
BOUNDS = {
    "batch_size": 2**20, "accumulate": 2**20, "in_chans": 2**12, "top": 2**20, "keep": 2**20, "threads": 2**12,
    "seeds": 10**4, "steps": 10**6, "queries": 10**7, "restarts": 10**4, "masking_images": 10**6, "epochs": 10**6,
    "memory_limit": 2**20, "seconds": 10**6, "checkpoint_seconds": 10**7, "images": 10**8,
}  # fmt: skip
"""Largest values of the options that sizes are computed from, in every command that has them."""
EMPTY = "\0"
"""Stands for an empty word until its option is known, because an empty path would become the working folder."""
MOST_SIDE = 2**15
"""Largest side of an image in pixels."""


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
        lists = [kind for kind in kinds if get_origin(kind) in (tuple, Sequence)]
        if lists and isinstance(value, list | tuple | set):
            hint = lists[0]
        elif type(value) in kinds and Path not in kinds:
            hint = type(value)
        else:
            hint = Path if Path in kinds else next(each for each in kinds if each is not NoneType)
    if hint is Any:
        return value
    if get_origin(hint) in (tuple, Sequence):
        entries = list(value) if isinstance(value, list | tuple | set) else [value]
        return tuple(fit(name, entry, get_args(hint)[0]) for entry in entries)
    if get_origin(hint) is Literal:
        check_choice(name, value, get_args(hint))
        return value
    kind = get_origin(hint) or hint
    if kind is float and type(value) is int:
        if abs(value) > _LARGEST:
            raise UsageError(f"{name} is too large a number; it must be between -2^31 and 2^31.")
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


def fit_all(
    hints: Mapping[str, Any], function: str, given: Mapping[str, Any], elsewhere: Mapping[str, str]
) -> dict[str, Any]:
    """Keyword arguments as options of a command take them.

    Args:
        hints: the types of the arguments by name.
        function: the name of the function that was called.
        given: its keyword arguments.
        elsewhere: options that are given otherwise in Python, and how.
    """
    for name in given:
        if name in elsewhere:
            raise UsageError(f"{name} is an option of the command only; in Python {elsewhere[name]}.")
        if name not in hints:
            raise unknown(f"argument of {function}", name, hints)
    fitted = {name: fit(name, value, hints[name]) for name, value in given.items()}
    check_values({name: value for name, value in fitted.items() if hints[name] is not Any})
    return fitted


def typed(**elsewhere: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: keyword arguments become what the annotations say, or a UsageError names them.

    Args:
        elsewhere: options of the command of the same name that are given otherwise in Python, and how.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        name = f"mereo.{function.__name__}"

        @wraps(function)
        def call(*arguments: P.args, **options: P.kwargs) -> R:
            hints = get_type_hints(function)
            fitted: Any = fit_all({each: hints[each] for each in parameters}, name, options, elsewhere)
            with silenced(bool(fitted.get("quiet"))):
                return function(*arguments, **fitted)

        parameters = inspect.signature(function).parameters
        return call

    return decorate


def is_empty(name: str) -> UsageError:
    """The error for an empty value of an option or argument."""
    return UsageError(f"{name} is ''; give a value, or leave it out.")


def _values(value: Any) -> Iterator[Any]:
    """All plain values of an option, including those in tuples and dicts."""
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from (*_values(name), *_values(entry))
    elif isinstance(value, tuple | list):
        for entry in value:
            yield from _values(entry)
    else:
        yield value


def check_values(options: Any) -> None:
    """UsageError for the first value that is invalid in every command, of a dataclass or a dict of options."""
    values = options if isinstance(options, Mapping) else {f.name: getattr(options, f.name) for f in fields(options)}
    for name, given in values.items():
        for value in _values(given):
            if isinstance(value, str | Path):
                text = str(value)
                if text == EMPTY:
                    raise is_empty(name)
                if "\0" in text or len(text) > LONGEST_PATH:
                    wrong = "contains NUL" if "\0" in text else f"is longer than {LONGEST_PATH} characters"
                    raise UsageError(f"{name} is {text[:60]!r}, which {wrong}.")
            elif isinstance(value, int) and not -_LARGEST < value < _LARGEST:
                raise UsageError(f"{name} is too large a number; it must be between -2^31 and 2^31.")
            if name in BOUNDS and isinstance(value, int | float) and value > BOUNDS[name]:
                raise UsageError(f"{name} is {value!r}; it must be at most {BOUNDS[name]:,}.")
            if name == "img_size" and isinstance(value, int) and value > MOST_SIDE:
                raise UsageError(f"img_size is {given!r}; it must be at most {MOST_SIDE:,}.")
        if given is not None and (name in OUTPUTS or (name == "json" and isinstance(given, Path))):
            check_name(name, given)
        # A pipe or a device might never answer.
        if isinstance(given, Path) and name in ("config", "weights", "against"):
            check_readable(name, given)
        if isinstance(given, tuple) and name == "weights":
            for path in given:
                check_readable(name, path)


def check_readable(name: str, path: Path) -> None:
    """UsageError for an existing path that is neither a file nor a folder."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UsageError(f"{name} is {str(path)!r}, which is not a regular file or folder; give one.")
