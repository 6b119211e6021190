"""Options of a task: a dataclass of plain values, set on the command line, in YAML and in Python."""

import dataclasses
import inspect
import math
from collections.abc import Mapping
from typing import Any

from mereo.errors import UsageError, unknown


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """The options of a task that has none."""


def read_options(kind: type[Any], given: Mapping[str, Any], task: str) -> Any:
    """The options of a task, those given and the defaults of the others.

    Args:
        kind: a frozen dataclass whose fields have defaults of type bool, int, float or str.
        given: values by name, of the type of the default; a whole number may stand for a float.
        task: name of the task, for messages.

    Raises:
        UsageError: for an unknown name, and for a value of another type, or one that the dataclass refuses.
    """
    fields = {field.name: field for field in dataclasses.fields(kind)}
    values = {}
    for given_name, value in given.items():
        name = str(given_name).replace("-", "_")
        if name not in fields:
            if not fields:
                raise UsageError(f"task_options has {given_name!r}, and the task {task} has no options; leave it out.")
            raise unknown(f"option of the task {task}", name, fields)
        values[name] = _as_default(f"{name} of the task {task}", value, fields[name].default)
    return kind(**values)


def _as_default(what: str, value: Any, default: Any) -> Any:
    """A value in the type of a default."""
    kind = type(default)
    if kind is float and isinstance(value, str):  # YAML reads 1e-4 as text
        try:
            value = float(value)
        except ValueError:
            raise UsageError(f"{what} is {value!r}; it must be a number.") from None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not kind:
        must = {bool: "true or false", int: "a whole number", float: "a number"}.get(kind, "text")
        raise UsageError(f"{what} is {value!r}; it must be {must}.")
    if kind is float and not math.isfinite(value):
        raise UsageError(f"{what} is {value!r}; it must be finite.")
    return value


def describe_options(kind: type[Any]) -> list[tuple[str, str, str]]:
    """Name, default and meaning of each option, the meaning from the `Args` of the dataclass."""
    _, _, arguments = (inspect.getdoc(kind) or "").partition("Args:")
    meanings: dict[str, str] = {}
    name = ""
    for line in inspect.cleandoc(arguments).splitlines():
        before, colon, after = line.partition(": ")
        if colon and before in {field.name for field in dataclasses.fields(kind)}:
            name, meanings[before] = before, after.strip()
        elif name and line.strip():
            meanings[name] += f" {line.strip()}"
    return [(field.name, str(field.default), meanings.get(field.name, "")) for field in dataclasses.fields(kind)]
