"""Blocks that restore training mode and gradients, or disable autocast; which modules must be called; their source."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
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
    """Whether a layer must be called, since its weights do not suffice to compute what it does.

    It has hooks, a forward of its own, such as an adapter's, or weights made of other tensors, such as quantised ones.
    """
    return any(
        hooked(layer)
        or "forward" in vars(layer)
        or not type(layer).__module__.startswith(("torch.nn.", "mereo."))
        or any(each is not None and is_traceable_wrapper_subclass(each) for each in layer._parameters.values())
        for layer in layers
    )


@cache
def source_of(code: Callable[..., Any]) -> str:
    """The source of a class or a function; empty where there is none, as in an interpreter."""
    try:
        return inspect.getsource(code)
    except (OSError, TypeError):
        return ""


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
