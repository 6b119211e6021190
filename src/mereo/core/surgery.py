"""Surgery: functions that give a changed copy of a network, and the record of them that is saved with its weights."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

from torch import nn

P = ParamSpec("P")

SURGERIES: dict[str, Callable[..., nn.Module]] = {}
"""Functions model -> changed copy, by the name under which files state them."""


def _plain(value: Any) -> Any:
    """A value as JSON gives it back."""
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple | range) else value


def note_surgery(model: nn.Module, name: str, arguments: dict[str, Any]) -> None:
    """Add a surgery to the `config` of a network, in place; networks without one, such as timm's, stay as they are.

    Args:
        name: in `SURGERIES`.
        arguments: all but the model, with which the surgery makes the same network of the same source.
    """
    config = getattr(model, "config", None)
    if isinstance(config, dict):
        entry = {"name": name, "args": {key: _plain(value) for key, value in arguments.items()}}
        model.config = {**config, "surgery": [*config.get("surgery", []), entry]}  # type: ignore[assignment]


def restate_surgery(model: nn.Module, name: str, **arguments: Any) -> None:
    """Change arguments of a surgery in the `config` of a network that was changed further, in place."""
    for entry in getattr(model, "config", {}).get("surgery", []):
        if entry["name"] == name:
            entry["args"] |= arguments


def surgery(function: Callable[P, nn.Module]) -> Callable[P, nn.Module]:
    """Register a function model -> changed copy, whose name and arguments are then saved with the weights of the copy.

    Its first parameter is the model. A file that states the surgery is loaded by building the network, applying the
    function with the stated arguments, and filling in the weights.
    """
    name = function.__name__

    @wraps(function)
    def noted(*args: P.args, **kwargs: P.kwargs) -> nn.Module:
        changed = function(*args, **kwargs)
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        given = dict(list(bound.arguments.items())[1:])
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                given |= given.pop(parameter.name)
        note_surgery(changed, name, given)
        return changed

    SURGERIES[name] = noted
    return noted
