"""LayerScale: a learned gain for each channel of a residual branch, close to zero at the start.

Source: Touvron et al. 2021, arXiv:2103.17239, eq. 4 and section 2.
"""

import torch
from torch import Tensor, nn


class LayerScale(nn.Module):
    """gain * x, for each channel: with it, x + gain * F(norm(x)) starts close to the identity at any depth.

    Args:
        dim: channels, the last axis.
        start: of every gain; the smaller the deeper the network (0.1 to 1e-6).

    Shapes: (..., dim) -> (..., dim).
    """

    def __init__(self, dim: int, start: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((dim,), float(start)))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * x

    @torch.no_grad()
    def fold_into(self, linear: nn.Linear) -> None:
        """Multiply the outputs of the layer before by the gains, in place, after which this layer is superfluous."""
        linear.weight.mul_(self.gain[:, None])
        if linear.bias is not None:
            linear.bias.mul_(self.gain)

    def extra_repr(self) -> str:
        return f"{self.gain.numel()}"
