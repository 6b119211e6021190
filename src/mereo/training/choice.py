"""Chooses the settings of a training that are not given, as a pure function of facts about the data and the machine.

The rules were fitted to small data sets of several kinds: `mereo reproduce defaults` compares them with a tuned grid.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mereo.runtime.text import counted
from mereo.training.config import TrainConfig
from mereo.training.facts import GREY, PHOTOGRAPHS, TEXT, DataFacts

Seconds = Callable[[int | None, str], float]
"""Measured seconds of training for one image of a side, or of the size that the configuration gives for None, with a
precision."""

LEAST_MINUTES, MOST_MINUTES, IMAGES_OF_LEAST = 1.5, 20.0, 2500
"""Default time of a training: in proportion to the images, the least for up to so many."""
EPOCHS = (*range(1, 11), 12, 15, 18, 20, 25, 30, 35, 40, 50, 60, 70, 80, 100, 120, 150, 200, 250, 300, 400, 500)
"""Numbers of epochs that are chosen, so that small differences in the measured time rarely matter."""
LEAST_EPOCHS = 10
"""Epochs that a training has by default, even if it takes longer; with --minutes it is one."""
ENOUGH_EPOCHS, ENOUGH_STEPS = (60, 2500), (200, 8000)
"""Epochs, or steps where epochs are short, beyond which little is gained: by default, and with --minutes."""
EPOCHS_TO_ENLARGE = 25
"""Epochs that must fit into the time with larger images, or images stay at the size of the network."""
LOST_DETAIL = 0.15
"""Share of the variance that resizing may remove before larger images are chosen."""
LARGER = (1.5, 2.0)
"""Larger sides that are tried, divided by that of the network."""
LARGEST_SMALL_SIDE = 64
"""Networks for larger images are given images of their own size."""
OVERHEAD = 1.1
"""Time of a step, divided by that of its forward and backward pass."""
EPOCH_SECONDS = 0.15
"""Seconds of an epoch outside of its steps."""
EVALUATION = 0.35
"""Time to evaluate an image, divided by that of its forward and backward pass."""
BATCHES = ((12_000, 32), (40_000, 64))
"""Images up to which a batch size is chosen; 128 beyond."""
STEPS_OF_EPOCH = 4
"""Least steps of an epoch of a very small data set, which gets smaller batches."""
RATE, BATCH_NORM_RATE, CAPSULE_RATE = 1e-3, 7e-3, 3e-3
"""Peak learning rates of batches of 32 and more: of any network, of those that normalise by the batch only, and of the
family mspcaps."""
CAPSULE_RATE_OF_128 = 2e-3
FASTER = 0.8
"""bfloat16 is chosen where a step takes at most this fraction of the time that it takes in single precision."""
FINE_TUNING = 1 / 3
"""Factor of the learning rate where weights are given."""
WARMUP_STEPS = 20


@dataclass(frozen=True)
class Choice:
    """Settings that were chosen, by name, each with its reason; and the expected seconds, None where not measured."""

    values: Mapping[str, Any]
    reasons: Mapping[str, str]
    seconds: float | None = None


def default_minutes(images: int) -> float:
    """The time of a training of so many images, if none is given."""
    return round(min(max(LEAST_MINUTES, LEAST_MINUTES * images / IMAGES_OF_LEAST), MOST_MINUTES), 2)


def batch_for(images: int, parts: int = 1) -> int:
    """Images of a step: a power of two, of which a small data set has several, times the parts it is split into."""
    wanted = next((size for most, size in BATCHES if images <= most), 128)
    bound = max(min(wanted, images // STEPS_OF_EPOCH), min(4, images), 1)
    size = 2 ** int(math.log2(bound))
    return parts * max(size // parts, 1)


def rate_for(config: TrainConfig, batch_size: int, *, batch_norm: bool = False) -> float:
    """The peak rate of a network by its kind and batch: it falls with the root of batches below 32.

    Args:
        config: names the network.
        batch_size: images of a step.
        batch_norm: whether the network normalises by statistics of the batch only.
    """
    if config.optimizer not in ("adamw", "adam"):
        return config.lr
    rate = BATCH_NORM_RATE if batch_norm else RATE
    if config.model.startswith("mspcaps"):
        rate = CAPSULE_RATE if batch_size <= 64 else CAPSULE_RATE_OF_128
    if config.weights is not None:
        rate *= FINE_TUNING
    return float(f"{rate * min(math.sqrt(batch_size / 32), 1.0):.1e}")


def epochs_in(seconds: float, epoch_seconds: float, least: int, most: int) -> int:
    """The largest of EPOCHS that fits into a time, between two bounds; the lower one wins."""
    fitting = [n for n in EPOCHS if n * epoch_seconds <= seconds and n <= most]
    return max(fitting[-1] if fitting else 1, least)


def _augmentation(facts: DataFacts, side: int) -> tuple[tuple[str, ...], str]:
    if facts.kind is None:
        return ("auto",), "that of the data set"
    if facts.kind == TEXT:
        return ("zoom=0.75:1",), "text or drawings: never mirrored, no black borders"
    crop = f"crop={max(side // 8, 1)}"
    if facts.mirrored_means_another:
        return (crop,), f"{facts.kind} whose class names are signs or directions: not mirrored"
    assert facts.kind in (PHOTOGRAPHS, GREY)
    return (crop, "flip"), facts.kind


def _sides(facts: DataFacts, side: int) -> list[int]:
    """Sides from that of the network up to the smallest that keeps the detail; none above that of the images."""
    if facts.largest is None or not facts.lost or side > LARGEST_SMALL_SIDE:
        return [side]
    sides = [side]
    for factor in LARGER:
        lost = facts.lost.get(sides[-1], 0.0)
        larger = round(factor * side)
        if lost <= LOST_DETAIL or larger > max(facts.largest):
            break
        sides.append(larger)
    return sides


def epoch_seconds(each: float, images: int, validation_fraction: float) -> float:
    """Seconds of an epoch with its evaluation, from those of the forward and backward pass of one image."""
    held_out = images * validation_fraction / max(1 - validation_fraction, 0.1)
    return each * (OVERHEAD * images + EVALUATION * held_out) + EPOCH_SECONDS


def _how_large(facts: DataFacts, side: int, chosen: int) -> str:
    if facts.largest is None or facts.smallest is None:
        return "size of the network"
    sizes = [f"{width} x {height}" for height, width in (facts.smallest, facts.largest)]
    text = f"images are {sizes[0]}" if sizes[0] == sizes[1] else f"images are {sizes[0]} to {sizes[1]}"
    lost = facts.lost.get(chosen)
    kept = "" if lost is None else f", of whose detail {100 * (1 - lost):.0f} % is kept"
    return f"{text}{kept}" + ("" if chosen == side else f" ({100 * (1 - facts.lost[side]):.0f} % at {side})")


@dataclass(frozen=True)
class _Length:
    """Epochs on images of a side, None for the size that is given, and the expected seconds, None if not measured."""

    epochs: int
    side: int | None
    seconds: float | None = None


class _Chooser:
    """Collects the values of the fields that are not given, each with its reason."""

    def __init__(
        self, config: TrainConfig, given: Collection[str], facts: DataFacts, *, batch_norm: bool, bfloat16: bool
    ) -> None:
        self.config, self.given, self.facts = config, given, facts
        self.batch_norm, self.bfloat16 = batch_norm, bfloat16
        self.values: dict[str, Any] = {}
        self.reasons: dict[str, str] = {}

    def put(self, name: str, value: Any, reason: str) -> None:
        """Choose the value of a field, unless it is given."""
        if name not in self.given:
            self.values[name], self.reasons[name] = value, reason

    def batch_and_rate(self, parts: int) -> int:
        """Choose batch size and learning rate; returns the batch size."""
        config, images = self.config, self.facts.images
        self.put("batch_size", batch_for(images, parts), f"{images:,} images to train on")
        batch = int(self.values.get("batch_size", config.batch_size))
        tuned = "with these weights to start from" if config.weights is not None else f"for {config.model}"
        rate = rate_for(config, batch, batch_norm=self.batch_norm)
        self.put("lr", rate, f"{tuned} in batches of {batch}")
        return batch

    def precision(self, side: int | None, seconds: Seconds) -> str:
        """Choose the precision by its speed on images of a side."""
        if "precision" in self.given or not self.bfloat16:
            return self.config.precision
        single, half = seconds(side, "fp32"), seconds(side, "bf16")
        chosen = "bf16" if half <= FASTER * single else "fp32"
        self.put("precision", chosen, f"bf16 is {single / half:.1f} times as fast as fp32 on this machine")
        return chosen

    def length(self, sides: Sequence[int | None], steps: int, seconds: Seconds) -> _Length:
        """Choose the precision, the time and its epochs, on images of the largest side with which enough of them fit.

        Args:
            sides: that may be chosen, ascending.
            steps: of an epoch.
            seconds: measures the time of an image.
        """
        config, given, facts = self.config, self.given, self.facts
        minutes = config.minutes or default_minutes(facts.images)
        self.put("minutes", minutes, "by the number of images")
        held_out = 0.0 if config.paper_protocol else config.validation_fraction
        most_epochs, most_steps = ENOUGH_STEPS if "minutes" in given else ENOUGH_EPOCHS
        most = max(most_epochs, math.ceil(most_steps / steps))
        wanted = config.epochs if "epochs" in given else min(EPOCHS_TO_ENLARGE, most)
        precision = self.precision(sides[0], seconds)
        for side in reversed(sides):
            each = epoch_seconds(seconds(side, precision), facts.images, held_out)
            fitting = epochs_in(60 * minutes, each, 1, most)
            if fitting >= wanted:
                break
        # An explicit time is kept; the time by default is extended where a network would hardly learn.
        least = 1 if "minutes" in given else LEAST_EPOCHS
        epochs = config.epochs if "epochs" in given else max(fitting, min(least, most))
        full = epochs * each <= 60 * minutes < 1.5 * epochs * each or epochs < most
        why = f"what {minutes:g} minutes allow" if full else "more would gain little"
        if epochs * each > 60 * minutes:
            fewest = "one epoch takes longer" if epochs == 1 else "fewer would hardly learn"
            why = f"longer than {minutes:g} minutes, because {fewest}"
        self.put("epochs", epochs, f"{counted(steps * epochs, 'step')}, {why}")
        return _Length(epochs, side, epochs * each)

    def warmup(self, epochs: int, steps: int) -> None:
        """Choose the warm-up of a training of so many epochs, each of so many steps."""
        if self.config.warmup_steps is None:
            warmup = min(max(min(1.0, epochs / 10), WARMUP_STEPS / steps), max(epochs / 5, 0.1))
            self.put("warmup_epochs", round(warmup, 2), counted(round(warmup * steps), "step"))


def choose(
    config: TrainConfig,
    given: Collection[str],
    facts: DataFacts,
    side: int | None,
    seconds: Seconds | None = None,
    *,
    parts: int = 1,
    batch_norm: bool = False,
    bfloat16: bool = True,
) -> Choice:
    """The settings of a training that are not given.

    Args:
        config: with the values that are given, and defaults elsewhere.
        given: names of the fields that are kept as they are.
        facts: about the data.
        side: of the images that the network is made for; None if that cannot be chosen.
        seconds: measures the time of an image; None if no time is to be measured.
        parts: into which a batch is split, over time and over processes.
        batch_norm: whether the network normalises by statistics of the batch only.
        bfloat16: whether the device has it.
    """
    chooser = _Chooser(config, given, facts, batch_norm=batch_norm, bfloat16=bfloat16)
    steps = max(facts.images // max(chooser.batch_and_rate(parts), 1), 1)
    is_free = "img_size" not in given and "img_size" not in config.model_args
    sides: list[int | None] = [None] if side is None or not is_free else [*_sides(facts, side)]
    if seconds is None or ("epochs" in given and "minutes" not in given):
        length = _Length(config.epochs, sides[-1])
    else:
        length = chooser.length(sides, steps, seconds)
    if side is not None and length.side is not None:
        chooser.put("img_size", length.side, _how_large(facts, side, length.side))
    chooser.warmup(length.epochs, steps)
    own = config.img_size if isinstance(config.img_size, int) else min(config.img_size or (0,))
    chooser.put("augment", *_augmentation(facts, length.side or own or side or 32))
    if facts.classes and max(facts.classes.values()) < 2 and not config.paper_protocol:
        chooser.put("validation_fraction", 0.0, "no class has two images")
    return Choice(chooser.values, chooser.reasons, length.seconds)
