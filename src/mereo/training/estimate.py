"""The cost of a training before it starts: parameters, FLOPs, memory and the time of an epoch."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from mereo.inference.flops import forward_flops
from mereo.inference.footprint import LARGE, stored_bytes
from mereo.runtime.memory import free_memory
from mereo.training.config import TrainConfig
from mereo.training.plan import Plan, as_plan, training_images
from mereo.training.trial_step import TrialStep
from mereo.training.unreadable import without_unreadable

PROBE = 4
"""Images of the small batch from which memory is extrapolated."""

TIMING_SECONDS = 3.0
"""Approximate seconds spent on timing a step."""

WORKSPACE = 128 * 2**20
"""Bytes for buffers of libraries. This, and gradients of activations as large as the stored activations, were fitted to
the resident memory of CapsNet, MSPCaps-T and Efficient-CapsNet on a CPU; for other devices they are a guess."""

LONG_FLOPS = 5e12
"""Operations of a training beyond which its time is estimated before it starts: about a minute on a few cores."""


@dataclass(frozen=True)
class Estimate:
    """The result of a dry run.

    Attributes:
        parameters: of the network, decoder included.
        trained: parameters that are not frozen.
        flops: of the forward pass of one image; a multiply-add counts as two.
        memory: estimated bytes of a training step: weights, gradients, optimiser, stored activations.
        available: free bytes.
        step_seconds: measured time of an optimiser step, or None.
        images: training images per epoch.
        batch_size: images per optimiser step.
        epochs: of the training.
    """

    parameters: int
    trained: int
    flops: int
    memory: int
    available: int
    step_seconds: float | None
    images: int
    batch_size: int
    epochs: int

    @property
    def epoch_seconds(self) -> float | None:
        """Time of an epoch without its evaluation."""
        return None if self.step_seconds is None else self.step_seconds * (self.images / self.batch_size)

    @property
    def long(self) -> bool:
        """Whether the training takes minutes even on a fast machine, by its number of operations."""
        return 3 * self.flops * self.images * self.epochs > LONG_FLOPS


def estimate(
    config: TrainConfig | Plan | TrialStep,
    *,
    measure: bool | Callable[[Estimate], bool] = True,
    before_timing: Callable[[Estimate], None] = lambda estimated: None,
    operations: bool = True,
) -> Estimate:
    """Estimate the cost of a configuration.

    Args:
        config: of the training, its plan, or a trial step of it.
        measure: time some steps on random images, for a few seconds, and leave unreadable files out of the count; or a
            function of the estimate so far that decides this. A step that does not fit in memory is not timed.
        before_timing: called with the estimate before the timing starts.
        operations: count the FLOPs, which takes a second; otherwise they are 0.
    """
    trial = config if isinstance(config, TrialStep) else TrialStep(as_plan(config))
    plan, config = trial.plan, trial.plan.config
    parameters = sum(p.numel() for p in trial.model.parameters())
    trained = sum(p.numel() for p in trial.model.parameters() if p.requires_grad)
    # In addition to the weights themselves: gradients and moments of what is trained, and the average of all weights.
    copies = 2 if config.optimizer in ("sgd", "rmsprop") else 3
    averaged = 1 + (config.ema_decay is not None)
    estimated = Estimate(
        parameters=parameters,
        trained=trained,
        flops=forward_flops(trial.model) if operations else 0,
        memory=4 * (parameters * averaged + trained * copies) + 2 * _activation_bytes(trial) + WORKSPACE,
        available=free_memory(plan.device),
        step_seconds=None,
        images=trial.images,
        batch_size=trial.batch_size,
        epochs=config.epochs,
    )
    if estimated.memory > estimated.available or not (measure(estimated) if callable(measure) else measure):
        return estimated
    before_timing(estimated)
    seconds = trial.image_seconds(TIMING_SECONDS) * trial.batch_size
    images = training_images(config, without_unreadable(plan.info, strict=config.strict))
    return replace(estimated, step_seconds=seconds, images=images)


def _activation_bytes(trial: TrialStep) -> int:
    """Bytes that the forward pass of a part of a step stores, extrapolated from a few images."""
    if trial.model.input_kind == "images" and math.prod(trial.model.image_shape[1:]) > LARGE:
        # Several images of this size might not fit.
        return trial.part_size * stored_bytes(trial.objective, trial.example(1))
    small, large = (stored_bytes(trial.objective, trial.example(count)) for count in (PROBE, 2 * PROBE))
    return round(small + (large - small) / PROBE * (trial.part_size - PROBE))
