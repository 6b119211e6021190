"""Counting the operations of a forward pass, as PyTorch dispatches them; a multiply-add is two."""

import torch
from torch import Tensor, nn

from mereo.core.modes import gradients_kept, modes_kept
from mereo.core.record import record


def forward_operations(model: nn.Module, inputs: Tensor) -> int:
    """Operations of one pass over `inputs`: matrix products, convolutions and fused attention.

    The model runs in eval mode, so that batch norms keep their statistics; its mode and gradients stay as they are.
    """
    from torch.utils.flop_counter import FlopCounterMode

    # The counter only knows PyTorch's operations; while a model is recorded, none of our own operators run. PyTorch's
    # module tracker fails on a view of a trained parameter that was made under no_grad, so the parameters are frozen.
    with modes_kept(model), gradients_kept(model), record(model), torch.no_grad():
        model.eval().requires_grad_(False)
        with FlopCounterMode(display=False) as counter:
            model(inputs)
    return counter.get_total_flops()
