"""Norms of maps and tokens, and batch normalisation in evaluation as a scale and a shift."""

import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core.squash import accumulation_type
from mereo.mechanisms.scan.lightning import simple_rms_norm


class ChannelNorm(nn.LayerNorm):
    """Layer normalisation over the channels of each cell of a map, by itself.

    Maps in channels-last memory are normalised without a copy; others are copied twice.

    Shapes: (batch, channels, height, width) -> the same.
    """

    def forward(self, maps: Tensor) -> Tensor:
        cells = maps.permute(0, 2, 3, 1)
        return F.layer_norm(cells, self.normalized_shape, self.weight, self.bias, self.eps).permute(0, 3, 1, 2)


def norm_factors(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """The scale and the shift of a batch normalisation in evaluation."""
    assert norm.running_mean is not None and norm.running_var is not None
    wide = accumulation_type(norm.weight)  # the root of a small variance has too few digits in half precision
    factor = norm.weight.to(wide) * (norm.running_var.to(wide) + norm.eps).rsqrt()
    return factor, norm.bias.to(wide) - norm.running_mean.to(wide) * factor


class SimpleRMSNorm(nn.Module):
    """Divide each token by the root of its mean square; no parameters.

    x / sqrt(mean x^2 + eps)

    Args:
        eps: added to the mean.

    Shapes: (..., dim) -> the same.

    Reference: arXiv:2307.14995, section 3.5.
    """

    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return simple_rms_norm(x, self.eps)
