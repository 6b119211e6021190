"""Floating-point operations of a network, counted as PyTorch dispatches them; a multiply-add is two."""

import torch
from torch import Tensor, nn

from mereo.core import record
from mereo.core.operations import forward_operations
from mereo.models import Network


def count_flops(model: nn.Module, inputs: Tensor, *, backward: bool = False) -> int:
    """Operations of one pass over `inputs`: matrix products, convolutions and fused attention.

    Args:
        model: any module that takes one tensor and returns one; its mode, hooks and gradients stay as they are.
        inputs: of the model.
        backward: count the gradients of the trained parameters too, in the mode that the model is in.
    """
    from torch.utils.flop_counter import FlopCounterMode

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not (backward and trained):
        return forward_operations(model, inputs)
    # The counter only knows PyTorch's operations; while a model is recorded, none of our own operators run.
    with record(model), torch.enable_grad(), FlopCounterMode(display=False) as counter:
        torch.autograd.grad(model(inputs).sum(), trained, allow_unused=True)
    return counter.get_total_flops()


def forward_flops(model: Network) -> int:
    """Operations of one input forward, such as an image or a window of tokens."""
    return count_flops(model, torch.zeros_like(model.example_inputs(1)))
