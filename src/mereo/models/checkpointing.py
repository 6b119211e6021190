"""Gradient checkpointing by stage: maps inside a stage are computed again in the backward pass, not kept."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


@contextmanager
def _still_statistics(model: nn.Module) -> Iterator[None]:
    """Batch norms compute the same, and their running statistics stay: the first pass has updated them."""
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.training]
    before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm, (_, batches) in zip(norms, before, strict=True):
        norm.momentum = 0.0
        norm.num_batches_tracked = None if batches is None else batches.clone()
    try:
        yield
    finally:
        for norm, (momentum, batches) in zip(norms, before, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, batches


def checkpointed(model: nn.Module, stage: Callable[[int, Tensor], Tensor]) -> Callable[[int, Tensor], Tensor]:
    """`stage`, which keeps its intermediate tensors only during the call."""

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _still_statistics(model)

    def run(index: int, inputs: Tensor) -> Tensor:
        # torch.compile does not support such contexts.
        options: dict[str, Any] = {} if torch.compiler.is_compiling() else {"context_fn": contexts}
        return checkpoint(stage, index, inputs, use_reentrant=False, **options)

    return run
