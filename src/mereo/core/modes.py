"""Training modes, which parameters require gradients, both restored after a block, and whether a module has hooks."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

from torch import nn


@contextmanager
def _kept(owners: Iterable[object], name: str) -> Iterator[None]:
    """An attribute of each of these objects is as before when the block ends."""
    values = [(owner, getattr(owner, name)) for owner in owners]
    try:
        yield
    finally:
        for owner, value in values:
            setattr(owner, name, value)


def hooked(module: nn.Module) -> bool:
    """Whether a module has forward hooks, so that it must be called, on what it stands for."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def modes_kept(*models: nn.Module) -> AbstractContextManager[None]:
    """Every module of these models is in training or evaluation mode as before when the block ends."""
    return _kept((module for model in models for module in model.modules()), "training")


def gradients_kept(*models: nn.Module) -> AbstractContextManager[None]:
    """The same parameters of these models require gradients as before when the block ends."""
    return _kept((parameter for model in models for parameter in model.parameters()), "requires_grad")
