"""Exponential moving average of the weights."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def _sharded_as(whole: Tensor, tensor: Tensor) -> Tensor:
    """A complete tensor, sharded among processes in the same way as another one."""
    if not hasattr(tensor, "device_mesh"):
        return whole
    from torch.distributed.tensor import distribute_tensor

    layout: Any = tensor
    return distribute_tensor(whole, layout.device_mesh, layout.placements)


class WeightAverage:
    """average <- decay average + (1 - decay) weights after every step; buffers are copied.

    The decay grows from (1 + n) / (10 + n) to its value, so that the initial weights lose their influence.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.model = decay, model
        self.average = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update with the weights after step number `step`, counted from 0."""
        decay = min(self.decay, (1 + step) / (10 + step))
        weights = [p.detach() for _, p in self.model.named_parameters()]
        torch._foreach_lerp_(list(self.average.values()), weights, 1 - decay)

    def state_dict(self) -> dict[str, Tensor]:
        """The averaged weights, under the names of the model."""
        return {**self.model.state_dict(), **self.average}

    def load_average(self, average: Mapping[str, Tensor]) -> None:
        """Restore the values that `average` returned."""
        for name, tensor in self.average.items():
            whole = average[name].to(tensor.device)
            tensor.copy_(_sharded_as(whole, tensor))
