"""Decoders: an image from the class capsules, to keep their poses meaningful.

Source: Sabour, Frosst, Hinton 2017, arXiv:1710.09829, section 4.1; the upsampling one: arXiv:2101.12491 (smallNORB).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SLOPE = 0.2


def mask_poses(poses: Tensor, classes: Tensor) -> Tensor:
    """Zero every capsule but the one of the given class, and lay them side by side.

    Shapes: poses (batch, classes, pose), classes int64 (batch,) -> (batch, classes * pose).
    """
    chosen = F.one_hot(classes, poses.shape[1]).to(poses.dtype)
    return (poses * chosen.unsqueeze(-1)).flatten(1)


class FullyConnectedDecoder(nn.Module):
    """Three linear layers: pose -> 512 -> 1024 -> image, ReLU between and a sigmoid at the end.

    Shapes: (batch, classes * pose) -> (batch, channels, height, width) in (0, 1).

    Reference: arXiv:1710.09829, figure 2.
    """

    def __init__(
        self, in_features: int, image_shape: tuple[int, int, int], hidden: tuple[int, int] = (512, 1024)
    ) -> None:
        super().__init__()
        self.image_shape = image_shape
        self.layers = nn.Sequential(
            nn.Linear(in_features, hidden[0]),
            nn.ReLU(),
            nn.Linear(hidden[0], hidden[1]),
            nn.ReLU(),
            nn.Linear(hidden[1], math.prod(image_shape)),
        )

    def forward(self, poses: Tensor) -> Tensor:
        return self.layers(poses).sigmoid().unflatten(1, self.image_shape)


class UpsamplingDecoder(nn.Module):
    """A small map grown by upsampling and unpadded convolutions: three times (x2, then 3x3), a last 3x3, sigmoid.

    Upsampling is bilinear; a leaky ReLU of slope 0.2 follows the convolutions but the last, and not the linear layer.

    A first map of side k gives 8 k - 16: 8 -> 16 -> 14 -> 28 -> 26 -> 52 -> 50 -> 48. For other sides the next larger k
    is taken and the image cut to size.

    Shapes: (batch, classes * pose) -> (batch, channels, height, width) in (0, 1).

    Reference: arXiv:2101.12491, the authors' code of the smallNORB model.
    """

    def __init__(
        self, in_features: int, image_shape: tuple[int, int, int], widths: tuple[int, int, int] = (64, 128, 128)
    ) -> None:
        super().__init__()
        channels, *self.sides = image_shape
        rows, columns = (-(-(side + 16) // 8) for side in self.sides)
        self.start = (1, rows, columns)
        self.project = nn.Linear(in_features, rows * columns)
        self.convs = nn.ModuleList(nn.Conv2d(i, o, 3) for i, o in zip((1, *widths[:2]), widths, strict=True))
        self.last = nn.Conv2d(widths[2], channels, 3)

    def forward(self, poses: Tensor) -> Tensor:
        maps = self.project(poses).unflatten(1, self.start)
        for conv in self.convs:
            maps = F.interpolate(maps, scale_factor=2.0, mode="bilinear", align_corners=False)
            maps = F.leaky_relu(conv(maps), SLOPE)
        return torch.sigmoid(self.last(maps))[..., : self.sides[0], : self.sides[1]]
