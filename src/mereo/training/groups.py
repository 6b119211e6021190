"""Groups of parameters, by their factor of the learning rate and by weight decay."""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from mereo.models import VisionModel
from mereo.training.config import TrainConfig

LR_SCALE = "lr_scale"
"""Key of a group: its factor of the learning rate, as in timm."""
BODY, BODY_RATE, HEAD_SHARE = "body", 0.1, 0.1
"""For pretrained networks: the key of groups without classifier parameters, the factor of their rate, and the share
of the training in which they do not learn."""


def parameter_groups(config: TrainConfig, objective: nn.Module, model: VisionModel) -> Iterable[Any]:
    """The trained parameters of an objective for an optimiser, in groups if the configuration asks for them.

    Args:
        config: weight_decay, weight_decay_norm, layer_decay and pretrained are used.
        objective: the model and other trained modules.
        model: the network, which knows its layers.
    """
    if config.weight_decay_norm and config.layer_decay is None and not config.pretrained:
        return _trained(objective.parameters())
    layer_decay = 1.0 if config.layer_decay is None else config.layer_decay
    groups = [dict(group) for group in model.parameter_groups(config.weight_decay, layer_decay)]
    covered = {parameter for group in groups for parameter in group["params"]}
    rest = [parameter for parameter in objective.parameters() if parameter not in covered]
    if config.pretrained:
        groups = [part for group in groups for part in _head_and_body(group, model)]
    groups.append({"params": rest, "weight_decay": config.weight_decay, LR_SCALE: 1.0})
    for group in groups:
        group["params"] = list(_trained(group["params"]))
        if config.weight_decay_norm:
            group["weight_decay"] = config.weight_decay
    return [group for group in groups if group["params"]]


def _head_and_body(group: dict[str, Any], model: VisionModel) -> list[dict[str, Any]]:
    """A group, split into the classifier's parameters and the others, which have a tenth of the rate."""
    heads = tuple(f"{part}." for part in (model.classifier, *model.classifier_parts))
    own = {parameter for name, parameter in model.named_parameters() if name.startswith(heads)}
    head = {**group, "params": [p for p in group["params"] if p in own]}
    body = {**group, "params": [p for p in group["params"] if p not in own], BODY: True}
    return [head, {**body, LR_SCALE: BODY_RATE * group[LR_SCALE]}]


def group_rate(group: dict[str, Any], rate: float, share: float) -> float:
    """The learning rate of a group of parameters.

    Args:
        group: of `parameter_groups`.
        rate: of the schedule.
        share: of the training that has passed.
    """
    return 0.0 if group.get(BODY) and share < HEAD_SHARE else rate * group.get(LR_SCALE, 1.0)


def _trained(parameters: Iterable[nn.Parameter]) -> Iterator[nn.Parameter]:
    return (parameter for parameter in parameters if parameter.requires_grad)
