"""The cost of a training before it starts: parameters, FLOPs, memory and the time of an epoch."""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from mereo.data import Batch, DatasetInfo
from mereo.data.set_aside import test_fraction
from mereo.inference.flops import forward_flops
from mereo.inference.footprint import LARGE, stored_bytes
from mereo.models import SequenceModel
from mereo.models.registry import lay_out
from mereo.runtime.memory import free_memory
from mereo.runtime.printing import say
from mereo.runtime.text import duration, gibibytes
from mereo.tasks import Objective
from mereo.training.adversarial import AdversarialTraining, adversarial_training
from mereo.training.config import TrainConfig
from mereo.training.freezing import describe_trained, freeze
from mereo.training.plan import Plan, as_plan
from mereo.training.start import start_from
from mereo.training.unread import without_unread

PROBE = 4
"""Images of the small batch from which memory is extrapolated."""

TIMING_SECONDS = 3.0
"""Approximate seconds spent on timing a step, which limit the size of the timed batch."""

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
        trained: those that are not frozen.
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


def training_images(config: TrainConfig, info: DatasetInfo) -> int:
    """Images per epoch, counted without reading them."""
    count = info.splits.get("train", 0)
    count -= round(test_fraction(info.splits) * count)
    if "validation" not in info.splits:
        count -= round(config.validation_fraction * count)
    return count if config.limit is None else min(count, config.limit)


