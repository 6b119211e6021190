"""The regularisers of a training that watch couplings: what `--attention-adversary` adds to an objective."""

import inspect

from torch import nn

from mereo.errors import UsageError, unknown
from mereo.tasks import Task
from mereo.tasks.base import Objective
from mereo.training.attention_adversary import AttentionAdversary
from mereo.training.config import TrainConfig


def attention_adversary(config: TrainConfig) -> AttentionAdversary | None:
    """The attention adversary of a configuration; None without one."""
    given = config.attention_adversary_args
    if config.attention_adversary is None:
        if given:
            raise UsageError(f"attention_adversary_args is {given} without attention_adversary; give both.")
        return None
    known = [name for name in inspect.signature(AttentionAdversary).parameters if name != "kind"]
    for name, value in given.items():
        if name not in known:
            raise unknown("argument of attention_adversary_args", name, known)
        if name in ("eps", "lam", "xi") and not isinstance(value, int | float):
            raise UsageError(f"attention_adversary_args has {name}={value!r}; it must be a number.")
    return AttentionAdversary(config.attention_adversary, **given)


def check_regularisers(config: TrainConfig, task: type[Task]) -> None:
    """UsageError for regularisers that cannot be made, compiled or used for a task."""
    adversary = attention_adversary(config)
    if adversary is None:
        return
    if config.compile:
        raise UsageError("compile is True with attention_adversary, which watches couplings; leave one out.")
    if adversary.is_virtual and not task.scores_classes:
        raise UsageError(
            f"attention_adversary is {adversary.kind!r}, which needs scores of classes, and the task is {task.name};"
            " give 'at' or 'iat'."
        )


def check_couplings(model: nn.Module, config: TrainConfig) -> None:
    """UsageError for a network without the couplings that the regularisers of a configuration watch."""
    adversary = attention_adversary(config)
    if adversary is not None:
        try:
            adversary.chosen(model)
        except UsageError as error:
            raise UsageError(f"attention_adversary is {adversary.kind!r}, and {error}") from error


def regularise(objective: Objective, config: TrainConfig) -> Objective:
    """An objective with the regularisers of a configuration, in place."""
    adversary = attention_adversary(config)
    if adversary is not None:
        objective.regularisers.append(adversary)
    return objective
