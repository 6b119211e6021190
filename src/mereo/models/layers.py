"""The layer that each parameter of a network belongs to, and groups of parameters for an optimiser."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from torch import nn

from mereo.errors import check_fraction, check_not_negative


def layer_depths(names: Sequence[str], stages: Sequence[str], heads: Sequence[str]) -> dict[str, int]:
    """The layer of each parameter, counted from 0 without gaps, by its name.

    A layer is a stage with all that is registered before it and after the previous one; what follows the last stage is
    a layer, and the classifier is the last one.

    Args:
        names: of the parameters, in the order of registration.
        stages: names of the last module of each stage, in order.
        heads: names of the modules that make the classifier.
    """
    ends = [max((i for i, name in enumerate(names) if _inside(name, stage)), default=-1) for stage in stages]
    raw = {
        name: len(stages) + 1 if any(_inside(name, head) for head in heads) else sum(end < i for end in ends)
        for i, name in enumerate(names)
    }
    numbers = {depth: number for number, depth in enumerate(sorted(set(raw.values())))}
    return {name: numbers[depth] for name, depth in raw.items()}


def _inside(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def parameter_groups(
    parameters: Iterable[tuple[str, nn.Parameter]],
    depths: dict[str, int],
    undecayed: Collection[str],
    weight_decay: float,
    layer_decay: float,
) -> list[dict[str, Any]]:
    """Groups for an optimiser, one for each layer and weight decay: see `VisionModel.parameter_groups`.

    Args:
        parameters: names and parameters; parameters without a gradient are left out.
        depths: the layer of each, from `layer_depths`.
        undecayed: names without weight decay, in addition to vectors.
        weight_decay, layer_decay: as `VisionModel.parameter_groups` takes them.
    """
    check_not_negative(weight_decay=weight_decay)
    check_fraction(layer_decay=layer_decay)
    groups: dict[tuple[int, float], dict[str, Any]] = {}
    last = max(depths.values())
    for name, parameter in parameters:
        if not parameter.requires_grad:
            continue
        decay = 0.0 if parameter.ndim <= 1 or name in undecayed else weight_decay
        scale = layer_decay ** (last - depths[name])
        key = (depths[name] if layer_decay < 1 else 0, decay)
        group = groups.setdefault(key, {"params": [], "names": [], "weight_decay": decay, "lr_scale": scale})
        group["params"].append(parameter)
        group["names"].append(name)
    return [groups[key] for key in sorted(groups)]
