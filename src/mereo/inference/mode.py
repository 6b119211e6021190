"""Evaluation mode without gradients, restored afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A model in eval mode whose parameters take no gradients; every module and parameter is as before afterwards.

    Args:
        model: any module; submodules may differ in mode, and parameters in whether they are trained.
    """
    modes = [(module, module.training) for module in model.modules()]
    trained = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    model.eval()
    try:
        for parameter, _ in trained:
            parameter.requires_grad_(False)
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for parameter, wanted in trained:
            parameter.requires_grad_(wanted)
