"""The default network, and a plain one in its place where it learns nothing."""

import os
from collections.abc import Callable, Collection
from typing import Any

from mereo.training.config import FIELDS, TrainConfig
from mereo.training.defaults import Defaults, choose_defaults
from mereo.training.engine import train
from mereo.training.learning import NotLearningError
from mereo.training.plan import make_plan
from mereo.training.report import Report
from mereo.training.results import RunResult

WATCH = "learning"
"""The callback that ends a training which learns nothing."""
SECOND = "resnet20"
"""The network in the place of one that learns nothing: residual, without capsules, for images of any size."""
OWN_SIDE, SIDE, STRIDE = 32, 64, 2
"""Side of the images it is made for, the largest side it gets, and the stride of its first convolution for the latter,
with which both take as long."""
LEAST_SHARE = 1 / 3
"""Of the time that the second network has at least."""
OPEN = frozenset(
    {"model", "model_args", "batch_size", "lr", "img_size", "warmup_epochs", "augment", "callbacks", "loss", "mean",
     "std", "resume", "in_chans"}
)  # fmt: skip
"""Fields that are chosen anew where it is not known which of them were given: of a run that was resumed."""


def watched(defaults: Defaults, given: Collection[str]) -> TrainConfig:
    """The configuration with the callback that ends a training which learns nothing.

    Only where the network was not given and its settings were chosen, with validation images and in one process;
    otherwise the configuration as it is.
    """
    config = defaults.config
    is_open = defaults.choice is not None and not {"model", "model_args", "weights", "callbacks"} & {*given}
    if not is_open or config.paper_protocol or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return config
    return config.replace(callbacks=(WATCH,))


def second_choice(config: TrainConfig, given: Collection[str], first: TrainConfig, seconds: float) -> Defaults:
    """The settings of the second network, in the time that the first left.

    Args:
        config: before anything was chosen.
        given: names of the fields that were given.
        first: the settings of the first network.
        seconds: that it took.
    """
    changes: dict[str, Any] = {"model": SECOND, "callbacks": ()}
    if "epochs" not in given and first.minutes is not None:
        changes["minutes"] = round(max(first.minutes - seconds / 60, LEAST_SHARE * first.minutes), 2)
    config = config.replace(**changes)
    kept = {*given, *changes}
    if "img_size" in given:
        return choose_defaults(config, kept)
    # The facts about the images decide their size, and the size the time of a step.
    side = OWN_SIDE if (largest := largest_side(config)) is None else min(max(largest, OWN_SIDE), SIDE)
    strided = {"stem_stride": STRIDE} if side >= STRIDE * OWN_SIDE else {}
    return choose_defaults(config.replace(img_size=side, model_args=strided), {*kept, "img_size", "model_args"})


def largest_side(config: TrainConfig) -> int | None:
    """The larger side of the largest of the sampled images; None where it is not known."""
    from mereo.data import dataset_info
    from mereo.training.facts import data_facts

    facts = data_facts(dataset_info(config.data, config.data_root), 1)
    return None if facts.largest is None else max(facts.largest)


def train_default(
    config: TrainConfig,
    given: Collection[str],
    defaults: Defaults,
    report: Report | None = None,
    show: Callable[[Defaults], None] = lambda second: None,
) -> RunResult:
    """Train with the chosen settings, and with a second network where the default one learns nothing.

    A resumed run does the same: whether it watches is part of its configuration.

    Args:
        config: before anything was chosen.
        given: names of the fields that were given.
        defaults: the chosen settings.
        report: shows the progress.
        show: prints the settings of the second network.
    """
    first = watched(defaults, given)
    try:
        return train(make_plan(first, defaults.info), report)
    except NotLearningError as stop:
        if WATCH not in first.callbacks or (defaults.choice is None and not config.resume):
            raise
        (report or Report()).say(
            f"{first.model} learns hardly anything here: after {stop.epochs} of {first.epochs} epochs"
            f" {stop.accuracy:.1%} of the validation images are right, and {stop.largest:.1%} are of one class;"
            f" {SECOND} takes its place"
        )
        stop.folder.remove()
        if defaults.choice is None:
            given = FIELDS.keys() - OPEN - ({"epochs"} if config.minutes is not None else set())
            config = TrainConfig().replace(**{name: getattr(config, name) for name in given})
        second = second_choice(config, given, first, stop.seconds)
        show(second)
        return train(make_plan(second.config, second.info), report)
