"""The learning rate as a pure function of the step, or, in a training of a given time, of the step and that time."""

import math
from collections.abc import Sequence
from time import monotonic, process_time

from mereo.training.config import TrainConfig

HALVED = 10_000
"""Steps after which the inverse schedule has half the rate, if decay_steps is not given."""
WARMUP_SHARE = 0.2
"""Share of the given time after which the warm-up ends, even if its steps are not done."""
EVALUATION, SINGLE = 0.35, 2.5
"""Time of evaluating an image, relative to its forward and backward pass; in single relative to half precision."""
ENDING = 2.0
"""Seconds of an own core for the results and pictures after the last evaluation, at most a twentieth of the time."""
GUESSED = 0.25
"""Share of the time that is kept for evaluations at most, before one has been timed."""
SHORTEST = 0.25
"""Part of an epoch that must fit into the remaining time for another epoch to begin."""

CLOCK = ("elapsed", "setup", "reserve")
"""Fields of the clock in the checkpoint of a training with a given time, in seconds."""


class Clock:
    """The time of a training: the share of it that has passed, and the number of epochs that fit into it.

    The last epoch ends early when the time is up.

    Args:
        minutes: that the training may take; None for a given number of epochs, which ends no epoch early.
        began: start of the training by `time.monotonic`; now by default.

    Attributes:
        setup: seconds before the first step, for reading the data.
        reserve: seconds that are kept for the evaluations and pictures after the last step.
    """

    def __init__(self, minutes: float | None = None, began: float | None = None) -> None:
        self.total = None if minutes is None else 60 * minutes
        self.began, self.setup, self.reserve = monotonic() if began is None else began, 0.0, 0.0
        self._start = monotonic(), process_time()

    @property
    def elapsed(self) -> float:
        """Seconds of the training so far, those before an interruption included."""
        return monotonic() - self.began

    @property
    def share(self) -> float | None:
        """The share of the time for training that has passed, in [0, 1]; None without a given time."""
        return None if self.total is None else min(self.elapsed / max(self.total - self.reserve, 1e-9), 1.0)

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self.share is not None and self.share >= 1

    def start(self) -> None:
        """The first step begins."""
        self.setup, self._start = self.elapsed, (monotonic(), process_time())

    @property
    def slowness(self) -> float:
        """Seconds that pass in one of the processor's, which other programs use too, since the start; at least 1."""
        began, worked = self._start
        return max((monotonic() - began) / max(process_time() - worked, 1e-9), 1.0)

    def keep(self, seconds: float, most: float = 0.5) -> None:
        """Keep seconds for the evaluations after the last step and for results, at most this share of the time."""
        if self.total is not None:
            self.reserve = min(seconds + self.slowness * min(ENDING, 0.05 * self.total), most * self.total)

    def epochs(self, done: float, most: int) -> int:
        """The number of epochs that the training will have, from the time that they took so far.

        Args:
            done: epochs so far, the present one as a fraction; the last one may be a part of an epoch.
            most: epochs of the configuration.
        """
        if self.total is None or not done:
            return most
        epoch_seconds = max(self.elapsed - self.setup, 1e-9) / done
        fitting = (self.total - self.reserve - self.elapsed) / epoch_seconds
        return min(math.ceil(done + max(fitting - SHORTEST, 0.0)), most)

    def state(self) -> dict[str, float]:
        """What a resumed run needs, as JSON values."""
        return {name: getattr(self, name) for name in CLOCK}

    def restore(self, elapsed: float, setup: float, reserve: float) -> None:
        """Continue from a saved state; the time since then does not count."""
        self.began, self.setup, self.reserve = monotonic() - elapsed, setup, reserve


def learning_rate(config: TrainConfig, step: int, steps_per_epoch: int, share: float | None = None) -> float:
    """Rate of one step (counted from 0): a linear warm-up, then the schedule, never below `min_lr`.

    cosine       min + (lr - min) (1 + cos(pi t)) / 2, t from 0 after the warm-up to 1 after decay_steps, or at the end
    exponential  lr rate^(step / decay_steps), or lr rate^epoch without decay_steps
    inverse      lr / (1 + step / decay_steps), 10,000 steps by default
    constant     lr
    plateau      lr, times `plateau_share` of the epochs so far

    Args:
        share: of a given time that has passed. Then t of a cosine without decay_steps is this share from the first step
            on, the warm-up is a factor, and it ends after a fifth of the time at the latest.
    """
    warmup = round(config.warmup_epochs * steps_per_epoch) if config.warmup_steps is None else config.warmup_steps
    risen = 1.0 if step >= warmup else step / warmup
    if share is not None:
        risen = min(max(risen, share / WARMUP_SHARE), 1.0)
    peak = config.lr if risen == 1 else config.lr * (config.warmup_start + (1 - config.warmup_start) * risen)
    if config.schedule == "cosine" and config.decay_steps is None and share is not None:
        total = max(config.epochs * steps_per_epoch, 1)
        return config.min_lr + max(peak - config.min_lr, 0.0) * (1 + math.cos(math.pi * max(share, step / total))) / 2
    if step < warmup or config.schedule in ("constant", "plateau"):
        return peak
    if config.schedule == "inverse":
        return max(config.lr / (1 + (step - warmup) / (config.decay_steps or HALVED)), config.min_lr)
    if config.schedule == "exponential":
        power = (step - warmup) / config.decay_steps if config.decay_steps else (step - warmup) // steps_per_epoch
        return max(config.lr * config.decay_rate**power, config.min_lr)
    total = config.decay_steps or max(config.epochs * steps_per_epoch - warmup, 1)
    t = min((step - warmup) / total, 1.0)
    return config.min_lr + max(config.lr - config.min_lr, 0.0) * (1 + math.cos(math.pi * t)) / 2


def plateau_share(config: TrainConfig, losses: Sequence[float]) -> float:
    """The part of the rate that the schedule plateau leaves after some epochs; 1 for other schedules.

    It is a function of their losses alone, so a resumed training continues with the same rate.
    """
    if config.schedule != "plateau" or not losses:
        return 1.0
    from torch import optim, zeros

    optimizer = optim.SGD([zeros(1)], config.lr)
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=config.plateau_factor, patience=config.plateau_patience, cooldown=config.plateau_cooldown,
        min_lr=min(config.min_lr, config.lr),
    )  # fmt: skip
    for loss in losses:
        scheduler.step(loss)
    return float(optimizer.param_groups[0]["lr"] / config.lr)
