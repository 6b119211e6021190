"""Weights of other libraries: `convert` between their networks and mereo's, in both directions.

A network that another library has too registers a `Layout` with its presets: how that library names the same
tensors. The rest (finding the layout, comparing names and shapes, copying) is done here once.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from mereo.errors import UsageError, check_choice, first_line, type_of
from mereo.escape import cut, listed
from mereo.models.base import VisionModel
from mereo.models.layout import LAYOUTS, Layout, Pair
from mereo.models.rebuilding import checked, uncompiled
from mereo.models.registry import MODELS, build, get_model_entry, is_model, outline
from mereo.models.same_function import (
    FAILURES,
    check_modules,
    check_same_function,
    check_same_training,
    check_tensors,
    owners,
    take_over,
)
from mereo.models.timm_access import import_timm
from mereo.models.timm_cache import LONGEST_REASON, without_network
from mereo.models.weights import read_tensors


def _matches(model: VisionModel, layout: Layout) -> dict[str, tuple[str, Pair]]:
    """For each tensor of ours: its name elsewhere and the pair that defines it."""
    pairs = list(layout.pairs(model))
    exact = {pair.ours: pair for pair in reversed(pairs)}
    matches = {}
    for name in model.state_dict():
        prefix, rest = name, ""
        while prefix and prefix not in exact:
            prefix, _, last = prefix.rpartition(".")
            rest = f".{last}{rest}"
        if not prefix:
            raise UsageError(
                f"{type(model).__name__} has {name!r}, which the layout of {layout.library} does not name."
            )
        matches[name] = (exact[prefix].theirs + rest, exact[prefix])
    return matches


def _shapes_differ(name: str, given: Tensor, needed: Tensor) -> str:
    return f"{name} is {tuple(given.shape)}, not {tuple(needed.shape)}"


def _refuse(faults: list[str], what: str) -> None:
    if faults:
        raise UsageError(f"{what}: {listed(faults, 5)}.")


def from_layout(
    model: VisionModel, tensors: Mapping[str, Tensor], layout: Layout, what: str = "the weights do not fit"
) -> dict[str, Tensor]:
    """A state of `model` from tensors under another library's names; UsageError names what does not fit."""
    own, state, faults = model.state_dict(), {}, []
    matches = _matches(model, layout)
    for name, (theirs, pair) in matches.items():
        if theirs not in tensors:
            faults.append(f"missing {theirs}")
            continue
        converted = pair.read(tensors[theirs])
        if converted.shape != own[name].shape:
            faults.append(_shapes_differ(theirs, converted, own[name]))
        state[name] = converted
    known = {theirs for theirs, _ in matches.values()}
    faults += [f"unexpected {name}" for name in tensors if name not in known and not name.endswith(layout.ignored)]
    _refuse(faults, f"{what} {model.config['model']}")
    return state


def to_layout(model: VisionModel, layout: Layout) -> dict[str, Tensor]:
    """The weights of `model` under another library's names."""
    own, parts = model.state_dict(), dict[str, dict[int, Tensor]]()
    for name, (theirs, pair) in _matches(model, layout).items():
        number = 0 if pair.part is None else pair.part[0]
        parts.setdefault(theirs, {})[number] = pair.to_theirs(own[name])
    return {
        theirs: tensors[0] if len(tensors) == 1 else torch.cat([tensors[i] for i in range(len(tensors))])
        for theirs, tensors in parts.items()
    }


def _layout_for(model: VisionModel, library: str) -> Layout:
    for layout in LAYOUTS:
        if type(model) is layout.module and layout.library == library:
            return layout
    have = sorted({layout.module.__name__ for layout in LAYOUTS if layout.library == library})
    raise UsageError(
        f"{type(model).__name__} has no counterpart that mereo knows in {library}; there is one of {', '.join(have)}."
    )


def _live(source: nn.Module) -> Layout:
    for layout in LAYOUTS:
        if type(source).__name__ in layout.classes and layout.arguments is not None:
            return layout
    have = sorted({name for layout in LAYOUTS for name in layout.classes})
    raise UsageError(f"source is {type_of(source)}; mereo converts {', '.join(have)}.")


