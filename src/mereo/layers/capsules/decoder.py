"""Decoders: an image from the class capsules, to keep their poses meaningful.

Source: Sabour, Frosst, Hinton 2017, arXiv:1710.09829, section 4.1; the upsampling one: arXiv:2101.12491 (smallNORB);
the one that knows no classes: arXiv:1904.09546 (DeepCaps).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SLOPE = 0.2
SMALLEST = 1e-6
"""Least distance of a reconstruction from 0 and 1, outside training, without a sigmoid."""


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


class ClassIndependentDecoder(nn.Module):
    """An image of one capsule, whatever its class: its numbers mean the same for all classes.

    linear, ReLU -> BN -> transposed convolutions of 3x3: 64, then the other widths with stride 2, then the channels of
    the image -> ReLU

    Args:
        pose: numbers in a class capsule.
        image_shape: channels, height, width.
        widths: channels; by default 64, 32, 16, and with a side above 32 one stage more, of 8.

    Shapes: (batch, classes * pose), all but one capsule zero -> (batch, channels, height, width), at least 0; in
        evaluation inside (0, 1).

    Deviates: of the row and column too many that a stride of 2 makes, the first is dropped, where the authors' code
        drops the last, so that their weights would make images shifted by 7 pixels at 64x64. In evaluation images are
        clamped to the range of pixels.

    Reference: arXiv:1904.09546 and the authors' code.
    """

    def __init__(self, pose: int, image_shape: tuple[int, int, int], widths: tuple[int, ...] | None = None) -> None:
        super().__init__()
        channels, *self.sides = image_shape
        if widths is None:
            widths = (64, 32, 16, 8) if max(self.sides) > 32 else (64, 32, 16)
        rows, columns = (math.ceil(side / 2 ** (len(widths) - 1)) for side in self.sides)
        self.pose, self.start = pose, (16, rows, columns)
        self.project = nn.Linear(pose, 16 * rows * columns)
        self.norm = nn.BatchNorm2d(16, momentum=0.2)
        layers = []
        for i, (inputs, outputs) in enumerate(zip((16, *widths), (*widths, channels), strict=True)):
            stride = 2 if 0 < i < len(widths) else 1
            layers.append(nn.ConvTranspose2d(inputs, outputs, 3, stride, 1, stride - 1))
        self.layers = nn.Sequential(*layers)

    def forward(self, poses: Tensor) -> Tensor:
        chosen = poses.unflatten(1, (-1, self.pose)).sum(1)  # the others are zero
        maps = self.norm(self.project(chosen).relu().unflatten(1, self.start))
        image = self.layers(maps).relu()[..., : self.sides[0], : self.sides[1]]
        return image if self.training else image.clamp(SMALLEST, 1 - SMALLEST)
