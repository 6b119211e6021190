"""The learning rate as a pure function of the step, so that a resumed run needs no saved state."""

import math

from mereo.training.config import TrainConfig

HALVED = 10_000
"""Steps after which the inverse schedule has half the rate, where decay_steps does not say."""


def learning_rate(config: TrainConfig, step: int, steps_per_epoch: int) -> float:
    """Rate of one step (counted from 0): a linear warm-up, then the schedule, never below `min_lr`.

    cosine       min + (lr - min) (1 + cos(pi t)) / 2, t from 0 after the warm-up to 1 after decay_steps, or at the end
    exponential  lr rate^(step / decay_steps), or lr rate^epoch without decay_steps
    inverse      lr / (1 + step / decay_steps), 10,000 steps by default
    constant     lr
    """
    warmup = round(config.warmup_epochs * steps_per_epoch) if config.warmup_steps is None else config.warmup_steps
    if step < warmup:
        return config.lr * (config.warmup_start + (1 - config.warmup_start) * step / warmup)
    if config.schedule == "constant":
        return config.lr
    if config.schedule == "inverse":
        return max(config.lr / (1 + (step - warmup) / (config.decay_steps or HALVED)), config.min_lr)
    if config.schedule == "exponential":
        power = (step - warmup) / config.decay_steps if config.decay_steps else (step - warmup) // steps_per_epoch
        return max(config.lr * config.decay_rate**power, config.min_lr)
    total = config.decay_steps or max(config.epochs * steps_per_epoch - warmup, 1)
    share = min((step - warmup) / total, 1.0)
    return config.min_lr + max(config.lr - config.min_lr, 0.0) * (1 + math.cos(math.pi * share)) / 2
