"""Training modes, and which parameters take gradients, restored after a block."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def modes_kept(*models: nn.Module) -> Iterator[None]:
    """Every module of these models is in training or evaluation mode as before, when the block ends."""
    modes = [(module, module.training) for model in models for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def gradients_kept(*models: nn.Module) -> Iterator[None]:
    """The same parameters of these models require gradients as before, when the block ends."""
    trained = [(parameter, parameter.requires_grad) for model in models for parameter in model.parameters()]
    try:
        yield
    finally:
        for parameter, requires_grad in trained:
            parameter.requires_grad_(requires_grad)
