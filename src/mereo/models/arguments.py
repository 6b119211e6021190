"""Arguments of a network, checked against its signature before its constructor sees them."""

from collections.abc import Callable, Iterator, Mapping
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from mereo.errors import UsageError, unknown

_LARGEST = 2**31
_MOST = {"num_classes": 2**20, "in_chans": 2**12}
"""Largest values of arguments that determine the length of lists, such as the mean of every channel."""
_LAYERS = ("depth", "depths", "blocks", "layers", "units", "gates")
"""Ends of the names of arguments that are numbers of layers: each layer is built, so that a large number takes hours
and not only memory."""
_MOST_LAYERS = 1000
_LONGEST_LIST = 100
_OF_TIMM = {
    "drop_rate": "has no dropout before its classifier",
    "drop_path_rate": "drops no residual branches",
    "drop_block_rate": "drops no blocks of its maps",
    "proj_drop_rate": "has no dropout after its projections",
    "attn_drop_rate": "has no dropout on its attention",
    "global_pool": "has one way to pool",
    "act_layer": "has one activation function",
    "norm_layer": "has one kind of norm",
    "output_stride": "has one stride",
    "pretrained_cfg": "has its preprocessing from the preset; change `pretrained_cfg` of the model",
    "pretrained_cfg_overlay": "has its preprocessing from the preset; change `pretrained_cfg` of the model",
    "scriptable": "exports by torch.export and ONNX",
    "exportable": "exports as it is",
    "no_jit": "uses no scripted layers",
    "cache_dir": "has its weights in the package; for timm's set the environment variable HF_HOME",
}
"""Arguments of timm's `create_model` or of its networks, and why a network does not take them."""
_WORDS = {
    int: "a whole number", float: "a number", str: "text", bool: "True or False", tuple: "a list", type(None): "None",
}  # fmt: skip


def _numbers_in(value: Any) -> Iterator[int | float]:
    """All numbers of a value, also those in lists of lists."""
    if isinstance(value, tuple | list):
        for entry in value:
            yield from _numbers_in(entry)
    elif isinstance(value, int | float):
        yield value


def as_tuples(value: Any) -> Any:
    """A plain value with its lists as tuples, which constructors take; also lists inside tables."""
    if isinstance(value, dict):
        return {key: as_tuples(entry) for key, entry in value.items()}
    return tuple(as_tuples(entry) for entry in value) if isinstance(value, tuple | list) else value


def absent_argument(name: str, argument: str, known: Mapping[str, Any]) -> UsageError:
    """The error for an argument that a network does not have; timm's arguments get the reason and the replacement.

    Args:
        name: of the network.
        argument: its name.
        known: the arguments of the network.
    """
    if argument not in _OF_TIMM:
        return unknown(f"argument of {name}", argument, known)
    drops = [each for each in known if "drop" in each] if "drop" in argument else []
    instead = f"it has {', '.join(drops)}" if drops else "leave it out"
    return UsageError(f"{argument} is an argument of timm; {name} {_OF_TIMM[argument]}. Instead: {instead}.")


def check_arguments(
    name: str, constructor: Callable[..., Any], defaults: Mapping[str, Any], arguments: Mapping[str, Any]
) -> None:
    """UsageError for an argument of another type than its default, such as text for a number, or of another length.

    Args:
        name: of the network, for messages.
        constructor: its `__init__`, whose annotations declare which tuples have any length.
        defaults, arguments: of the constructor, by name.
    """
    hints = get_type_hints(constructor)
    for argument, value in arguments.items():
        if not all(-_LARGEST < number < _LARGEST for number in _numbers_in(value)):
            raise UsageError(f"{argument} of {name} has a number that is not between -2^31 and 2^31.")
        default = defaults[argument]
        # The constructor checks arguments of several types: None or a number, one side or a pair.
        if default is not None and argument != "img_size":
            kinds = get_args(hints.get(argument))
            any_length = Ellipsis in kinds
            if default == () and kinds and kinds[0] is int:
                default = (1,)
            _check_one(f"{argument} of {name} is {value!r}", value, default, any_length)
        if default is None:
            _check_hint(f"{argument} of {name} is {value!r}", value, hints.get(argument, Any))
        if argument.endswith(_LAYERS) and sum(_numbers_in(value)) > _MOST_LAYERS:
            raise UsageError(f"{argument} of {name} is {value!r}; at most {_MOST_LAYERS:,} layers are allowed.")
    for argument, least in (("num_classes", 0), ("in_chans", 1)):
        if not least <= arguments.get(argument, least) <= _MOST[argument]:
            raise UsageError(
                f"{argument} is {arguments[argument]}; it must be at least {least} and at most {_MOST[argument]:,}."
            )


def _check_hint(given: str, value: Any, hint: Any) -> None:
    """UsageError for a value of a type that the annotation does not name; the network checks the items of lists."""
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    holds = isinstance(value, tuple | list | dict)
    if Any in kinds or not (holds or type(value) in (bool, int, float, str)):
        return
    if holds and any(get_origin(kind) is not None for kind in kinds):
        return
    if type(value) not in kinds and not (type(value) is int and float in kinds):
        shown = " or ".join(_WORDS.get(get_origin(kind) or kind, str(kind)) for kind in kinds)
        raise UsageError(f"{given[:200]}; it must be {shown}.")


def _check_one(given: str, value: Any, default: Any, any_length: bool) -> None:
    """UsageError, beginning with what was given, unless a value is of the type and length of a default."""
    allowed: tuple[type, ...] = (type(default),)
    if isinstance(default, float):
        allowed = (float, int)
    elif isinstance(default, tuple):
        allowed = (tuple, list)
    fits = isinstance(value, allowed) and (isinstance(default, bool) or not isinstance(value, bool))
    if not fits:
        raise UsageError(f"{given}; it must be of the type of its default, {default!r}.")
    if not isinstance(default, tuple) or not default:
        return
    entries: tuple[Any, ...] = tuple(value)
    if len(entries) > _LONGEST_LIST:
        raise UsageError(f"{given[:200]}; it has {len(entries):,} entries, and at most {_LONGEST_LIST} are allowed.")
    if isinstance(default[0], int):
        wrong = not any_length and len(entries) != len(default)
        if wrong or not all(type(entry) is int for entry in entries):
            raise UsageError(f"{given}; it must be whole numbers such as {default!r}.")
    if isinstance(default[0], tuple):
        rows = all(isinstance(row, tuple | list) and all(type(entry) is int for entry in row) for row in entries)
        if not rows:
            raise UsageError(f"{given}; it must be lists of whole numbers such as {default!r}.")
