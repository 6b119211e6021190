"""Networks from their `config`: name, arguments and surgery; and whether a network still is what its `config` states.

A file of weights holds the config and the tensors. What the config does not state, such as a replaced layer, would be
lost: such a network is not saved.
"""

import json
from collections.abc import Mapping
from dataclasses import is_dataclass
from types import FunctionType, NoneType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mereo.core import Grid
from mereo.errors import UsageError, check_network, type_of
from mereo.escape import cut, listed
from mereo.models.base import VisionModel
from mereo.models.network import Network
from mereo.models.pretrained import shape_faults
from mereo.models.registry import build, outline

_PASSING = {
    "training", "config", "pretrained_cfg", "metadata", "class_names", "grad_checkpointing", "senders", "receivers",
    "of_places", "observers", "loss_weight",
}  # fmt: skip
"""Attributes of modules in which a network may differ from its config: they change no score, or follow the images."""


def _arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"surgery": config.get("surgery", ()), **config["args"]}


def rebuild(config: Mapping[str, Any]) -> VisionModel:
    """The network of a config, with new weights."""
    return build(config["model"], **_arguments(config))


def outline_of(config: Mapping[str, Any]) -> VisionModel:
    """The network of a config on the meta device: shapes without values."""
    return outline(config["model"], **_arguments(config))


def uncompiled(model: nn.Module) -> nn.Module:
    """The network that `torch.compile` wrapped, or the one given."""
    inside = model.__dict__.get("_modules", {}).get("_orig_mod")
    return model if inside is None else inside


def _is_setting(value: Any) -> bool:
    """Whether a value is plain, a function, or a description such as a topology: neither tensor nor module."""
    if isinstance(value, tuple | list):
        return all(map(_is_setting, value))
    plain = isinstance(value, bool | int | float | str | FunctionType | NoneType)
    return plain or (is_dataclass(value) and not isinstance(value, type | Grid))


def _settings(module: nn.Module) -> dict[str, Any]:
    """Settings of a module, by attribute."""
    there = vars(module).items()
    return {name: x for name, x in there if name[0] != "_" and name not in _PASSING and _is_setting(x)}


def _kind(module: nn.Module) -> str:
    """The class of a module; synchronised batch normalisation computes what the ordinary one does."""
    own = type(module)
    return "batch normalisation" if isinstance(module, _BatchNorm) else f"{own.__module__}.{own.__qualname__}"


_OBSERVERS = ("mereo.", "torch.", "transformers.utils.output_capturing.")


def _own_hooks(module: nn.Module) -> list[str]:
    """Forward hooks of a module, except those of mereo, PyTorch and transformers that only keep state or observe."""
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    named = [
        (getattr(hook, "__module__", ""), getattr(hook, "__qualname__", type(hook).__qualname__)) for hook in hooks
    ]
    return [name for where, name in named if not f"{where}.".startswith(_OBSERVERS)]


def changes(model: nn.Module, expected: nn.Module, state: Mapping[str, Tensor] | None = None) -> list[str]:
    """In which modules, settings, names and shapes a network differs from another of the same config.

    Args:
        state: tensors to use in place of the first network's own.
    """
    own, there = dict(model.named_modules()), dict(expected.named_modules())
    faults = [f"{name} is missing" for name in there if name not in own]
    faults += [f"{name} is new" for name in own if name not in there]
    for name, (ours, other) in ((name, (own[name], there[name])) for name in own if name in there):
        where = name or "the network"
        if _kind(ours) != _kind(other):
            faults.append(f"{where} is {type_of(ours)}, not {type_of(other)}")
            continue
        if "forward" in vars(ours):
            faults.append(f"forward of {where} was replaced")
        hooks = set(_own_hooks(ours)) - set(_own_hooks(other))
        faults += [f"{where} has the hook {hook}, which may change its output" for hook in sorted(hooks)]
        before, now = _settings(other), _settings(ours)
        faults += [
            f"{key} of {where} is {cut(repr(now[key]), 60)}, not {cut(repr(before[key]), 60)}"
            for key in now
            if key in before and not (now[key] is before[key] or now[key] == before[key])
        ]
    tensors = model.state_dict() if state is None else state
    stated = {name: tensor.shape for name, tensor in expected.state_dict().items()}
    return faults or shape_faults(stated, {name: tensor.shape for name, tensor in tensors.items()})


def check_dense(tensors: Mapping[str, Tensor], what: str) -> None:
    """UsageError, with what cannot be done, for tensors on the meta device, sparse and quantised ones."""
    for name, tensor in tensors.items():
        if tensor.is_meta or tensor.layout != torch.strided or tensor.is_quantized:
            kind = "on the meta device" if tensor.is_meta else "quantised" if tensor.is_quantized else "sparse"
            raise UsageError(f"{what}: {name} is {kind}; give a network with dense weights.")


def checked(model: nn.Module, state: Mapping[str, Tensor] | None = None) -> VisionModel:
    """The network, out of the wrapper of `torch.compile`; UsageError unless its config describes it completely.

    Args:
        state: weights to use in place of its present ones.
    """
    check_network(model)
    model = uncompiled(model)
    if not isinstance(model, Network) or not isinstance(getattr(model, "config", None), dict):
        raise UsageError(
            f"this {type(model).__name__} has no name and arguments; make it with create_model to save it. A copy by"
            " fuse() has none; if the network is inside a wrapper, save the network itself."
        )
    try:
        json.dumps(model.config.get("surgery", []), allow_nan=False)
    except (TypeError, ValueError) as error:
        names = ", ".join(entry["name"] for entry in model.config["surgery"])
        raise UsageError(f"an argument of {names} is no plain value, which a file cannot hold ({error}).") from error
    faults = changes(model, outline_of(model.config), state)
    if faults:
        surgeries = "".join(f", {entry['name']}" for entry in model.config.get("surgery", []))
        raise UsageError(
            f"the network is not what {model.config['model']}{surgeries} with its arguments makes: {listed(faults)}. A"
            " file would lose that; put it back, make the change by arguments of create_model or a function of"
            " mereo.surgery, or keep `state_dict()` with code of your own."
        )
    return model  # type: ignore[return-value]
