"""The accelerator, the optimiser and determinism of a run."""

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from mereo.models import VisionModel
from mereo.training.config import TrainConfig


def make_optimizer(config: TrainConfig, parameters: Iterable[Any]) -> torch.optim.Optimizer:
    """The optimiser of a configuration, for parameters or groups of them."""
    if config.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=config.lr, weight_decay=config.weight_decay, momentum=0.9, nesterov=True)
    if config.optimizer == "rmsprop":
        return torch.optim.RMSprop(parameters, lr=config.lr, weight_decay=config.weight_decay, alpha=0.9)
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    beta2 = 0.999 if config.adam_beta2 is None else config.adam_beta2
    return kind(parameters, lr=config.lr, betas=(0.9, beta2), weight_decay=config.weight_decay)


def memory_format(config: TrainConfig, model: VisionModel) -> torch.memory_format:
    """The memory layout of images and convolutions: the configuration's, by default the network's."""
    channels_last = model.channels_last if config.channels_last is None else config.channels_last
    return torch.channels_last if channels_last else torch.contiguous_format


def make_accelerator(config: TrainConfig, device: torch.device) -> Any:
    """An Accelerator for that device and precision; the launcher decides the number of processes."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    if AcceleratorState._shared_state:
        # Accelerate keeps one state per process and refuses a second precision; reset it, because each run has its own.
        AcceleratorState._reset_state(reset_partial_state=True)
    if device.index is not None:
        os.environ["ACCELERATE_TORCH_DEVICE"] = str(device)
    precision = "no" if config.precision == "fp32" else config.precision
    return Accelerator(cpu=device.type == "cpu", mixed_precision=precision)


def arithmetic(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """The context in which a network computes with that precision, as the accelerator does in a training."""
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}
    return torch.autocast(device.type, dtype=kinds[precision]) if precision in kinds else nullcontext()


def has_bfloat16(device: torch.device) -> bool:
    """Whether a device trains in bfloat16: CPUs, if slowly, and GPUs that have it."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu"


@contextmanager
def deterministic_on(device: torch.device) -> Iterator[None]:
    """Deterministic algorithms on a CPU; elsewhere they would cost speed, so the setting is unchanged."""
    before = torch.are_deterministic_algorithms_enabled()
    memory: Any = torch.utils.deterministic
    filling = memory.fill_uninitialized_memory
    if device.type == "cpu":
        torch.use_deterministic_algorithms(True)
        memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        memory.fill_uninitialized_memory = filling
