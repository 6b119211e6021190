"""The catalogue of models: a name, a class, the arguments that make the published network, and where it is from."""

import fnmatch
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mereo.errors import UsageError, unknown
from mereo.models.base import CapsuleClassifier

_LARGEST = 2**31
_MOST = {"num_classes": 2**20, "in_chans": 2**12}
"""Bounds on arguments of which lists are made, such as the mean of every channel."""
_LONGEST_LIST = 100


@dataclass(frozen=True)
class ModelEntry:
    """One published network.

    Attributes:
        name: what `create_model` takes.
        module: the class.
        summary: one sentence.
        arguments: what the preset gives to the constructor, beyond its defaults.
        paper: where it is from.
        mean, std: normalisation of inputs in [0, 1].
        crop_pct: share of the resized image that the central crop keeps.
        recipe: the published training recipe, a name of `mereo recipes`.
    """

    name: str
    module: type[CapsuleClassifier]
    summary: str
    arguments: Mapping[str, Any]
    paper: str
    mean: float
    std: float
    crop_pct: float
    recipe: str | None

    @property
    def defaults(self) -> dict[str, Any]:
        """Every argument of the network with the value it has unless told otherwise."""
        parameters = inspect.signature(self.module).parameters.values()
        return {p.name: p.default for p in parameters} | dict(self.arguments)

    def pretrained_cfg(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Preprocessing and provenance under timm's field names."""
        size, channels = arguments["img_size"], arguments["in_chans"]
        sides = (size, size) if isinstance(size, int) else tuple(size)
        return {
            "architecture": self.name,
            "num_classes": arguments["num_classes"],
            "input_size": (channels, *sides),
            "fixed_input_size": True,
            "interpolation": "bilinear",
            "crop_pct": self.crop_pct,
            "crop_mode": "center",
            "mean": (self.mean,) * channels,
            "std": (self.std,) * channels,
            "first_conv": self.module.first_conv,
            "classifier": self.module.classifier,
            "paper_ids": self.paper,
        }


MODELS: dict[str, ModelEntry] = {}


def register_model(
    name: str,
    module: type[CapsuleClassifier],
    summary: str,
    *,
    paper: str,
    mean: float = 0.0,
    std: float = 1.0,
    crop_pct: float = 1.0,
    recipe: str | None = None,
    **arguments: Any,
) -> None:
    """Add a network to the catalogue: `arguments` is the preset; see `ModelEntry` for the rest."""
    if name in MODELS:
        raise UsageError(f"model {name!r} is registered twice.")
    MODELS[name] = ModelEntry(name, module, summary, arguments, paper, mean, std, crop_pct, recipe)


def list_models(pattern: str = "*", pretrained: bool = False) -> list[str]:
    """Names of the models that match a shell-style pattern, sorted.

    Args:
        pretrained: those with weights in the package alone, as "model.data": "mspcaps_tiny.mnist".
    """
    if pretrained:
        from mereo.models.pretrained import list_pretrained

        return sorted(set(list_pretrained(pattern)) | set(list_pretrained(f"{pattern}.*")))
    return sorted(fnmatch.filter(MODELS, pattern))


def is_model(name: str) -> bool:
    """Whether `create_model` knows the name."""
    return name in MODELS


def get_model_entry(name: str) -> ModelEntry:
    """The row of one model; UsageError with the nearest names if there is none."""
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    return MODELS[name]


def create_model(
    name: str,
    pretrained: bool | str = False,
    *,
    num_classes: int | None = None,
    in_chans: int | None = None,
    img_size: int | tuple[int, int] | None = None,
    checkpoint_path: str | Path = "",
    **kwargs: Any,
) -> CapsuleClassifier:
    """Make a published network.

    Args:
        name: one of `list_models()`, or of `list_models(pretrained=True)`, whose weights it then gets.
        pretrained: start with weights that come with the package: the data set they were trained on, such as "mnist",
            or True for the one whose images are the preset's, or the only one. Other numbers of classes and colours
            may be asked for: the head is then new, the first convolution folded. All else is as it was trained.
        num_classes: how many classes; 0 gives the features instead of scores.
        in_chans: colour channels of the images.
        img_size: their side, or (height, width).
        checkpoint_path: weights saved by mereo for the same architecture.
        kwargs: any other argument of the network, such as `patch_size` of MSPCaps. None means "the preset's".

    Returns:
        The model in training mode, with `config` and `pretrained_cfg` set.
    """
    name, _, tag = name.partition(".")
    entry = get_model_entry(name)
    given = {"num_classes": num_classes, "in_chans": in_chans, "img_size": img_size, **kwargs}
    given = {argument: value for argument, value in given.items() if value is not None}
    if tag or pretrained:
        from mereo.models.pretrained import create_pretrained

        return create_pretrained(name, tag or pretrained, given, checkpoint_path)
    defaults = entry.defaults
    for argument in given:
        if argument not in defaults:
            raise unknown(f"argument of {name}", argument, defaults)
    arguments = defaults | {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    _check_kinds(name, defaults, arguments)
    model = entry.module(**arguments)
    model.config = {"model": name, "args": arguments}
    model.pretrained_cfg = entry.pretrained_cfg(arguments)
    if checkpoint_path:
        from mereo.models.weights import load_state

        load_state(model, checkpoint_path)
    return model


def outline(name: str, **arguments: Any) -> CapsuleClassifier:
    """The network that `create_model` would make, with shapes and no numbers: it takes no memory, whatever its size."""
    try:
        with torch.device("meta"):
            return create_model(name, **arguments)
    except (RuntimeError, OverflowError, TypeError) as error:
        # On this device nothing but a size can fail; one beyond 64 bits is a TypeError.
        if isinstance(error, TypeError) and "verflow" not in str(error):
            raise
        raise UsageError(f"{name} with these arguments is larger than any memory ({_first_line(error)}).") from error


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__


def _numbers_in(value: Any) -> Iterator[int | float]:
    """All numbers of a value, also those in lists of lists."""
    if isinstance(value, tuple | list):
        for entry in value:
            yield from _numbers_in(entry)
    elif isinstance(value, int | float):
        yield value


def _check_kinds(name: str, defaults: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """UsageError for an argument of another kind than its default: a word for a number, a number for a switch."""
    value: Any
    for argument, value in arguments.items():
        default: Any = defaults[argument]
        if not all(-_LARGEST < number < _LARGEST for number in _numbers_in(value)):
            raise UsageError(f"{argument} of {name} has a number that is not between -2^31 and 2^31.")
        if argument == "img_size" or default is None:
            continue
        allowed: tuple[type, ...] = (type(default),)
        if isinstance(default, float):
            allowed = (float, int)
        elif isinstance(default, tuple):
            allowed = (tuple, list)
        fits = isinstance(value, allowed) and (isinstance(default, bool) or not isinstance(value, bool))
        if not fits:
            raise UsageError(f"{argument} of {name} is {value!r}; it must be of the kind of its default, {default!r}.")
        if isinstance(default, tuple) and len(value) > _LONGEST_LIST:
            raise UsageError(f"{argument} of {name} has {len(value):,} entries; at most {_LONGEST_LIST} are taken.")
        if isinstance(default, tuple) and default and isinstance(default[0], int):
            entries: tuple[Any, ...] = tuple(value)
            fixed = argument != "scales" and len(entries) != len(default)
            if fixed or not all(isinstance(v, int) and not isinstance(v, bool) for v in entries):
                raise UsageError(f"{argument} of {name} is {value!r}; it must be whole numbers such as {default!r}.")
        if isinstance(default, tuple) and default and isinstance(default[0], tuple):
            rows: tuple[Any, ...] = tuple(value)
            if not all(isinstance(row, tuple | list) and all(type(v) is int for v in row) for row in rows):
                raise UsageError(f"{argument} of {name} is {value!r}; it must be lists of whole numbers, {default!r}.")
    for argument, least in (("num_classes", 0), ("in_chans", 1)):
        if not least <= arguments[argument] <= _MOST[argument]:
            raise UsageError(
                f"{argument} is {arguments[argument]}; it must be at least {least} and at most {_MOST[argument]:,}."
            )
