"""What a training will take, before it starts: parameters, FLOPs, memory, the time of an epoch."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from mereo.core import record
from mereo.data import Batch, DatasetInfo
from mereo.data.folder import TEST_FRACTION
from mereo.data.storage import available_memory
from mereo.tasks import Objective
from mereo.training.config import TrainConfig
from mereo.training.plan import Plan, as_plan
from mereo.training.report import duration
from mereo.training.start import start_from
from mereo.training.unread import without_unread

PROBE = 4
"""Images of the small batch from which memory is reckoned."""

TIMING_SECONDS = 3.0
"""Spent on timing, about: a part of a batch is no larger than what can still be timed in it."""

WORKSPACE = 128 * 2**20
"""Bytes for the libraries' own buffers. This, and gradients of activations as large as what is stored, were fitted to
the resident memory of CapsNet, MSPCaps-T and Efficient-CapsNet on a CPU; on other devices it is a guess."""


@dataclass(frozen=True)
class Estimate:
    """The figures of a dry run.

    Attributes:
        parameters: of the network, decoder included.
        flops: of one image forward; a multiply-add counts two.
        memory: bytes that a training step takes: weights, gradients, optimiser, stored activations.
        available: bytes that are free for it.
        step_seconds: one optimiser step, measured; None where not measured.
        images: training images of an epoch.
        batch_size: of a step.
        epochs: to be done.
    """

    parameters: int
    flops: int
    memory: int
    available: int
    step_seconds: float | None
    images: int
    batch_size: int
    epochs: int

    @property
    def epoch_seconds(self) -> float | None:
        """Time of an epoch, without judging."""
        return None if self.step_seconds is None else self.step_seconds * (self.images / self.batch_size)


def free_memory(device: torch.device) -> int:
    """Bytes that are free on a device."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()


def stored_bytes(objective: nn.Module, batch: Batch) -> int:
    """Bytes that a forward pass keeps for the backward pass, each storage once, parameters left out."""
    own = {p.untyped_storage().data_ptr() for p in objective.parameters()}
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    kept = []
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        # Kept alive, so that no address is used twice.
        kept.append(objective(batch))
    return sum(seen.values())


def training_images(config: TrainConfig, info: DatasetInfo) -> int:
    """Images of an epoch, as far as they can be counted without reading them."""
    count = info.splits.get("train", 0)
    if not {"validation", "test"} & info.splits.keys():
        count -= round(TEST_FRACTION * count)
    # With one of the two alone, it is the test split.
    if not {"validation", "test"} <= info.splits.keys():
        count -= round(config.validation_fraction * count)
    return count if config.limit is None else min(count, config.limit)


def estimate(
    config: TrainConfig | Plan, *, measure: bool = True, told: Callable[[Estimate], None] = lambda found: None
) -> Estimate:
    """Reckon what a configuration takes; with `measure`, steps on random images are timed, for a few seconds in all,
    and files that cannot be read are looked for.

    `told` is called with the figures that need no timing, before it begins.
    """
    plan = as_plan(config)
    config, device, info, task = plan.config, plan.device, plan.info, plan.task()
    model = plan.build_model().to(device)
    objective = task.objective(model, config).train()
    labels = 2 if config.data == "multimnist" else 1
    parameters = sum(p.numel() for p in model.parameters())
    # While recorded, routing runs in the open; the counter cannot look into the compiled form.
    with record(model), FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.rand(1, *model.image_shape, device=device))
    images = training_images(config, info)
    batch_size = min(config.batch_size, max(images, 1))
    micro = max(batch_size // config.accumulate, 1)
    small, large = (stored_bytes(objective, task.example(model, n, labels)) for n in (PROBE, 2 * PROBE))
    each = (large - small) / PROBE
    activations = round(small + each * (micro - PROBE))
    copies = 2 if config.optimizer == "sgd" else 4
    copies += config.ema_decay is not None
    found = Estimate(
        parameters=parameters,
        flops=counter.get_total_flops(),
        memory=4 * parameters * copies + 2 * activations + WORKSPACE,
        available=free_memory(device),
        step_seconds=None,
        images=images,
        batch_size=batch_size,
        epochs=config.epochs,
    )
    told(found)
    if not measure:
        return found
    seconds = _time_step(objective, lambda count: task.example(model, count, labels), batch_size, micro, device)
    images = training_images(config, without_unread(info, strict=config.strict))
    return replace(found, step_seconds=seconds, images=images)


def _time_step(
    objective: Objective, example: Callable[[int], Batch], batch_size: int, micro: int, device: torch.device
) -> float:
    """Seconds of a step of `batch_size` images, from parts of a batch that double while there is time."""
    channels_last = getattr(objective.model, "channels_last", True)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    objective.to(memory_format=layout)

    def step(count: int) -> float:
        batch = example(count)
        if batch.images is not None:
            batch = batch._replace(images=batch.images.contiguous(memory_format=layout))
        began = time.perf_counter()
        objective(batch)[0].backward()
        objective.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    end = time.perf_counter() + TIMING_SECONDS
    count = min(2, micro)
    times = [step(count)]
    while (left := end - time.perf_counter()) > min(times) and len(times) < 5:
        if count < micro and left > 8 * min(times):
            count, times = min(2 * count, micro), []
        times.append(step(count))
    return statistics.median_low(times) * batch_size / count


def gibibytes(count: float) -> str:
    """Bytes as a person reads them."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**28 else f"{count / 2**20:.0f} MiB"


def print_estimate(config: TrainConfig | Plan) -> None:
    """`mereo train --dry-run`."""
    plan = as_plan(config)
    if plan.config.weights is not None and not plan.config.resume:
        print(start_from(plan.build_model(), plan.config.weights))
    found = estimate(plan, told=_print_size)
    seconds = found.epoch_seconds or 0.0
    _print_rows(
        ("an epoch", f"about {duration(seconds)} for {found.images:,} images"),
        ("the run", f"about {duration(seconds * found.epochs)} for {found.epochs} epochs, judging not counted"),
    )


def _print_size(found: Estimate) -> None:
    _print_rows(
        ("parameters", f"{found.parameters:,}"),
        ("FLOPs", f"{found.flops / 1e9:.3f} G an image forward (a multiply-add is two)"),
        (
            "memory",
            f"about {gibibytes(found.memory)} for a step of {found.batch_size}; {gibibytes(found.available)} are free",
        ),
    )
    warn_of_memory(found)
    print("timing a step ...", flush=True)


def _print_rows(*rows: tuple[str, str]) -> None:
    for name, value in rows:
        print(f"{name:<12}{value}")


def warn_of_memory(found: Estimate) -> None:
    """Say so when a step will not fit."""
    if found.memory > found.available:
        print(
            f"warning: a step takes about {gibibytes(found.memory)}, and {gibibytes(found.available)} are free; give a"
            " smaller --batch-size, or --accumulate to work through a batch in parts."
        )
