"""The settings of a training that are not given, chosen before it starts, each with its reason.

A task states its networks, its data and usual settings; a network its rate, its loss and the size of its images; data
their augmentation. The rest follows from the number of images, a sample of them, and the measured time of a step. All
are plain numbers that the run folder keeps, so that a run is resumed and repeated as it was.
"""

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from mereo.data import DatasetInfo, dataset_info
from mereo.data.characters import are_signs
from mereo.data.facts import FEWEST, TEXT, DataFacts, data_facts
from mereo.data.load import seconds_to_read
from mereo.data.set_aside import test_fraction
from mereo.errors import UsageError
from mereo.escape import for_terminal
from mereo.models import get_model_entry
from mereo.models.registry import outline
from mereo.runtime.text import counted, duration
from mereo.tasks.base import Task, get_task, task_for, task_with
from mereo.training.backend import has_bfloat16
from mereo.training.config import TrainConfig
from mereo.training.estimate import estimate
from mereo.training.option_values import show_size
from mereo.training.plan import Plan, make_plan, training_images
from mereo.training.schedule import EVALUATION, SINGLE
from mereo.training.setup import BLACK
from mereo.training.threads import threads_kept, use_fastest
from mereo.training.trial_step import TrialStep

MINUTES, MOST_MINUTES, IMAGES = 1.5, 20.0, 2500
"""Default minutes of a training: the least, for up to this many images, then in proportion to them, and the most."""
LEAST_EPOCHS, ENOUGH_EPOCHS, ENOUGH_STEPS, AT_MOST = 15, 60, 2500, 10
"""Epochs that a network needs to learn; epochs, or steps if images are few, beyond which little is gained; and the
largest multiple of these in a training with a given time."""
EPOCHS_TO_ENLARGE, CHEAPEST = 40, 0.5
"""Epochs of larger images that must fit for them to be chosen. Before larger images are timed, they are taken to cost
at least CHEAPEST of what their area suggests."""
LARGE, SMALLER, MULTIPLE = 64, (0.75, 0.5, 0.3), 32
"""Networks of larger images get smaller ones, multiples of 32, where LEAST_EPOCHS of their own do not fit."""
STEP, EPOCH = 1.1, 0.15
"""Time of a step, relative to a forward and backward pass, and the other seconds of an epoch."""
READING, TESTING, TESTS, FEWEST_TESTED = 0.2, 0.2, 3, 300
"""Shares of a given time for reading the images and for testing; how often test images are evaluated, least number of
them that is tested in any case."""
READING_TIMED, READ_AT = 0.02, 64
"""Share of a given time for timing how long reading takes, and side of the images for that."""
FASTER, TIMED_SECONDS = 0.8, 0.45
"""bfloat16 is chosen if a step takes at most this share of its time; seconds spent on measuring that."""
FINE_TUNING, WARMUP_STEPS = 1 / 3, 20
"""Factor of the rate if weights are given; least steps of a warm-up."""
PAIR, IDENTITIES = 1.5, 20
"""Images of an identity that must be held out to find one by another, or else identities; with fewer the last epoch
counts."""
SHOWN = 20
"""Classes that are listed by name."""

Seconds = Callable[[int | None, str], float]
"""Measured seconds of training for one image of a side, None for the size that is given, with a precision."""