def estimate(
    config: TrainConfig | Plan,
    *,
    measure: bool | Callable[[Estimate], bool] = True,
    before_timing: Callable[[Estimate], None] = lambda estimated: None,
    operations: bool = True,
) -> Estimate:
    """Estimate the cost of a configuration.

    Args:
        config: of the training.
        measure: time some steps on random images, for a few seconds, and leave unreadable files out of the count; or a
            function of the estimate so far that decides this. A step that does not fit in memory is not timed.
        before_timing: called with the estimate before the timing starts.
        operations: count the FLOPs, which takes a second; otherwise they are 0.
    """
    plan = as_plan(config)
    config, device, info, task = plan.config, plan.device, plan.info, plan.task()
    model = plan.build_model().to(device)
    frozen = freeze(model, config.freeze, layers=config.freeze_layers, until=config.freeze_until)
    objective = task.objective(model, config).train()
    for module in frozen:
        module.eval()
    labels = info.labels_per_image
    parameters = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    images = training_images(config, info)
    batch_size = min(config.batch_size, max(images, 1))
    micro = max(batch_size // config.accumulate, 1)
    if (
        not isinstance(model, SequenceModel) and math.prod(model.image_shape[1:]) > LARGE
    ):  # of which several might not fit
        activations = micro * stored_bytes(objective, task.example(model, 1, labels))
    else:
        small, large = (stored_bytes(objective, task.example(model, n, labels)) for n in (PROBE, 2 * PROBE))
        activations = round(small + (large - small) / PROBE * (micro - PROBE))
    # Beside the weights themselves: gradients and moments of what is trained, and the average of all weights.
    copies = 2 if config.optimizer in ("sgd", "rmsprop") else 3
    averaged = 1 + (config.ema_decay is not None)
    estimated = Estimate(
        parameters=parameters,
        trained=trained,
        flops=forward_flops(model) if operations else 0,
        memory=4 * (parameters * averaged + trained * copies) + 2 * activations + WORKSPACE,
        available=free_memory(device),
        step_seconds=None,
        images=images,
        batch_size=batch_size,
        epochs=config.epochs,
    )
    if estimated.memory > estimated.available or not (measure(estimated) if callable(measure) else measure):
        return estimated
    before_timing(estimated)
    seconds = _time_step(
        objective, lambda count: task.example(model, count, labels), batch_size, micro, device, _adversary(config)
    )
    images = training_images(config, without_unread(info, strict=config.strict))
    return replace(estimated, step_seconds=seconds, images=images)


def image_seconds(plan: Plan, limit: float = TIMING_SECONDS) -> float:
    """Measured seconds of the forward and backward pass of one image of a plan, in batches of its size.

    Args:
        plan: of the training.
        limit: about how many seconds to measure.
    """
    config, task, device = plan.config, plan.task(), plan.device
    model = plan.build_model().to(device)
    frozen = freeze(model, config.freeze, layers=config.freeze_layers, until=config.freeze_until)
    objective = task.objective(model, config).train()
    for module in frozen:
        module.eval()
    size = min(config.batch_size, max(training_images(config, plan.info), 1))
    micro, labels = max(size // config.accumulate, 1), plan.info.labels_per_image
    return (
        _time_step(
            objective, lambda count: task.example(model, count, labels), size, micro, device, _adversary(config), limit
        )
        / size
    )


def _adversary(config: TrainConfig) -> AdversarialTraining | None:
    """The adversarial training, for random images that are as good as normalised."""
    return adversarial_training(config, lambda images: images)


def _time_step(
    objective: Objective,
    example: Callable[[int], Batch],
    batch_size: int,
    micro: int,
    device: torch.device,
    adversary: AdversarialTraining | None,
    limit: float = TIMING_SECONDS,
) -> float:
    """Seconds of a step of `batch_size` images, timed on micro-batches that double while there is time."""
    layout = torch.channels_last if objective.model.channels_last else torch.contiguous_format
    lay_out(objective.model, layout)

    def step(count: int) -> float:
        batch = example(count)
        if batch.images is not None:
            batch = batch._replace(images=batch.images.contiguous(memory_format=layout))
        began = time.perf_counter()
        if adversary is not None:
            batch = adversary(objective.model, batch, 0, 0)
        objective(batch)[0].backward()
        objective.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    end = time.perf_counter() + limit
    count = min(2, micro)
    times = [step(count)]
    while (left := end - time.perf_counter()) > min(times) and len(times) < 5:
        if count < micro and left > 8 * min(times):
            count, times = min(2 * count, micro), []
        times.append(step(count))
    return statistics.median_low(times) * batch_size / count


def print_estimate(config: TrainConfig | Plan) -> None:
    """Print the result of `mereo train --dry-run`."""
    plan = as_plan(config)
    model = plan.build_model()
    if plan.config.weights is not None and not plan.config.resume:
        say(start_from(model, plan.config.weights))
    freeze(model, plan.config.freeze, layers=plan.config.freeze_layers, until=plan.config.freeze_until)
    for line in describe_trained(model, plan.config.layer_decay, plan.config.lr):
        say(line)

    def before(estimated: Estimate) -> None:
        _print_size(estimated, plan.task.unit)
        say("timing a step ...")

    estimated = estimate(plan, before_timing=before)
    seconds = estimated.epoch_seconds
    if seconds is None:
        _print_size(estimated, plan.task.unit)
        return
    _print_rows(
        ("an epoch", f"about {duration(seconds)} for {estimated.images:,} {plan.task.unit}"),
        ("the run", f"about {duration(seconds * estimated.epochs)} for {estimated.epochs} epochs, without evaluation"),
    )


def announce(config: TrainConfig | Plan, *, measure: bool = True) -> None:
    """Print, before a training, a warning if a step does not fit into memory, and how long it takes if that is long.

    Args:
        config: of the training.
        measure: whether a long training is timed, unless that has been done.
    """

    def before(estimated: Estimate) -> None:
        warn_of_memory(estimated)
        if plan.config.weights is not None and not plan.config.resume:
            # Weights that cannot be had, or do not fit, are refused now and not after the timing.
            start_from(plan.build_model(), plan.config.weights)
        say("timing a step ...")

    plan = as_plan(config)
    estimated = estimate(plan, measure=lambda so_far: measure and so_far.long, before_timing=before, operations=measure)
    seconds = estimated.epoch_seconds
    if seconds is None:
        warn_of_memory(estimated)
        return
    whole = duration(seconds * estimated.epochs)
    epochs = f"{estimated.epochs} epoch{'s' if estimated.epochs > 1 else ''}"
    say(f"about {whole} for {epochs} of {estimated.images:,} {plan.task.unit}, without evaluation")


def _print_size(estimated: Estimate, unit: str) -> None:
    memory, available = gibibytes(estimated.memory), gibibytes(estimated.available)
    _print_rows(
        ("parameters", f"{estimated.parameters:,}"),
        ("FLOPs", f"{estimated.flops / 1e9:.3f} G for the forward pass of one of the {unit} (a multiply-add is two)"),
        ("memory", f"about {memory} for a step of {estimated.batch_size}; {available} are free"),
    )
    warn_of_memory(estimated)


def _print_rows(*rows: tuple[str, str]) -> None:
    for name, value in rows:
        say(f"{name:<12}{value}")


def warn_of_memory(estimated: Estimate) -> None:
    """Print a warning if a step does not fit into memory."""
    if estimated.memory > estimated.available:
        memory, available = gibibytes(estimated.memory), gibibytes(estimated.available)
        say(
            f"warning: a step takes about {memory}, and {available} are free; give a smaller --batch-size, or"
            " --accumulate to work through a batch in parts."
        )
