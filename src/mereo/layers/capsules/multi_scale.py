"""Primary capsules of several maps at once: small parts from fine maps and large ones from coarse maps.

Source: Yang, Lee, Miao, Cai, Chen, Yao, Kotani, Chen, "RS-CapsNet: an advanced capsule network", IEEE Access 8,
2020, doi:10.1109/ACCESS.2020.2992655.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mereo.core import squash
from mereo.errors import UsageError, check_positive


class MultiScalePrimaryCapsules(nn.Module):
    """A convolution of 3x3 on every map; each place and type of each is a capsule.

    Channel type * dim + d of a convolution is entry d of the capsule of that type at its place.

    Args:
        channels: of each map.
        types: kinds of capsules of each map.
        dim: numbers in a capsule, the same for all maps.
        squashed: whether capsules are squashed.

    Shapes: maps (batch, channels, rows, columns), one for each entry of `channels` -> (batch, capsules, dim), ordered
        by map, type, row and column.

    Reference: RS-CapsNet, IEEE Access 2020.
    """

    def __init__(self, channels: Sequence[int], types: Sequence[int], dim: int, *, squashed: bool = True) -> None:
        super().__init__()
        if len(channels) != len(types) or not channels:
            raise UsageError(
                f"channels are {tuple(channels)} and types {tuple(types)}; give one of each for every map."
            )
        check_positive(channels=min(channels), types=min(types), dim=dim)
        self.dim, self.squashed = dim, squashed
        self.convs = nn.ModuleList(
            nn.Conv2d(inputs, kinds * dim, 3, padding=1) for inputs, kinds in zip(channels, types, strict=True)
        )

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        made = [
            convolve(each).unflatten(1, (-1, self.dim)).movedim(2, -1).flatten(1, 3)
            for convolve, each in zip(self.convs, maps, strict=True)
        ]
        capsules = torch.cat(made, 1)
        return squash(capsules) if self.squashed else capsules
