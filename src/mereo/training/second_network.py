"""The default network, and a plain one in its place where it learns too little."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from mereo.runtime.text import percent
from mereo.training.config import TrainConfig
from mereo.training.defaults import Defaults, choose_defaults
from mereo.training.learning import NotLearningError
from mereo.training.plan import Plan
from mereo.training.report import Report
from mereo.training.results import RunResult
from mereo.training.run_folder import INCIDENTAL
from mereo.training.trainer import train

WATCH = "learning"
"""The callback that ends a training which learns too little."""
SECOND = "resnet20"
"""The network that replaces one that learns too little: residual, without capsules, for images of any size."""
LEAST_SHARE = 1 / 3
"""Least fraction of the time of the first network that the second one has."""
KEPT = INCIDENTAL - {"name", "resume", "minutes"}
"""Fields of the first network that the second keeps: the device and such, which a resumed run may have changed."""


def watched(defaults: Defaults) -> Defaults:
    """The settings with the callback `learning`, which ends a training that learns too little.

    That is only where the network was not given and its settings were chosen, with validation images and in one
    process. Otherwise the settings stay as they are, without what was given, so that no second network is trained.
    """
    config, given = defaults.config, defaults.given
    is_open = given is not None and not {"model", "model_args", "weights", "callbacks"} & given.keys()
    if not is_open or config.paper_protocol or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return replace(defaults, given=None)
    return replace(defaults, config=config.replace(callbacks=(WATCH,)))


def second_choice(first: TrainConfig, given: Mapping[str, Any], seconds: float) -> Defaults:
    """The settings of the second network, in what the first left of `--minutes`, or for the time by default.

    Args:
        first: the settings of the first network.
        given: the fields that the user gave, which are kept; the others are chosen anew.
        seconds: that the first network took.
    """
    kept = {**given, **{name: getattr(first, name) for name in KEPT}}
    kept |= {"model": SECOND, "callbacks": (), "resume": False}
    if "minutes" in given and "epochs" not in given and first.minutes is not None:
        kept["minutes"] = round(max(first.minutes - seconds / 60, LEAST_SHARE * first.minutes), 2)
    return choose_defaults(TrainConfig().replace(**kept), kept)


def train_watched(
    plan: Plan, report: Report | None = None, plan_of: Callable[[Defaults], Plan] = Defaults.plan
) -> RunResult:
    """Train, and train a second network where the first learns too little and was not given.

    A resumed run does the same, because its checkpoint keeps what was given.

    Args:
        plan: of `watched` settings, or of a run to resume.
        report: shows the progress.
        plan_of: the plan of the second network, which may print its settings.
    """
    try:
        return train(plan, report)
    except NotLearningError as stop:
        if stop.given is None:
            raise
        first = plan.config
        (report or Report()).say(
            f"{first.model} learns too little: after {stop.epochs} of {first.epochs} epochs its accuracy on the"
            f" validation images is {percent(stop.accuracy, 1)}, where guessing the largest class gives"
            f" {percent(stop.largest, 1)}; {SECOND} is trained instead"
        )
        stop.folder.remove()
        return train(plan_of(second_choice(first, stop.given, stop.seconds)), report)
