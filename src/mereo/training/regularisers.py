"""Regularisers of a training that watch couplings: what `--attention-adversary` and `--diversify-attention` add."""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from mereo.core.added_loss import loss_weights, weigh_losses
from mereo.errors import UsageError, unknown
from mereo.tasks import Task
from mereo.tasks.base import Objective
from mereo.training.attention_adversary import AttentionAdversary
from mereo.training.attention_diversity import AttentionDiversity
from mereo.training.config import TrainConfig


def _adversary(kind: str, given: Mapping[str, Any]) -> AttentionAdversary:
    known = [name for name in inspect.signature(AttentionAdversary).parameters if name != "kind"]
    for name, value in given.items():
        if name not in known:
            raise unknown("argument of attention_adversary_args", name, known)
        if name in ("eps", "lam", "xi") and not isinstance(value, int | float):
            raise UsageError(f"attention_adversary_args has {name}={value!r}; it must be a number.")
    return AttentionAdversary(kind, **given)


def regularisers(config: TrainConfig) -> dict[str, AttentionAdversary | AttentionDiversity]:
    """The regularisers of a configuration, by the option that asks for them, the innermost first."""
    made: dict[str, AttentionAdversary | AttentionDiversity] = {}
    if config.diversify_attention:
        made["diversify_attention"] = AttentionDiversity()
    if config.attention_adversary is not None:
        made["attention_adversary"] = _adversary(config.attention_adversary, config.attention_adversary_args)
    elif config.attention_adversary_args:
        given = config.attention_adversary_args
        raise UsageError(f"attention_adversary_args is {given} without attention_adversary; give both.")
    return made


def check_regularisers(config: TrainConfig, task: type[Task]) -> None:
    """UsageError for regularisers that cannot be made, compiled or used for a task."""
    for option, made in regularisers(config).items():
        if config.compile:
            raise UsageError(f"compile is True with {option}, which watches couplings; leave one out.")
        if isinstance(made, AttentionAdversary) and made.is_virtual and not task.scores_classes:
            raise UsageError(
                f"{option} is {made.kind!r}, which needs scores of classes, and the task is {task.name}; give 'at' or"
                " 'iat'."
            )


def check_couplings(model: nn.Module, config: TrainConfig) -> None:
    """UsageError for a network without the couplings that the regularisers of a configuration watch."""
    for option, made in regularisers(config).items():
        try:
            made.chosen(model)
        except UsageError as error:
            raise UsageError(f"{option} is {getattr(config, option)!r}, and {error}") from error


def regularise(objective: Objective, config: TrainConfig) -> Objective:
    """An objective with the regularisers of a configuration, in place."""
    objective.regularisers.extend(regularisers(config).values())
    given = {
        name: weight for name, weight in config.loss_weights.items() if name in loss_weights(objective.regularisers)
    }
    weigh_losses(objective.regularisers, given)
    return objective


def of_the_network(config: TrainConfig) -> dict[str, Any]:
    """The loss weights of a configuration that are not of its regularisers."""
    own = {name for made in regularisers(config).values() for name in loss_weights(made)}
    return {name: weight for name, weight in config.loss_weights.items() if name not in own}
