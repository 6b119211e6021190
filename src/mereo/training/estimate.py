"""What a training will take, before it starts: parameters, FLOPs, memory, the time of an epoch."""

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from mereo.core import record
from mereo.data import dataset_info
from mereo.data.storage import available_memory
from mereo.models import CapsuleClassifier
from mereo.training.config import TrainConfig
from mereo.training.losses import Objective
from mereo.training.report import duration
from mereo.training.setup import build_model, choose_device, resolve

PROBE = 4
"""Images of the small batch from which memory is reckoned."""


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


def _inputs(model: CapsuleClassifier, count: int, labels: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    images = torch.rand(count, *model.image_shape, device=device)
    targets = torch.arange(count * labels, device=device).view(count, labels) % max(model.num_classes, 1)
    if labels == 1:
        return images, targets.squeeze(1), images
    return images, targets, images.unsqueeze(1).expand(-1, labels, -1, -1, -1)


def stored_bytes(objective: nn.Module, inputs: tuple[Tensor, ...]) -> int:
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
        kept.append(objective(*inputs))
    return sum(seen.values())


def estimate(config: TrainConfig, *, measure: bool = True) -> Estimate:
    """Reckon what a configuration takes; with `measure`, a few steps on random images are timed."""
    config = resolve(config)
    device = choose_device(config.device)
    info = dataset_info(config.data, config.data_root)
    model = build_model(config, info.num_classes).to(device)
    objective = Objective(model, config.loss, config.reconstruction_weight).train()
    labels = 2 if config.data == "multimnist" else 1
    parameters = sum(p.numel() for p in model.parameters())
    # While recorded, routing runs in the open; the counter cannot look into the compiled form.
    with record(model), FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.rand(1, *model.image_shape, device=device))
    images = round(info.splits.get("train", 0) * (1 - config.validation_fraction))
    if config.limit is not None:
        images = min(images, config.limit)
    batch_size = min(config.batch_size, max(images, 1))
    micro = max(batch_size // config.accumulate, 1)
    small, large = (stored_bytes(objective, _inputs(model, n, labels, device)) for n in (PROBE, 2 * PROBE))
    each = (large - small) / PROBE
    activations = round(small + each * (micro - PROBE))
    copies = 2 if config.optimizer == "sgd" else 4
    copies += config.ema_decay is not None
    memory = 4 * parameters * copies + 2 * activations + WORKSPACE
    seconds = _time_step(objective, _inputs(model, micro, labels, device), device) if measure else None
    return Estimate(
        parameters=parameters,
        flops=counter.get_total_flops(),
        memory=memory,
        available=free_memory(device),
        step_seconds=None if seconds is None else seconds * config.accumulate,
        images=images,
        batch_size=batch_size,
        epochs=config.epochs,
    )


def _time_step(objective: Objective, inputs: tuple[Tensor, ...], device: torch.device) -> float:
    if objective.model.channels_last:
        objective.to(memory_format=torch.channels_last)
        images = inputs[0].contiguous(memory_format=torch.channels_last)
    else:
        images = inputs[0]

    def step() -> float:
        began = time.perf_counter()
        objective(images, *inputs[1:])[0].backward()
        objective.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    step()
    return sorted(step() for _ in range(3))[1]


def gibibytes(count: float) -> str:
    """Bytes as a person reads them."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**28 else f"{count / 2**20:.0f} MiB"


def print_estimate(config: TrainConfig) -> None:
    """`mereo train --dry-run`."""
    found = estimate(config)
    seconds = found.epoch_seconds or 0.0
    rows = [
        ("parameters", f"{found.parameters:,}"),
        ("FLOPs", f"{found.flops / 1e9:.3f} G an image forward (a multiply-add is two)"),
        (
            "memory",
            f"about {gibibytes(found.memory)} for a step of {found.batch_size}; {gibibytes(found.available)} are free",
        ),
        ("an epoch", f"about {duration(seconds)} for {found.images:,} images"),
        ("the run", f"about {duration(seconds * found.epochs)} for {found.epochs} epochs, judging not counted"),
    ]
    for name, value in rows:
        print(f"{name:<12}{value}")
    warn_of_memory(found)


def warn_of_memory(found: Estimate) -> None:
    """Say so when a step will not fit."""
    if found.memory > found.available:
        print(
            f"warning: a step takes about {gibibytes(found.memory)}, and {gibibytes(found.available)} are free; give a"
            " smaller --batch-size, or --accumulate to work through a batch in parts."
        )
