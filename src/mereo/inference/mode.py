"""Evaluation mode without gradients, restored afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from mereo.core.modes import gradients_kept, modes_kept


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A model in eval mode whose parameters take no gradients; every module and parameter is as before afterwards.

    Args:
        model: any module; submodules may differ in mode, and parameters in whether they are trained.
    """
    with modes_kept(model), gradients_kept(model):
        model.eval()
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        yield
