"""The two kinds of error: the call was wrong (`UsageError`), or the work failed (`MereoError`)."""

import difflib
import math
from collections.abc import Iterable

_LONGEST_LIST = 400
"""Longest list of names, in characters, that an error message prints."""
MOST_STEPS = 1000
"""Most steps of an iteration; more is a mistyped number, and would run for hours."""


class UsageError(ValueError):
    """A wrong argument: the message gives the argument, its value and the remedy. Exit code 2."""


class MereoError(RuntimeError):
    """Work that failed although the call was valid. Exit code 1."""


def type_of(value: object) -> str:
    """The type of a value in a message: "an int", "a dict", or "None"."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def check_network(network: object, argument: str = "model") -> None:
    """Raise `UsageError` unless a value is a module of PyTorch."""
    if not hasattr(network, "named_modules"):
        raise UsageError(f"{argument} is {type_of(network)}; give a network, a torch.nn.Module.")


def check_text(**arguments: object) -> None:
    """Raise `UsageError` for the first keyword argument that is no text."""
    for argument, value in arguments.items():
        if not isinstance(value, str):
            raise UsageError(f"{argument} is {type_of(value)}; give a text.")


def nearest(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """The names in `known` most similar to `name`, closest first."""
    lowered = {k.lower(): k for k in known}
    return [lowered[m] for m in difflib.get_close_matches(name.lower(), list(lowered), n=limit, cutoff=0.5)]


def unknown(kind: str, name: object, known: Iterable[str]) -> UsageError:
    """The error for a name that is not among `known`: suggests the nearest names, or lists them all if they are few."""
    names = sorted(known)
    close = nearest(str(name), names)
    if close:
        remedy = "did you mean " + " or ".join(repr(c) for c in close) + "?"
    else:
        listed = ", ".join(names)
        remedy = f"known: {listed}." if len(listed) <= _LONGEST_LIST else f"{len(names)} are known."
    return UsageError(f"unknown {kind} {name!r}; {remedy}")


def check_choice(argument: str, value: str, choices: Iterable[str]) -> None:
    """Raise `UsageError` unless `value` is one of `choices`."""
    names = list(choices)
    if value not in names:
        close = nearest(str(value), names)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise UsageError(f"{argument} is {value!r}; it must be one of {', '.join(map(repr, names))}.{hint}")


def check_positive(**arguments: float) -> None:
    """Raise `UsageError` for the first keyword argument that is not above zero."""
    for argument, value in arguments.items():
        if not isinstance(value, int | float) or not value > 0:
            raise UsageError(f"{argument} is {value!r}; it must be a number above 0.")


def check_not_negative(**arguments: float) -> None:
    """Raise `UsageError` for the first keyword argument that is below zero or NaN."""
    for argument, value in arguments.items():
        if not isinstance(value, int | float) or not value >= 0:
            raise UsageError(f"{argument} is {value!r}; it must be a number of at least 0.")


def check_finite(**arguments: float | None) -> None:
    """Raise `UsageError` for the first keyword argument that is neither a finite number nor None."""
    for argument, value in arguments.items():
        if value is not None and not (isinstance(value, int | float) and math.isfinite(value)):
            raise UsageError(f"{argument} is {value!r}; it must be a finite number, or None for the default.")


def check_count(least: int = 0, **arguments: int) -> None:
    """Raise `UsageError` for the first keyword argument that is not a whole number of at least `least`."""
    for argument, value in arguments.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise UsageError(f"{argument} is {value!r}; it must be a whole number of at least {least}.")


def check_fraction(**arguments: float) -> None:
    """Raise `UsageError` for the first keyword argument outside (0, 1]."""
    for argument, value in arguments.items():
        if not isinstance(value, int | float) or not 0 < value <= 1:
            raise UsageError(f"{argument} is {value!r}; it must be a number above 0 and at most 1.")


def check_seed(seed: int) -> None:
    """Raise `UsageError` unless a seed is one that every generator takes."""
    if not 0 <= seed < 2**31:
        raise UsageError(f"seed is {seed}; it must be between 0 and 2^31 - 1.")


def check_probability(**arguments: float) -> None:
    """Raise `UsageError` for the first keyword argument outside [0, 1)."""
    for argument, value in arguments.items():
        if not isinstance(value, int | float) or not 0 <= value < 1:
            raise UsageError(f"{argument} is {value!r}; it must be a number of at least 0 and below 1.")


def check_steps(least: int = 0, **arguments: int) -> None:
    """Raise `UsageError` for the first keyword argument that is not a number of steps, `least` to `MOST_STEPS`."""
    for argument, value in arguments.items():
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST_STEPS:
            raise UsageError(f"{argument} is {value!r}; it must be at least {least} and at most {MOST_STEPS}.")


def check_heads(dim: int, num_heads: int) -> None:
    """Raise `UsageError` unless `num_heads` divides `dim` and both are above zero."""
    check_positive(dim=dim, num_heads=num_heads)
    if dim % num_heads:
        raise UsageError(f"dim is {dim} and num_heads {num_heads}; dim must be a multiple of num_heads.")


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type if it has no message."""
    return (str(error).splitlines() or [type(error).__name__])[0]
