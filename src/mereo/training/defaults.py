"""The settings that a training has by default, chosen from its data and its time before it starts.

They are resolved once, to plain numbers that the run folder keeps, so that a run is resumed and repeated as it was.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from mereo.data import DatasetInfo, dataset_info
from mereo.data.characters import are_signs
from mereo.errors import UsageError
from mereo.escape import for_terminal
from mereo.models import get_model_entry
from mereo.runtime.printing import say
from mereo.runtime.text import duration
from mereo.tasks.base import get_task, task_for
from mereo.training.backend import has_bfloat16
from mereo.training.batch_norm import normalises_batches
from mereo.training.choice import Choice, choose
from mereo.training.config import FIELDS, TrainConfig
from mereo.training.estimate import estimate
from mereo.training.facts import TEXT, DataFacts, data_facts
from mereo.training.option_values import show_size
from mereo.training.plan import Plan, make_plan, training_images
from mereo.training.setup import BLACK
from mereo.training.trial_step import TrialStep

TIMED_SECONDS = 0.45
"""Seconds spent on timing a step."""
SHOWN = 20
"""Classes that are listed by name."""


@dataclass(frozen=True)
class Defaults:
    """A configuration with its open settings chosen, and what they were chosen from.

    Attributes:
        config: all of it explicit but what a plan resolves.
        info: of the data, so that it need not be scanned again; None where nothing was chosen.
        facts, choice: what was known, and what was chosen; None where nothing was.
        given: the fields that were given, by name; None where nothing was chosen.
    """

    config: TrainConfig
    info: DatasetInfo | None = None
    facts: DataFacts | None = None
    choice: Choice | None = None
    given: Mapping[str, Any] | None = None

    def plan(self) -> Plan:
        """The plan of the training."""
        return replace(make_plan(self.config, self.info), given=self.given)

    def lines(self, *, timed: bool = True) -> list[str]:
        """Lines to print before the start: classes, sizes, every setting with its reason, and the expected time."""
        if self.facts is None or self.choice is None:
            return []
        unsuited = _unsuited(self.config, self.facts)
        return [*_describe(self.config, self.facts), *_settings(self.config, self.choice, timed=timed), *unsuited]


def choose_defaults(config: TrainConfig, given: Collection[str], info: DatasetInfo | None = None) -> Defaults:
    """Choose the settings that are not given from the data and from --minutes.

    Several processes could measure different times, so of what follows from time they take the number of epochs of
    `TrainConfig`. Networks that read tokens, and tasks with settings of their own, keep all that they have.

    Args:
        config: with defaults where nothing is given.
        given: names of the fields that were given, by an option or in Python.
        info: of the data, where that is known already.
    """
    config.check()
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1 and "minutes" in given:
        raise UsageError(
            f"minutes is {config.minutes:g} with {processes} processes, which take one time; give --epochs."
        )
    entry = get_model_entry(config.model)
    if not task_for(entry.module, config.task).chooses_settings:
        return Defaults(config)
    side = entry.defaults["img_size"]
    info = dataset_info(config.data, config.data_root, inputs=entry.module.input_kind) if info is None else info
    facts = data_facts(info, training_images(config, info))
    # Before anything is measured, so that an invalid setting is reported at once.
    plan = make_plan(config, info)

    @cache
    def seconds(chosen: int | None, precision: str) -> float:
        sized = config if chosen is None else config.replace(img_size=chosen)
        return TrialStep(make_plan(sized.replace(precision=precision), info)).image_seconds(TIMED_SECONDS)

    own = side if isinstance(side, int) and config.weights is None else None
    # What does not fit into memory is not timed; a warning follows before the training.
    trial = TrialStep(plan)
    estimated = estimate(trial, measure=False, operations=False)
    timed = estimated.memory <= estimated.available and processes == 1
    choice = choose(
        config, given, facts, own, seconds if timed else None,
        parts=config.accumulate * processes, batch_norm=normalises_batches(trial.model),
        bfloat16=has_bfloat16(plan.device),
    )  # fmt: skip
    kept = {name: getattr(config, name) for name in FIELDS if name in given}
    return Defaults(config.replace(**choice.values), info, facts, choice, kept)


def follow_task(config: TrainConfig, given: Collection[str]) -> TrainConfig:
    """The configuration with the network, data and settings that its task names, in place of what is not given."""
    task = get_task(config.task)
    if task.chooses_settings:
        return config
    named = {"model": task.example_model, "data": task.example_data, **task.settings}
    if "data" not in given:
        named |= task.example_settings
    return config.replace(**{name: value for name, value in named.items() if name not in given})


def show_defaults(defaults: Defaults, *, timed: bool = True) -> None:
    """Print what was chosen; without the expected time where no training follows, or it is timed at length."""
    for line in defaults.lines(timed=timed):
        say(line)


def _describe(config: TrainConfig, facts: DataFacts) -> list[str]:
    kind = "" if facts.kind is None else f" ({facts.kind})"
    # The classes are counted before images are held out or limited.
    total = sum(facts.classes.values())
    some = f"{facts.images:,} of {total:,}" if facts.images < total else f"{facts.images:,}"
    lines = [f"{config.data}: {facts.num_classes} classes, {some} images to train on{kind}"]
    if facts.classes:
        shown = list(facts.classes.items())[:SHOWN]
        more = f", and {len(facts.classes) - SHOWN} more" if len(facts.classes) > SHOWN else ""
        lines.append("  " + ", ".join(f"{for_terminal(name)} {count:,}" for name, count in shown) + more)
    return lines


def _unsuited(config: TrainConfig, facts: DataFacts) -> list[str]:
    """Lines about changes given with --augment that do not suit images of text or drawings."""
    if facts.kind != TEXT or are_signs(tuple(facts.classes)):  # signs are pointed out when the images are read
        return []
    used = {text.partition("=")[0] for text in config.augment}
    lines = ["flip mirrors the images, which look like text or drawings; leave it out of --augment"]
    lines = lines if "flip" in used else []
    if black := sorted(used & BLACK):
        puts = "puts" if len(black) == 1 else "put"
        lines.append(f"{' and '.join(black)} {puts} black borders on images that look like text or drawings")
    return lines


def show_setting(name: str, value: Any) -> str:
    """The value of a field as text, as an option takes it."""
    if isinstance(value, tuple):
        return show_size(value) if name == "img_size" else " ".join(value)
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _settings(config: TrainConfig, choice: Choice, *, timed: bool) -> list[str]:
    rows = sorted(
        (f"--{name.replace('_', '-')} {show_setting(name, value)}", choice.reasons[name])
        for name, value in choice.values.items()
    )
    lines = [f"chosen for {config.model} on this data; any option given is kept:"] if rows else []
    width = max((len(option) for option, _ in rows), default=0)
    lines += [f"  {option:<{width}}  {reason}" for option, reason in rows]
    if timed and choice.seconds is not None:
        lines.append(f"expected time: {duration(choice.seconds)}, with the evaluation of each epoch")
    return lines
