"""Exponential moving average of the weights."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def _sharded_as(whole: Tensor, tensor: Tensor) -> Tensor:
    """A whole tensor as another one lies: sharded among processes, or as it is."""
    if not hasattr(tensor, "device_mesh"):
        return whole
    from torch.distributed.tensor import distribute_tensor

    layout: Any = tensor
    return distribute_tensor(whole, layout.device_mesh, layout.placements)


class WeightAverage:
    """average <- decay average + (1 - decay) weights after every step; buffers are taken as they are.

    The decay grows from (1 + n) / (10 + n) to its value, so that the start is forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.model = decay, model
        self.average = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after step number `step`, counted from 0."""
        decay = min(self.decay, (1 + step) / (10 + step))
        weights = [p.detach() for _, p in self.model.named_parameters()]
        torch._foreach_lerp_(list(self.average.values()), weights, 1 - decay)

    def state_dict(self) -> dict[str, Tensor]:
        """Weights of the averaged model under the names of the model."""
        return {**self.model.state_dict(), **self.average}

    def load_average(self, average: Mapping[str, Tensor]) -> None:
        """Take back what `average` held."""
        for name, tensor in self.average.items():
            whole = average[name].to(tensor.device)
            tensor.copy_(_sharded_as(whole, tensor))
