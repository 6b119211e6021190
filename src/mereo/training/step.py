"""One optimiser step, shared by the engine and by the fits of experiments."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from mereo.training.groups import LR_SCALE


def descend(
    optimizer: torch.optim.Optimizer,
    rate: float,
    losses: Iterable[Tensor],
    *,
    parts: int = 1,
    backward: Callable[[Tensor], None] = Tensor.backward,
    clip: Callable[[], object] | None = None,
) -> None:
    """One optimiser step on the mean of some losses.

    Args:
        optimizer: its gradients are empty before and after.
        rate: learning rate; each group multiplies it by its own factor.
        losses: of the parts of a batch, computed one at a time, so that only one graph exists.
        parts: how many there are.
        backward: computes the gradients of a loss.
        clip: called before the step.
    """
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get(LR_SCALE, 1.0)
    for loss in losses:
        backward(loss / parts)
    if clip is not None:
        clip()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
