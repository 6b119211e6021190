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
    """Follow the gradient of the mean of some losses.

    Args:
        optimizer: its gradients are empty before and after.
        rate: learning rate; a group takes its own share of it.
        losses: of the parts of a batch, each computed when its turn comes, so that one graph exists at a time.
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