def _preset(source: nn.Module, layout: Layout) -> str:
    """Our preset of the same name as theirs, or the first of the family."""
    configuration = getattr(source, "pretrained_cfg", None) or {}
    name = str(configuration.get("architecture") or "")
    if is_model(name) and get_model_entry(name).module is layout.module:
        return get_model_entry(name).name
    return next(entry.name for entry in MODELS.values() if entry.module is layout.module)


PREPROCESSING = ("mean", "std", "crop_pct", "crop_mode", "interpolation", "license")


def _filled(name: str, arguments: Mapping[str, Any], layout: Layout, tensors: Mapping[str, Tensor]) -> VisionModel:
    """A network of ours with tensors under another library's names."""
    model = build(name, **arguments)
    model.load_state_dict(from_layout(model, tensors, layout))
    return model


def _names(model: VisionModel, layout: Layout) -> dict[str, str]:
    """For each tensor of ours its name elsewhere."""
    return {name: theirs for name, (theirs, _) in _matches(model, layout).items()}


def _arguments(source: nn.Module, layout: Layout) -> dict[str, Any]:
    """Our arguments, read from a live network; UsageError if it differs from what its library builds."""
    assert layout.arguments is not None
    try:
        return dict(layout.arguments(source))
    except FAILURES as error:
        raise UsageError(
            f"this {type(source).__name__} has no counterpart in mereo: it differs from what {layout.library}"
            f" builds ({type(error).__name__}: {cut(first_line(error), 200)})."
        ) from error


def _from_live(
    source: nn.Module, given: Mapping[str, Any], preset: str | None = None, *, check: bool = True
) -> VisionModel:
    """A network of ours for a live one.

    Args:
        given: our arguments that cannot be read from the live network.
        preset: our preset; by default the one of the same name.
        check: compare the network with what its library makes; False trusts it.
    """
    layout = _live(source)
    if preset is not None and get_model_entry(preset).module is not layout.module:
        raise UsageError(f"model is {preset!r}, and source is {type_of(source)}: {layout.module.__name__} in mereo.")
    if check:
        check_modules(source)
    name, arguments = preset or _preset(source, layout), {**_arguments(source, layout), **given}
    if check:
        check_tensors(source)
    made = partial(_filled, name, arguments, layout)
    outlined = outline(name, **arguments)
    known_as = (getattr(source, "pretrained_cfg", None) or {}).get("architecture") or f"this {type(source).__name__}"
    from_layout(outlined, source.state_dict(), layout, f"the weights of {known_as} do not fit")
    matches = _names(outlined, layout)
    if check:
        check_same_training(outlined, source, matches)
        check_same_function(made, source, matches, outlined.image_shape)
    model = made(source.state_dict())
    configuration = getattr(source, "pretrained_cfg", None) or {}
    for key in PREPROCESSING:
        value = configuration.get(key)
        if value is not None and not (key in ("mean", "std") and len(value) != model.image_shape[0]):
            model.pretrained_cfg[key] = value
    take_over(model, source, matches)
    return model


def _to_timm(model: VisionModel) -> nn.Module:
    layout = _layout_for(model, "timm")
    timm = import_timm()
    model = checked(model)
    name = model.config["model"]
    if model.config.get("surgery"):
        done = ", ".join(entry["name"] for entry in model.config["surgery"])
        raise UsageError(f"source is {name} after {done}, which timm does not have; convert the network before it.")
    check_modules(model)
    check_tensors(model)
    arguments = {"num_classes": model.num_classes, "in_chans": model.image_shape[0]}
    if not timm.is_model(name):
        raise UsageError(f"timm has no model {name!r}; mereo's {name} cannot be converted to it.")
    given = {**arguments, "img_size": model.image_shape[1:]}
    try:
        theirs = timm.create_model(name, **given)
    except TypeError:  # a network without a table of positions takes no size
        theirs = timm.create_model(name, **arguments)
    _fill(theirs, model, layout, f"{name} with these arguments does not fit timm's {name}")
    matches = _names(model, layout)
    check_same_function(partial(_filled, name, model.config["args"], layout), theirs, matches, model.image_shape)
    trained = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    parts: dict[str, set[bool]] = {}
    for ours, there in matches.items():
        parts.setdefault(there, set()).add(trained.get(ours, False))
    if mixed := [there for there, flags in parts.items() if len(flags) > 1]:
        raise UsageError(
            f"some parts of timm's {mixed[0]} are trained here and others not; freeze all of them or none."
        )
    own, others = dict(model.named_modules()), dict(theirs.named_modules())
    for a, b in owners(matches):
        if hasattr(own[a], "momentum"):
            others[b].momentum = own[a].momentum
    take_over(theirs, model, {there: ours for ours, there in matches.items()})
    return cast("nn.Module", theirs)


