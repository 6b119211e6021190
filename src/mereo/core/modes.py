"""Blocks that restore training mode and gradients, or disable autocast; and which modules must be called."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


@contextmanager
def kept(owners: Iterable[object], name: str) -> Iterator[None]:
    """Restore an attribute of each of these objects when the block ends."""
    values = [(owner, getattr(owner, name)) for owner in owners]
    try:
        yield
    finally:
        for owner, value in values:
            setattr(owner, name, value)


def hooked(module: nn.Module) -> bool:
    """Whether a module has forward hooks, so that it must be called on its real inputs."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def must_be_called(*layers: nn.Module) -> bool:
    """Whether the weights of a layer do not suffice: it has hooks, or a forward of its own, such as an adapter's, or
    weights that are other tensors inside, such as quantised ones."""
    return any(
        hooked(layer)
        or "forward" in vars(layer)
        or not type(layer).__module__.startswith(("torch.nn.", "mereo."))
        or any(each is not None and is_traceable_wrapper_subclass(each) for each in layer._parameters.values())
        for layer in layers
    )


def modes_kept(*models: nn.Module) -> AbstractContextManager[None]:
    """Restore training or evaluation mode in every module of these models when the block ends."""
    return kept((module for model in models for module in model.modules()), "training")


def gradients_kept(*models: nn.Module) -> AbstractContextManager[None]:
    """Restore which parameters of these models require gradients when the block ends."""
    return kept((parameter for model in models for parameter in model.parameters()), "requires_grad")


def autocasts(x: Tensor) -> bool:
    """Whether layers would convert this tensor under `torch.autocast`."""
    return x.device.type != "meta" and torch.is_autocast_enabled(x.device.type)


def unconverted(x: Tensor) -> AbstractContextManager[Any]:
    """A context in which `torch.autocast` converts nothing on the device of this tensor."""
    return torch.autocast(x.device.type, enabled=False) if autocasts(x) else nullcontext()
