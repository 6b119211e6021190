"""A residual block without biases: the convolutions between the feature maps of MSPCaps.

Source: He, Zhang, Ren, Sun 2016, arXiv:1512.03385; in this form Hu, Han, Sun, Ren 2025, arXiv:2508.16922.
"""

import torch.nn.functional as F
from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """conv3x3, BN, ReLU; then depth - 1 times x <- ReLU(x + BN(conv3x3(x))). No convolution has a bias.

    Args:
        in_channels, out_channels: of the maps.
        stride: of the first convolution.
        depth: number of convolutions.
        pools: how often the map is halved after the first convolution, by the maximum over 3x3 cells.

    Shapes: (batch, in_channels, height, width) -> (batch, out_channels, height / s, width / s), rounded up, where
        s = stride * 2^pools.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int, depth: int, pools: int = 0) -> None:
        super().__init__()
        self.pools = pools

        def convolution(channels: int, stride: int) -> nn.Sequential:
            conv = nn.Conv2d(channels, out_channels, 3, stride, padding=1, bias=False)
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
            return nn.Sequential(conv, nn.BatchNorm2d(out_channels))

        self.entry = convolution(in_channels, stride)
        self.units = nn.ModuleList(convolution(out_channels, 1) for _ in range(depth - 1))

    def forward(self, features: Tensor) -> Tensor:
        features = self.entry(features).relu()
        for _ in range(self.pools):
            features = F.max_pool2d(features, 3, 2, 1)
        for unit in self.units:
            features = (features + unit(features)).relu()
        return features
