"""Surgery: functions that give a changed copy of a network, and the record of them that is saved with its weights."""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, cast

from torch import Tensor, nn

from mereo.errors import UsageError, check_network, first_line, unknown
from mereo.escape import cut

P = ParamSpec("P")

SURGERIES: dict[str, Callable[..., nn.Module]] = {}
"""Functions model -> changed copy, by the name under which files state them."""


MOST_SURGERIES = 100


def are_surgeries(value: Any) -> bool:
    """Whether a value is a list of {"name": text, "args": table}, as a config lists surgeries; args are not checked."""
    return (
        isinstance(value, list | tuple)
        and len(value) <= MOST_SURGERIES
        and all(isinstance(entry, Mapping) and entry.keys() == {"name", "args"} for entry in value)
        and all(isinstance(entry["name"], str) and isinstance(entry["args"], Mapping) for entry in value)
    )


def operate(model: nn.Module, surgeries: Sequence[Mapping[str, Any]]) -> nn.Module:
    """A network after the surgeries that a config states, in order; UsageError for one that cannot be done."""
    if not are_surgeries(surgeries):
        raise UsageError(
            f"surgery is {cut(repr(surgeries), 200)}; it must be a list of at most {MOST_SURGERIES} tables with name"
            " and args."
        )
    for entry in surgeries:
        name = entry["name"]
        if name not in SURGERIES:
            raise unknown("surgery", name, SURGERIES)
        try:
            inspect.signature(SURGERIES[name]).bind(model, **entry["args"])
            model = SURGERIES[name](model, **entry["args"])
        except UsageError as error:
            raise UsageError(f"surgery {name!r}: {error}") from error
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise UsageError(
                f"surgery {name!r} cannot be done with {cut(json.dumps(entry['args'], default=str), 200)}"
                f" ({type(error).__name__}: {cut(first_line(error), 200)})."
            ) from error
    return model


def _plain(value: Any) -> Any:
    """A value after a round trip through JSON."""
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple | range) else value


def stated_surgery(model: nn.Module) -> list[dict[str, Any]] | None:
    """The surgeries that the `config` of a network of this library states; None for a network of another one.

    Others keep tables and objects of their own under this name.
    """
    config = getattr(model, "config", None)
    if isinstance(config, dict) and {"model", "args"} <= config.keys() <= {"model", "args", "surgery"}:
        return config.get("surgery", [])
    return None


def state_surgery(model: nn.Module, entries: Sequence[dict[str, Any]]) -> None:
    """Let the `config` of a network of this library state these surgeries, in place."""
    rest = {key: value for key, value in cast("dict[str, Any]", model.config).items() if key != "surgery"}
    model.config = rest | ({"surgery": [*entries]} if entries else {})  # type: ignore[assignment]


def note_surgery(model: nn.Module, name: str, arguments: dict[str, Any]) -> None:
    """Add a surgery to the `config` of a network, in place; networks of other libraries stay as they are.

    Args:
        name: in `SURGERIES`.
        arguments: all except the model; with them the surgery makes the same network from the same source.
    """
    stated = stated_surgery(model)
    if stated is not None:
        entry = {"name": name, "args": {key: _plain(value) for key, value in arguments.items()}}
        state_surgery(model, [*stated, entry])


def restate_surgery(model: nn.Module, name: str, **arguments: Any) -> None:
    """Change arguments of a surgery in the `config` of a network that was changed further, in place."""
    for entry in stated_surgery(model) or ():
        if entry["name"] == name:
            entry["args"] |= arguments


def _keep_modes(model: nn.Module, changed: nn.Module) -> None:
    """Set the modules of a changed copy to training or evaluation as in the model, new ones as the module around them.

    A new module is in training mode, so its dropout would act in a network that is evaluated.
    """
    modes = {name: module.training for name, module in model.named_modules()}
    for name, module in changed.named_modules():
        known = name
        while known not in modes:
            known = known.rpartition(".")[0]
        module.training = modes[known]


@contextmanager
def _without_graphs(model: nn.Module) -> Iterator[None]:
    """Detach what modules keep of a forward pass, such as attention maps, which could not be copied with its graph."""
    kept = [
        (vars(module), name, value)
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, Tensor) and not value.is_leaf
    ]
    for attributes, name, value in kept:
        attributes[name] = value.detach()
    try:
        yield
    finally:
        for attributes, name, value in kept:
            attributes[name] = value


def surgery(function: Callable[P, nn.Module]) -> Callable[P, nn.Module]:
    """Register a function model -> changed copy, whose name and arguments are then saved with the weights of the copy.

    Its first parameter is the model. A file that states the surgery is loaded by building the network, applying the
    function with the stated arguments, and filling in the weights.
    """
    name = function.__name__

    @wraps(function)
    def noted(*args: P.args, **kwargs: P.kwargs) -> nn.Module:
        model = cast("nn.Module", args[0] if args else kwargs.get("model"))
        check_network(model)
        with _without_graphs(model):
            changed = function(*args, **kwargs)
        _keep_modes(model, changed)
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