def batch_for(images: int, parts: int = 1) -> int:
    """Images of a step: 32 to 128, a power of two that a small data set fills several times; a multiple of `parts`."""
    bound = max(min(max(images // 375, 32), 128, images // 4), min(4, images), 1)
    return int(parts * max(2 ** int(math.log2(bound)) // parts, 1))


def rate_for(config: TrainConfig, usual: float, batch_size: int) -> float:
    """The peak rate from the usual one of a network: it falls with the root of batches below 32."""
    if config.optimizer not in ("adamw", "adam"):
        return config.lr
    rate = usual if config.weights is None or config.pretrained else FINE_TUNING * usual
    return float(f"{rate * min(math.sqrt(batch_size / 32), 1.0):.1e}")


def sides_for(
    own: int, largest: int | None, larger: Sequence[float] = Task.larger_sides, finest: int | None = None
) -> list[int]:
    """Sides of images that may be chosen for a network of a side, the largest first.

    Args:
        own: side of the network.
        largest: of the sides of the images, which are not enlarged if that can be avoided.
        larger: sides of larger images divided by the network's, in descending order.
        finest: the smallest side that is enough for the masks; a network of small images gets no larger ones.
    """
    if own <= LARGE:
        most = min(largest or own, finest or largest or own)
        return [side for factor in larger if (side := round(factor * own)) <= most] + [own]
    sides = [own, *(max(int(factor * own) // MULTIPLE, 1) * MULTIPLE for factor in SMALLER)]
    return [side for side in sides if largest is None or side <= max(largest, LARGE)] or sides[-1:]


def tested_images(info: DatasetInfo) -> int:
    """Test images, counted without reading them."""
    return info.splits.get("test", round(test_fraction(info.splits) * info.splits.get("train", 0)))


def epochs_of(config: TrainConfig, facts: DataFacts, each: float, minutes: float) -> float:
    """Epochs that fit into a time, evaluations included, from the seconds of one image."""
    return 60 * minutes / (each * (STEP * facts.images + EVALUATION * held_out(config, facts)) + EPOCH)


def held_out(config: TrainConfig, facts: DataFacts) -> float:
    """Images that choose the epoch."""
    fraction = 0.0 if config.paper_protocol else config.validation_fraction
    return facts.images * fraction / max(1 - fraction, 0.1)


@dataclass(frozen=True)
class Automatic:
    """A configuration with its open settings chosen.

    Attributes:
        config: every field is explicit, except fields that a plan resolves.
        info: of the data, so that it need not be scanned again; None if nothing was chosen.
        facts: from which the settings were chosen; None if nothing was chosen.
        reasons: of the settings that were chosen, by name.
        seconds: that the training is expected to take; None if not measured.
        stated: names of the settings that its task states.
    """

    config: TrainConfig
    info: DatasetInfo | None = None
    facts: DataFacts | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)
    seconds: float | None = None
    stated: Collection[str] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that were not given, by name."""
        return {name: getattr(self.config, name) for name in (*self.stated, *self.reasons)}

    def plan(self) -> Plan:
        """The plan of the training."""
        return make_plan(self.config, self.info)

    def lines(self, *, timed: bool = True) -> list[str]:
        """Lines to print before the start: classes, sizes, every setting with its reason, and the expected time."""
        config, facts = self.config, self.facts
        if facts is None:
            return []
        unit, kind = get_task(config.task).unit, f" ({facts.kind})" if facts.kind else ""
        # The classes are counted before images are held out or limited.
        total = sum(facts.classes.values())
        some = f"{facts.images:,} of {total:,}" if facts.images < total else f"{facts.images:,}"
        several = unit == "images" and facts.num_classes > 1
        classes = f"{facts.num_classes} {get_task(config.task).outputs_are}, " if several else ""
        lines = [f"{config.data}: {classes}{some} {unit} to train on{kind}"]
        if facts.classes:
            named = [f"{for_terminal(name)} {count:,}" for name, count in [*facts.classes.items()][:SHOWN]]
            more = [f"and {len(facts.classes) - SHOWN} more"] if len(facts.classes) > SHOWN else []
            lines.append("  " + ", ".join([*named, *more]))
        options = {name: f"--{name.replace('_', '-')}" for name in self.reasons}
        rows = sorted((f"{options[n]} {show_setting(n, getattr(config, n))}", why) for n, why in self.reasons.items())
        lines += [f"chosen for {config.model} on this data; any option given is kept:"] if rows else []
        width = max((len(words) for words, _ in rows), default=0)
        lines += [f"  {words:<{width}}  {reason}" for words, reason in rows]
        if timed and self.seconds is not None:
            lines.append(f"expected time: {duration(self.seconds)}, with the evaluation of each epoch")
        if facts.too_few:
            lines.append(
                f"{FEWEST - 1} images of a class or fewer are too few to learn and to measure it by"
                f" ({', '.join(map(for_terminal, facts.too_few[:SHOWN]))}): add images, or leave the class out"
            )
        # Signs are pointed out when the images are read.
        if facts.kind == TEXT and not are_signs(tuple(facts.classes)):
            used = {text.partition("=")[0] for text in config.augment}
            if "flip" in used:
                lines.append("flip mirrors the images, which look like text or drawings; leave it out of --augment")
            if black := sorted(used & BLACK):
                puts = "puts" if len(black) == 1 else "put"
                lines.append(f"{' and '.join(black)} {puts} black borders on images that look like text or drawings")
        return lines


def show_setting(name: str, value: Any) -> str:
    """The value of a field as text, as an option takes it."""
    if isinstance(value, tuple):
        return show_size(value) if name == "img_size" else " ".join(value)
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def stated_by(task: type[Task], given: Collection[str]) -> dict[str, Any]:
    """The settings that a task states, beside those that are given; a given time replaces a number of epochs."""
    stated = {**task.settings, **({} if "data" in given else task.example_settings)}
    kept = {*given, *({"epochs"} if "minutes" in given else ())}
    return {name: value for name, value in stated.items() if name not in kept}


def follow_task(config: TrainConfig, given: Collection[str]) -> TrainConfig:
    """The configuration with its task, by default its network's, and the settings that the task states for fields that
    are not given."""
    task = get_task(config.task)
    task = task_for(get_model_entry(config.model if "model" in given else task.example_model).module, task.name)
    named = {"model": task.example_model, "data": task.example_data, **stated_by(task, given)}
    return config.replace(task=task.name, **{name: value for name, value in named.items() if name not in given})


def implied_task(data: str, data_root: str | None) -> str | None:
    """The task of images that have no classes, such as numbers or masks; None for images with classes, and for other
    data."""
    try:
        fields = dataset_info(data, data_root, options=TrainConfig().layout._replace(task=None, follows=True)).fields
    except UsageError:
        return None
    fitting = None if "labels" in fields else task_with(fields)
    return None if fitting is None else fitting.name


class Chooser:
    """Collects the values of the fields that are not given, each with its reason.

    Args:
        config, given, facts: as in `choose`.
        tested: test images.
        reading: seconds of reading an image.
    """

    def __init__(
        self, config: TrainConfig, given: Collection[str], facts: DataFacts, tested: int = 0, reading: float = 0.0
    ) -> None:
        self.config, self.given, self.facts = config, given, facts
        self.tested, self.reading = tested, reading
        self.reasons: dict[str, str] = {}

    def put(self, name: str, value: Any, reason: str) -> None:
        """Choose the value of a field, unless it is given."""
        if name not in self.given:
            self.config, self.reasons[name] = self.config.replace(**{name: value}), reason

    def read_in_time(self) -> None:
        """Take a part of the images where reading all of them would take too much of the given time."""
        read = self.facts.images + held_out(self.config, self.facts)
        share = READING * 60 * (self.config.minutes or math.inf) / max(self.reading * read, 1e-9)
        if share < 1 and "limit" not in self.given:
            images = max(int(share * self.facts.images), min(FEWEST * self.facts.num_classes, self.facts.images))
            self.put("limit", images, f"reading all {self.facts.images:,} would take {duration(self.reading * read)}")
            self.facts = replace(self.facts, images=images)

    def outside(self, each: float) -> tuple[float, int]:
        """Seconds of the given time for reading and testing, and the test images for which there is time.

        Args:
            each: seconds of training for one image.
        """
        final = get_task(self.config.task).final_cost * (1 if self.config.precision == "fp32" else SINGLE)
        total, one = 60 * (self.config.minutes or math.inf), self.reading + TESTS * EVALUATION * final * each
        tested = min(self.tested, max(int(min(TESTING * total / one, self.tested)), FEWEST_TESTED))
        if "test_limit" in self.given:
            tested = self.tested
        read = self.reading * (self.facts.images + held_out(self.config, self.facts))
        return min(read + one * tested, total / 2), tested

    def length(self, sides: Sequence[int | None], own: int | None, steps: int, seconds: Seconds, clock: bool) -> float:
        """Choose the size of the images and the number of epochs by the measured time; returns the expected seconds.

        Args:
            sides: that may be chosen, the largest first.
            own: side of the network.
            steps: of an epoch.
            seconds: measures the time of an image.
            clock: whether a given time is kept by a clock.
        """
        given = self.config.minutes
        minutes = given or round(min(max(self.facts.images / IMAGES, 1) * MINUTES, MOST_MINUTES), 2)
        for side in sides:
            needed = LEAST_EPOCHS
            if side and own and side > own:
                needed = EPOCHS_TO_ENLARGE
                guess = CHEAPEST * (side / own) ** 2 * seconds(own, self.config.precision)
                if epochs_of(self.config, self.facts, guess, minutes) < needed:
                    continue  # a step of images that are much too large is not even timed
            each = seconds(side, self.config.precision)
            outside, tested = self.outside(each) if given and clock else (0.0, self.tested)
            fitting = epochs_of(self.config, self.facts, each, minutes - outside / 60)
            if fitting >= needed:
                break
        if side is not None and own is not None:
            why = f"{EPOCHS_TO_ENLARGE} epochs of them fit" if side > own else "of larger ones fewer epochs fit"
            self.put("img_size", side, "size of the network" if side == own else why)
        if tested < self.tested:
            self.put("test_limit", tested, f"testing all {self.tested:,} would take too much of the time")
        enough = max(ENOUGH_EPOCHS, math.ceil(ENOUGH_STEPS / steps))
        fewer = f", and {LEAST_EPOCHS} are better: give more --minutes" if fitting < LEAST_EPOCHS else ""
        if given and clock:
            self.put("epochs", AT_MOST * enough, f"at most; {given:g} minutes allow about {max(fitting, 1):.0f}{fewer}")
            return 60 * given
        most, least = (AT_MOST * enough, 1) if given else (enough, LEAST_EPOCHS)
        # Small differences in the measured time rarely change multiples of five.
        epochs = int(min(max(fitting - (fitting > 20) * (fitting % 5), least), most))
        why = f"what {minutes:g} minutes allow{fewer}" if epochs < most else "more would gain little"
        if epochs > fitting:
            why = f"longer than {minutes:g} minutes, because fewer would hardly learn"
        self.put("epochs", epochs, f"{counted(steps * epochs, 'step')}, {why}")
        self.config = self.config.replace(minutes=None)
        return 60 * minutes * epochs / fitting

    def arithmetic(self, side: int | None, seconds: Seconds) -> None:
        """Choose the precision by its speed on images of a side."""
        if "precision" not in self.given:
            ratio = seconds(side, "fp32") / seconds(side, "bf16")
            chosen = "bf16" if FASTER * ratio >= 1 else "fp32"
            self.put("precision", chosen, f"bf16 is {ratio:.1f} times as fast as fp32 on this machine")

    def warmup(self, steps: int) -> None:
        """Choose the warm-up, given the number of steps in an epoch."""
        epochs = self.config.epochs
        if self.config.warmup_steps is None:
            warmup = min(max(min(1.0, epochs / 10), WARMUP_STEPS / steps), max(epochs / 5, 0.1))
            self.put("warmup_epochs", round(warmup, 2), counted(round(warmup * steps), "step"))


def choose(
    config: TrainConfig, given: Collection[str], info: DatasetInfo | None = None, *, by_clock: bool = True
) -> Automatic:
    """Choose the settings that are not given from the task, the network, the data and a timed step.

    Several processes could measure different times, so they take the number of epochs of `TrainConfig`.

    Args:
        config: with defaults where nothing is given.
        given: names of the fields that were given, by an option or in Python.
        info: of the data, if already known.
        by_clock: whether a training of given minutes follows a clock; otherwise its number of epochs is fixed here.
    """
    config.check()
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1 and "minutes" in given:
        raise UsageError(
            f"minutes is {config.minutes:g} with {processes} processes, which take one time; give --epochs."
        )
    fixed, asked = "task" in given or "model" in given, config
    config = follow_task(config, given)
    module, task = get_model_entry(config.model).module, get_task(config.task)
    if info is None:
        options = config.layout._replace(task=task.name if fixed else None, follows="task" not in given)
        inputs = module.input_kind if fixed else None
        info = dataset_info(config.data, config.data_root, inputs=inputs, unseen=task.unseen_classes, options=options)
    fitting = None if "task" in given else task_with(info.fields, info.name)
    if fitting is not None and {*task.requires} <= {*info.fields}:
        # A kind of the same task that uses more of the data, such as the labels of tokens.
        more = issubclass(fitting, task) and len(fitting.requires) > len(task.requires)
        fitting = fitting if more else None
    if fitting is not None and ("model" not in given or fitting.trains(module)):
        config = follow_task(asked.replace(task=fitting.name), given)
        task, module = fitting, get_model_entry(config.model).module
    facts = data_facts(info, training_images(config, info))
    stated = stated_by(task, given)
    chooser = Chooser(config, {*given, *stated}, facts)
    if not {"model", "model_args", "weights"} & {*given}:
        if facts.colour and task.colour_model:
            chooser.put("model", task.colour_model, "images in colour")
        elif task.large_model and (facts.largest or 0) >= LARGE and info.path is not None:
            chooser.put("model", task.large_model, f"images of up to {facts.largest} pixels")
    # Before anything is measured, so that an invalid setting is reported at once.
    plan, entry = make_plan(chooser.config, info), get_model_entry(chooser.config.model)
    facts = chooser.facts = replace(facts, images=training_images(config, plan.info))
    timed = by_clock and config.minutes is not None and processes == 1
    chooser.tested = min(tested_images(info), config.test_limit or tested_images(info))
    if timed and module.input_kind == "images":
        limit = READING_TIMED * 60 * (config.minutes or 0.0)
        chooser.reading = seconds_to_read(info, (READ_AT, READ_AT), plan.config.in_chans or info.in_chans, limit)
        chooser.read_in_time()
        facts = chooser.facts
    batch_size = batch_for(facts.images, config.accumulate * processes)
    chooser.put("batch_size", batch_size, f"{facts.images:,} {task.unit} to train on")
    start = " and these weights" if config.weights is not None else ""
    rate = rate_for(chooser.config, entry.usual_rate, chooser.config.batch_size)
    chooser.put("lr", rate, f"for {entry.name}{start} in batches of {chooser.config.batch_size}")
    steps, base = max(facts.images // chooser.config.batch_size, 1), chooser.config

    def sized(side: int | None) -> TrainConfig:
        return base if side is None else base.replace(img_size=side)

    @cache
    def seconds(side: int | None, precision: str) -> float:
        return TrialStep(make_plan(sized(side).replace(precision=precision), info)).image_seconds(TIMED_SECONDS)

    own = entry.defaults.get("img_size")
    if config.weights is not None or not isinstance(own, int) or "img_size" in {*chooser.given, *config.model_args}:
        own = None
    trial = TrialStep(plan)
    expected, estimated = None, estimate(trial, measure=False, operations=False)
    # What does not fit into memory is not timed; a warning follows before the training.
    if "epochs" not in chooser.given and processes == 1 and estimated.memory <= estimated.available:
        wanted: Sequence[int | None] = [None]
        if own is not None:
            wanted = sides_for(own, facts.largest, task.larger_sides, facts.finest)
        most = (own or 0) * math.sqrt(estimated.available / estimated.memory)  # memory grows with the area
        sides = [
            side
            for side in wanted
            if side is None or side == own or (side <= most and _can_take(make_plan(sized(side), info)))
        ] or [own]
        with threads_kept():
            if timed:
                use_fastest(plan.device, lambda: trial.image_seconds(TIMED_SECONDS / 2))
            if has_bfloat16(plan.device):
                chooser.arithmetic(sides[-1], seconds)
            expected = chooser.length(sides, own, steps, seconds, by_clock)
    elif own is not None:
        chooser.put("img_size", own, "size of the network")
    chooser.warmup(steps)
    if module.input_kind == "images":
        side = chooser.config.img_size or plan.config.img_size or 32
        shortest = min(side) if isinstance(side, tuple) else side
        chooser.put("augment", *facts.augmentation(shortest, mirror=task.may_mirror))
    if facts.uneven and task.scores_classes:
        chooser.put("sampler", "balanced", "classes of very different sizes")
    if facts.classes and max(facts.classes.values()) < 2 and not config.paper_protocol:
        chooser.put("validation_fraction", 0.0, "no class has two images")
    if task.unseen_classes and facts.classes and "validation" not in info.splits and not config.paper_protocol:
        # Images whose identity no other held-out image has find nothing, and a few identities are always found.
        fraction, trained = config.validation_fraction, 1 - test_fraction(info.splits)
        alike = max(facts.classes.values()) * trained * fraction
        if alike < PAIR and len(facts.classes) * fraction < IDENTITIES:
            chooser.put("validation_fraction", 0.0, "too few images of an identity to choose the epoch by")
    return Automatic(chooser.config, info, facts, chooser.reasons, expected, tuple(stated))


def _can_take(plan: Plan) -> bool:
    """Whether the network of a plan takes images of its size."""
    try:
        outline(plan.config.model, **plan.arguments)
    except UsageError:
        return False
    return True
