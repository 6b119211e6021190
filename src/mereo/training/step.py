"""One optimiser step of a fit without an accelerator."""

from collections.abc import Callable

import torch
from torch import Tensor

from mereo.training.groups import LR_SCALE


def descend(
    optimizer: torch.optim.Optimizer, rate: float, loss: Tensor, *, clip: Callable[[], object] | None = None
) -> None:
    """One optimiser step.

    Args:
        optimizer: its gradients are empty before and after.
        rate: learning rate; each group multiplies it by its own factor.
        loss: whose gradients are taken.
        clip: called before the step.
    """
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get(LR_SCALE, 1.0)
    loss.backward()
    if clip is not None:
        clip()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
