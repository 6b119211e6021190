"""Primary matrix capsules: poses and activations from one feature map, each by a convolution of its own.

Source: Hinton, Sabour, Frosst, "Matrix capsules with EM routing", ICLR 2018, section 4,
https://openreview.net/forum?id=HJWLfGWRb.
"""

from torch import Tensor, nn

from mereo.core import Capsules
from mereo.errors import check_positive


class PrimaryMatrixCapsules(nn.Module):
    """Capsules with matrix poses and an activation, at every cell of a map.

    pose = W_p * f + b_p,   activation = sigmoid(W_a * f + b_a)

    Channel type * rows * columns + entry of the first convolution is an entry, row by row, of the pose of that type.

    Args:
        channels: of the map.
        types: kinds of capsules at a cell.
        pose: rows and columns of a pose.
        kernel, stride: of both convolutions.

    Shapes: (batch, channels, height, width) -> pose (batch, types, *pose, rows, columns), activation (batch, types,
        rows, columns).

    Reference: Hinton, Sabour, Frosst 2018 (ICLR), section 4.
    """

    def __init__(
        self, channels: int, types: int, pose: tuple[int, int] = (4, 4), kernel: int = 1, stride: int = 1
    ) -> None:
        super().__init__()
        check_positive(channels=channels, types=types, pose=min(pose))
        self.types, self.matrix = types, tuple(pose)
        self.pose = nn.Conv2d(channels, types * pose[0] * pose[1], kernel, stride)
        self.activation = nn.Conv2d(channels, types, kernel, stride)

    def forward(self, features: Tensor) -> Capsules:
        poses = self.pose(features).unflatten(1, (self.types, *self.matrix))
        return Capsules(poses, self.activation(features).sigmoid())