def _fill(theirs: nn.Module, model: VisionModel, layout: Layout, what: str) -> None:
    """Copy the weights of `model` into a network of another library; UsageError names what does not fit."""
    tensors, needed = to_layout(model, layout), theirs.state_dict()
    faults = [f"missing {key}" for key in needed if key not in tensors and not key.endswith(layout.ignored)]
    faults += [f"unexpected {key}" for key in tensors if key not in needed]
    faults += [
        _shapes_differ(key, tensors[key], needed[key])
        for key in tensors.keys() & needed.keys()
        if tensors[key].shape != needed[key].shape
    ]
    _refuse(faults, what)
    theirs.load_state_dict({**needed, **tensors})


def _nearest(model: VisionModel, tensors: Mapping[str, Tensor]) -> Layout:
    """The layout of a network of ours that has the most names of some tensors."""
    layouts = [layout for layout in LAYOUTS if layout.module is type(model)]
    if not layouts:
        raise UsageError(f"{model.config['model']} has no counterpart in another library whose names mereo knows.")
    return max(layouts, key=lambda layout: len(set(_names(model, layout).values()) & tensors.keys()))


def give_weights(model: VisionModel, theirs: nn.Module) -> str:
    """Copy the weights of a network into the same network of another library or of its authors.

    Returns:
        The library whose names the other network has.
    """
    layout = _nearest(model, theirs.state_dict())
    _fill(theirs, model, layout, f"the weights of {model.config['model']} do not fit {type(theirs).__name__}")
    return layout.library


def _read_sizes(tensors: Mapping[str, Tensor], name: str, arguments: Mapping[str, Any]) -> dict[str, int]:
    """The numbers of classes and channels that tensors under another library's names are for, where they show it."""
    model = outline(name, **arguments)
    sizes: dict[str, int] = {}
    for layout in LAYOUTS:
        if layout.module is not type(model):
            continue
        matches = _matches(model, layout)
        for argument, module, axis in (("num_classes", model.classifier, 0), ("in_chans", model.first_conv, 1)):
            theirs, pair = matches.get(f"{module}.weight", ("", None))
            if pair is not None and theirs in tensors and tensors[theirs].dim() > axis:
                sizes[argument] = pair.read(tensors[theirs]).shape[axis]
    return sizes


def _from_tensors(tensors: Mapping[str, Tensor], name: str, arguments: Mapping[str, Any]) -> VisionModel:
    arguments = {**_read_sizes(tensors, name, arguments), **arguments}
    return _filled(name, arguments, _nearest(outline(name, **arguments), tensors), tensors).eval()


