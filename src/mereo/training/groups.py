"""Groups of parameters: with which factor of the learning rate, and with or without weight decay."""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from mereo.models import VisionModel
from mereo.training.config import TrainConfig

LR_SCALE = "lr_scale"
"""Key of a group: its factor of the learning rate, as in timm."""


def parameter_groups(config: TrainConfig, objective: nn.Module, model: VisionModel) -> Iterable[Any]:
    """The trained parameters of an objective for an optimiser, in groups where the configuration asks for them.

    Args:
        config: weight_decay, weight_decay_norm and layer_decay are used.
        objective: the model and what else is trained.
        model: the network, which knows its layers.
    """
    if config.weight_decay_norm and config.layer_decay is None:
        return _trained(objective.parameters())
    layer_decay = 1.0 if config.layer_decay is None else config.layer_decay
    groups = [dict(group) for group in model.parameter_groups(config.weight_decay, layer_decay)]
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
