"""Parts of a network that keep the weights they start with, for fine-tuning and linear probing."""

import fnmatch
from collections.abc import Collection, Iterable, Sequence
from typing import cast

from torch import nn

from mereo.errors import UsageError, unknown
from mereo.models import Network
from mereo.training.config import TrainConfig

BACKBONE = "backbone"
"""What `freeze` calls everything but the classifier, in a network without a module of that name."""
_SHOWN = 6


def _inside(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def by_pattern(model: nn.Module, names: Collection[str], pattern: str, argument: str = "freeze") -> set[str]:
    """The parameters among `names` that a pattern of `freeze` selects; UsageError, with the argument, for none."""
    chosen = {name for name in names if fnmatch.fnmatchcase(name, pattern) or _inside(name, pattern)}
    if not chosen and pattern == BACKBONE and hasattr(model, "classifier_parts"):
        network = cast(Network, model)
        heads = (*network.classifier_parts, network.classifier)
        chosen = {name for name in names if not any(_inside(name, head) for head in heads)}
    if not chosen:
        raise unknown(
            f"part of the network in {argument}", pattern, [name for name, _ in model.named_modules() if name]
        )
    return chosen


def _by_layer(model: Network, names: Collection[str], layers: int, until: str | None) -> set[str]:
    depths = model.layer_depths()
    count = max(depths.values()) + 1
    if layers >= count:
        raise UsageError(
            f"freeze_layers is {layers}; this network has {count} layers, the last of them its classifier, so give at"
            f" most {count - 1}."
        )
    if until is not None:
        inside = [depths[name] for name in names if _inside(name, until)]
        if not inside:
            raise unknown("module in freeze_until", until, [name for name, _ in model.named_modules() if name])
        if max(inside) == count - 1:
            raise UsageError(f"freeze_until is {until!r}, in the last layer; give an earlier module, some must train.")
        layers = max(layers, max(inside) + 1)
    return {name for name in names if depths[name] < layers}


def freeze(
    model: nn.Module, patterns: Sequence[str] = (), *, layers: int = 0, until: str | None = None
) -> list[nn.Module]:
    """Exclude parameters from training, and return the modules that are frozen as a whole.

    Args:
        model: the network; its parameters are changed in place.
        patterns: names of modules ("stem"), of parameters, shell-style patterns of parameters ("blocks.[01].*"), or
            "backbone" for everything but the classifier.
        layers: how many of the model's layers (`VisionModel.layer_depths`), counted from the images.
        until: a module; its layer and all before it are frozen.

    Returns:
        The outermost modules all of whose parameters are frozen. They must stay in eval mode, so that batch norms keep
        their statistics and nothing is dropped in them.
    """
    named = dict(model.named_parameters())
    chosen = {name for pattern in patterns for name in by_pattern(model, named, pattern)}
    if layers or until is not None:
        if not hasattr(model, "layer_depths"):
            raise UsageError(f"freeze_layers is {layers}, and a {type(model).__name__} does not know its layers.")
        chosen |= _by_layer(cast(Network, model), named, layers, until)
    for name in chosen:
        named[name].requires_grad_(False)
    if chosen and not any(parameter.requires_grad for parameter in named.values()):
        raise UsageError(f"freeze is {', '.join(patterns)}, which matches every parameter; leave some to train.")
    return outermost(model) if chosen else []


def freeze_as_configured(model: nn.Module, config: TrainConfig) -> list[nn.Module]:
    """`freeze`, with the options of a configuration."""
    return freeze(model, config.freeze, layers=config.freeze_layers, until=config.freeze_until)


def start_training(objective: nn.Module, frozen: Iterable[nn.Module]) -> None:
    """Put an objective in training mode, except for the modules that `freeze` returned."""
    objective.train()
    for module in frozen:
        module.eval()


def outermost(module: nn.Module) -> list[nn.Module]:
    """The outermost modules all of whose parameters are frozen."""
    parameters = list(module.parameters())
    if parameters and not any(parameter.requires_grad for parameter in parameters):
        return [module]
    return [frozen for child in module.children() for frozen in outermost(child)]


def describe_trained(model: Network, layer_decay: float | None = None, lr: float = 1.0) -> list[str]:
    """Lines on what is frozen and at which rates the rest trains; no lines if everything trains at one rate."""
    parameters, depths = dict(model.named_parameters()), model.layer_depths()
    trained = {name: parameter.numel() for name, parameter in parameters.items() if parameter.requires_grad}
    lines = []
    if len(trained) < len(parameters):
        count = max(depths.values()) + 1
        frozen = sum(all(name not in trained for name in names) for names in _by_depth(depths))
        modules = {id(module): name for name, module in model.named_modules()}
        parts = [modules[id(module)] for module in outermost(model)]
        parts += [name for name in parameters if name not in trained and not any(_inside(name, p) for p in parts)]
        shown = ", ".join(parts[:_SHOWN]) + (f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else "")
        whole = sum(parameter.numel() for parameter in parameters.values())
        lines.append(f"training {sum(trained.values()):,} of {whole:,} parameters")
        lines.append(f"frozen, with the statistics of batch norms: {shown} ({frozen} of {count} layers)")
    if layer_decay is not None and layer_decay < 1:
        last = max(depths.values())
        first = min(depths[name] for name in trained)
        lines.append(
            f"learning rate from {lr * layer_decay ** (last - first):.3g} in layer {first + 1} to {lr:.3g} in layer"
            f" {last + 1}"
        )
    return lines


def _by_depth(depths: dict[str, int]) -> list[list[str]]:
    layers: dict[int, list[str]] = {}
    for name, depth in depths.items():
        layers.setdefault(depth, []).append(name)
    return list(layers.values())
