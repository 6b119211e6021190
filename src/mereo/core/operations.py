"""Counting the operations of a forward pass, as PyTorch dispatches them; a multiply-add is two."""

from contextlib import suppress

import torch
from torch import Tensor, nn

from mereo.core.modes import gradients_kept, modes_kept
from mereo.core.record import record


def forward_operations(model: nn.Module, inputs: Tensor, *, of_shapes: bool = False) -> int:
    """Operations of one pass over `inputs`: matrix products, convolutions and fused attention.

    The model runs in eval mode, so that batch norms keep their statistics; its mode and gradients stay as they are.

    Args:
        model, inputs: of the pass.
        of_shapes: follow the shapes only, which takes no memory for the couplings that a pass forms while it is
            counted; a model whose steps depend on values runs all the same.
    """
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

    # The counter only knows PyTorch's operations; while a model is recorded, none of our own operators run. PyTorch's
    # module tracker fails on a view of a trained parameter that was made under no_grad, so the parameters are frozen.
    with modes_kept(model), gradients_kept(model), record(model), torch.no_grad():
        model.eval().requires_grad_(False)
        if of_shapes:
            read_values = DataDependentOutputException, DynamicOutputShapeException
            with suppress(*read_values), FakeTensorMode(allow_non_fake_inputs=True) as mode:
                return _counted(model, mode.from_tensor(inputs))
        return _counted(model, inputs)


def _counted(model: nn.Module, inputs: Tensor) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        model(inputs)
    return counter.get_total_flops()
