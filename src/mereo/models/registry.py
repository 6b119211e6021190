"""The catalogue of models: a name, a class, the arguments that make the published network, and its source."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import nn

from mereo.core import Source
from mereo.core.meta_device import on_meta_device
from mereo.errors import UsageError, check_choice, check_text, unknown
from mereo.models.base import VisionModel
from mereo.models.entry import ModelEntry, PerChannel, full_names
from mereo.models.network import INPUT_KINDS, OUTPUT_KINDS, Network
from mereo.surgery import operate

INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")
CROP_MODES = ("center", "squash", "border")
"""timm's crop modes: crop the centre, resize without keeping proportions, or pad the border."""

IMAGENET: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "interpolation": "bicubic"}
"""Preprocessing of most networks trained on ImageNet; the share of the crop differs."""

MODELS: dict[str, ModelEntry] = {}
ALIASES: dict[str, str] = {}
"""Other names of models, with the names in `MODELS`."""
OWN = "own"
"""Stands before the colon in the names of networks that were given in Python."""
LIBRARIES: dict[str, Callable[[str], ModelEntry]] = {}
"""Other libraries, whose networks are named "library:network", with the functions that make their entries."""


def register_library(name: str, entry: Callable[[str], ModelEntry]) -> None:
    """Let networks of another library be created as "name:network".

    Args:
        entry: the row of one of its networks; UsageError for one that it does not have.
    """
    LIBRARIES[name] = entry


def library_of(name: str) -> str | None:
    """The library that a name such as "timm:resnet18" begins with; None for a network of mereo's."""
    library, colon, _ = name.partition(":")
    return library if colon and library in LIBRARIES else None


def register_model(
    name: str,
    module: type[Network],
    summary: str,
    *,
    source: str,
    parameters: int,
    family: str | None = None,
    mean: PerChannel = 0.0,
    std: PerChannel = 1.0,
    interpolation: str = "bilinear",
    crop_pct: float = 1.0,
    crop_mode: str = "center",
    recipe: str | None = None,
    tiny: Mapping[str, Any] | None = None,
    variants: Mapping[str, Mapping[str, Any]] | None = None,
    aliases: tuple[str, ...] = (),
    short: Mapping[str, str] = MappingProxyType({}),
    reconstruction: str = "",
    rate: float | None = None,
    **arguments: Any,
) -> None:
    """Add a network to the catalogue: `arguments` is the preset; see `ModelEntry` for the rest.

    The first preset of a family brings its `tiny` arguments, and `variants` where some are worth testing. The fields
    that prepare images are for networks that read images.
    """
    check_choice("output_kind", module.output_kind, OUTPUT_KINDS)
    check_choice("input_kind", module.input_kind, INPUT_KINDS)
    family = family or module.__module__.rpartition(".")[2]
    for taken in (name, *aliases):
        if is_model(taken):
            raise UsageError(f"model {taken!r} is registered twice.")
    if (tiny is None) != (family in families()):
        needs = "has its tiny preset already" if tiny is not None else "needs tiny, the arguments of a tiny preset"
        raise UsageError(f"tiny is {tiny} for {name}; the family {family!r} {needs}.")
    check_choice("interpolation", interpolation, INTERPOLATIONS)
    check_choice("crop_mode", crop_mode, CROP_MODES)
    Source(source)
    preset = full_names(arguments, short, {})
    MODELS[name] = ModelEntry(
        name, module, summary, preset, source, parameters, family, recipe, tiny, variants, aliases, short,
        reconstruction, mean, std, interpolation, crop_pct, crop_mode, rate,
    )  # fmt: skip
    ALIASES.update(dict.fromkeys(aliases, name))


def families(input_kind: str | None = None) -> dict[str, ModelEntry]:
    """The entry that has the tiny preset of each family, by the family's name; of one kind of input only, if given."""
    kinds = INPUT_KINDS if input_kind is None else (input_kind,)
    chosen = (entry for entry in MODELS.values() if entry.tiny is not None and entry.module.input_kind in kinds)
    return {entry.family: entry for entry in chosen}


def is_model(name: str) -> bool:
    """Whether mereo itself has a network of that name, without other libraries."""
    check_text(name=name)
    return name in MODELS or name in ALIASES


def get_model_entry(name: str) -> ModelEntry:
    """The row of one model, by its name or an alias; UsageError with the nearest names if there is none."""
    if (library := library_of(name)) is not None:
        return LIBRARIES[library](name.partition(":")[2])
    name = ALIASES.get(name, name)
    if name not in MODELS:
        if (elsewhere := _in_a_library(name)) is not None:
            raise UsageError(f"unknown model {name!r}; did you mean {elsewhere!r}?")
        others = " or ".join(f"{library}:NAME" for library in LIBRARIES if library != OWN)
        raise UsageError(f"{unknown('model', name, MODELS)} A network of another library is {others}.")
    return MODELS[name]


def _in_a_library(name: str) -> str | None:
    """The full name of a network that only another library has."""
    for library, entry in LIBRARIES.items():
        if library == OWN:
            continue
        try:
            return entry(name).name
        except UsageError:
            continue
    return None


def build(name: str, surgery: Sequence[Mapping[str, Any]] = (), **given: Any) -> VisionModel:
    """A network of the catalogue as it starts, without trained weights; arguments not given are the preset's.

    Args:
        name: of the preset.
        surgery: {"name": in `mereo.surgery.SURGERIES`, "args": by name} for each surgery, in order.
        given: arguments of the network.
    """
    entry = get_model_entry(name)
    arguments = entry.resolve(given)
    model = entry.module.class_for(arguments)(**arguments)
    model.config = {"model": entry.name, "args": arguments}
    facts = {"first_conv": model.first_conv} if isinstance(model, VisionModel) else {"input_size": model.input_shape}
    model.pretrained_cfg = entry.pretrained_cfg(arguments) | facts
    # Networks of other inputs have names of their own, which the annotation cannot express.
    return cast(VisionModel, operate(model, surgery))


def lay_out(model: nn.Module, memory_format: torch.memory_format = torch.channels_last) -> None:
    """Put the filters of all convolutions in a memory format, which their outputs then keep.

    Transforms of capsules have four axes too, but no channels: they are used as they are, and stay contiguous.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.to(memory_format=memory_format)


def outline(name: str, **arguments: Any) -> VisionModel:
    """The network that `build` would make, on the meta device: shapes without values, which take no memory."""
    try:
        with on_meta_device():
            return build(name, **arguments)
    except (RuntimeError, OverflowError, TypeError) as error:
        # On this device nothing but a size can fail; one beyond 64 bits is a TypeError.
        if isinstance(error, TypeError) and "verflow" not in str(error):
            raise
        raise UsageError(f"{name} with these arguments is larger than any memory ({_first_line(error)}).") from error


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
