"""Stochastic depth: residual branches that are left out at random during training.

Source: Huang et al. 2016, arXiv:1603.09382, section 3. `torchvision.ops` has the same, and takes 1.3 s to import.
"""

import torch
from torch import Tensor, nn

from mereo.errors import UsageError


class StochasticDepth(nn.Module):
    """In training, x / (1 - rate) with probability 1 - rate, else 0, for each sample by itself; in eval, x.

    Args:
        rate: probability that a branch is left out; at least 0 and below 1.

    Shapes: (batch, ...) -> the same.
    """

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise UsageError(f"the rate of stochastic depth is {rate}; it must be at least 0 and below 1.")
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        kept = torch.rand(x.shape[0], *[1] * (x.dim() - 1), device=x.device) >= self.rate
        return x * (kept.to(x.dtype) / (1 - self.rate))

    def extra_repr(self) -> str:
        return f"{self.rate}"


def linear_rates(most: float, layers: int) -> list[float]:
    """Rates that rise linearly from 0 in the first of `layers` to `most` in the last."""
    return [most * layer / max(layers - 1, 1) for layer in range(layers)]
