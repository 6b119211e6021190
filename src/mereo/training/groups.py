"""Which parameters are trained, at which share of the learning rate, and which decay."""

import fnmatch
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from mereo.errors import UsageError, unknown
from mereo.training.config import TrainConfig

LR_SCALE = "lr_scale"
"""Key of a group: its factor of the learning rate, as in timm."""


def freeze(model: nn.Module, patterns: Sequence[str]) -> list[nn.Module]:
    """Exclude parameters from training, and return the batch norms that are frozen with them.

    Args:
        model: the network; its parameters are changed in place.
        patterns: names of modules ("stem"), of parameters, or shell-style patterns of parameters ("blocks.[01].*").

    Returns:
        Batch norms all of whose parameters are frozen: they must stay in eval mode.
    """
    named = dict(model.named_parameters())
    for pattern in patterns:
        chosen = [name for name in named if fnmatch.fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")]
        if not chosen:
            raise unknown("part of the network in freeze", pattern, [name for name, _ in model.named_modules() if name])
        for name in chosen:
            named[name].requires_grad_(False)
    if patterns and not any(parameter.requires_grad for parameter in named.values()):
        raise UsageError(f"freeze is {', '.join(patterns)}, which is every parameter; leave some to train.")
    return [module for module in model.modules() if isinstance(module, _BatchNorm) and _is_frozen(module)]


def _is_frozen(module: nn.Module) -> bool:
    parameters = list(module.parameters())
    return bool(parameters) and not any(parameter.requires_grad for parameter in parameters)


def layer_numbers(model: nn.Module) -> dict[str, int]:
    """The layer of each parameter by name, counted from the images: the place of its top-level module."""
    places: dict[str, int] = {}
    return {name: places.setdefault(name.partition(".")[0], len(places)) for name, _ in model.named_parameters()}


def _by_depth(model: nn.Module, weight_decay: float, layer_decay: float) -> list[dict[str, Any]]:
    """timm's groups for a network that has no `parameter_groups` of its own."""
    layers = layer_numbers(model)
    last = max(layers.values(), default=0)
    groups: dict[tuple[int, bool], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        decays = parameter.dim() > 1 and not name.endswith(".bias")
        layer = layers[name] if layer_decay != 1 else 0
        scale = layer_decay ** (last - layer)
        group = {"params": [], "weight_decay": weight_decay if decays else 0.0, LR_SCALE: scale}
        groups.setdefault((layer, decays), group)["params"].append(parameter)
    return list(groups.values())


def parameter_groups(config: TrainConfig, objective: nn.Module, model: nn.Module) -> Iterable[Any]:
    """The trained parameters of an objective for an optimiser, in groups where the configuration asks for them.

    Args:
        config: its weight_decay, weight_decay_norm and layer_decay count.
        objective: the model and what else is trained.
        model: the network; one with `parameter_groups(weight_decay=, layer_decay=)` knows its layers itself.
    """
    if config.weight_decay_norm and config.layer_decay is None:
        return _trained(objective.parameters())
    own = getattr(model, "parameter_groups", None)
    make = partial(_by_depth, model) if own is None else own
    decay = 1.0 if config.layer_decay is None else config.layer_decay
    groups = [dict(group) for group in make(weight_decay=config.weight_decay, layer_decay=decay)]
    covered = {parameter for group in groups for parameter in group["params"]}
    rest = [parameter for parameter in objective.parameters() if parameter not in covered]
    groups.append({"params": rest, "weight_decay": config.weight_decay, LR_SCALE: 1.0})
    for group in groups:
        group["params"] = list(_trained(group["params"]))
        if config.weight_decay_norm:
            group["weight_decay"] = config.weight_decay
    return [group for group in groups if group["params"]]


def _trained(parameters: Iterable[nn.Parameter]) -> Iterator[nn.Parameter]:
    return (parameter for parameter in parameters if parameter.requires_grad)