def convert(
    source: nn.Module | Mapping[str, Tensor] | str | Path,
    model: str | None = None,
    *,
    to: str = "mereo",
    **arguments: Any,
) -> nn.Module:
    """Convert a network between mereo and timm, or take over weights under the names of timm or of the authors.

    Both networks are compared before a live one is converted: the same random weights and one random image must give
    the same, in float64 to 1e-7 of the largest output. Of tensors alone, names and shapes are compared; what no shape
    shows, such as numbers of heads, sizes of windows and activations, comes from the preset named by `model`, or from
    `arguments`.

    Args:
        source: a live network of timm (`to="mereo"`) or of mereo (`to="timm"`); or a mapping of tensors or a
            .safetensors file under the names of timm or of the authors' code, with `model`.
        model: which network the tensors of a mapping or file belong to, one of `mereo.list_models()`; for a live
            network by default the preset of the same name.
        to: "mereo" or "timm".
        arguments: of `create_model`, if the tensors are not of the preset; num_classes and in_chans are read from the
            tensors by default. From a live network most are read, from a ByobNet only the classes, the colours, the
            image size and the rates of dropout.

    Returns:
        A network with the same weights, device, type and mode, and the same parameters frozen: its outputs agree to
        rounding.

    Raises:
        UsageError: for a network that has no counterpart, such as one that was changed, with the first layer that
            differs; for hooks, quantised, sparse or missing weights; and for tensors that do not fit: names and shapes.
    """
    check_choice("to", to, ("mereo", "timm"))
    if isinstance(source, nn.Module):
        source = uncompiled(source)
        if to == "mereo":
            return _from_live(source, arguments, model)
        if model is not None or arguments:
            raise UsageError(f"model is {model!r}, and source is a network of mereo, which states it; leave it out.")
        if not isinstance(source, VisionModel):
            raise UsageError(f"source is {type_of(source)}; only networks of mereo are converted to timm.")
        return _to_timm(source)
    if to != "mereo":
        raise UsageError(f"to is {to!r}, and source is no network; tensors are converted to 'mereo' only.")
    if model is None:
        raise UsageError("model is None; give the name of the network that the tensors belong to.")
    if not isinstance(source, Mapping):
        source = read_tensors(source)
    for name, value in source.items():
        dense = isinstance(value, Tensor) and value.layout == torch.strided
        if not dense or value.is_meta or value.is_quantized:
            raise UsageError(f"source has {name!r}, which is no tensor, or not dense; give names with dense ones.")
    return _from_tensors(source, model, arguments)


def same_tensors(model: VisionModel, library: str) -> dict[str, str]:
    """Names of the tensors of a network that another library holds unchanged, with the names that they have there."""
    matches = _matches(model, _layout_for(model, library))
    return {name: theirs for name, (theirs, pair) in matches.items() if pair.copies}


def has_timm_weights(name: str) -> bool:
    """Whether timm has published weights of a preset of ours."""
    try:
        return bool(timm_weights(name))
    except UsageError:
        return False


def timm_weights(name: str, tag: str | None = None) -> str:
    """The name under which timm has published weights of a preset of ours; UsageError if there are none."""
    timm, entry = import_timm(), get_model_entry(name)
    theirs = entry.name if not tag else f"{entry.name}.{tag}"
    if not timm.is_model(entry.name) or not any(
        layout.module is entry.module and layout.library == "timm" for layout in LAYOUTS
    ):
        raise UsageError(f"weights is 'timm', and timm has no {entry.name!r}; leave weights out.")
    if not timm.is_model_pretrained(theirs):
        known = ", ".join(timm.list_pretrained(f"{entry.name}.*"))
        raise UsageError(
            f"weights is 'timm', and timm has published none for {theirs!r}; "
            + (f"it has {known}." if known else "leave weights out.")
        )
    return theirs


def timm_normalisation(name: str, tag: str | None = None) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of the channels with which timm's weights of a preset were trained."""
    configuration = import_timm().get_pretrained_cfg(timm_weights(name, tag))
    return tuple(configuration.mean), tuple(configuration.std)


def from_timm_checkpoint(name: str, arguments: Mapping[str, Any], tag: str | None = None) -> VisionModel:
    """A network of mereo with timm's published weights of the preset of the same name.

    timm keeps its own cache, and downloads what is not there. Other classes, colours and image sizes are adapted by
    timm before the conversion.
    """
    timm = import_timm()
    given = {key: value for key, value in arguments.items() if key in ("num_classes", "in_chans", "img_size")}
    others = sorted(arguments.keys() - given.keys())
    if others:
        raise UsageError(f"weights are timm's, which fit the preset only; leave out {', '.join(others)}.")
    theirs, changed = timm_weights(name, tag), {}
    try:
        given |= {"pretrained": True, **without_network(timm, theirs)}
        try:
            source = timm.create_model(theirs, **given)
        except TypeError:  # a network without a table of positions takes no size
            if "img_size" not in given:
                raise
            changed["img_size"] = given.pop("img_size")
            source = timm.create_model(theirs, **given)
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(
            f"timm's weights of {theirs} could not be loaded ({cut(first_line(error), LONGEST_REASON)}); with a network"
            " they are downloaded once, and without one give their file as weights."
        ) from error
    return _from_live(source, changed, name, check=False).train()
