"""Layer normalisation over the channels of maps."""

import torch.nn.functional as F
from torch import Tensor, nn


class ChannelNorm(nn.LayerNorm):
    """Layer normalisation over the channels of each cell of a map, by itself.

    Maps in channels-last memory are normalised where they lie; others are copied twice.

    Shapes: (batch, channels, height, width) -> the same.
    """

    def forward(self, maps: Tensor) -> Tensor:
        cells = maps.permute(0, 2, 3, 1)
        return F.layer_norm(cells, self.normalized_shape, self.weight, self.bias, self.eps).permute(0, 3, 1, 2)
