"""ULSAM: groups of channels, each with one attention over the positions that is added to it.

Source: Saini, Jha, Das, Mittal, Mohan 2020, arXiv:2006.15102, section 3; normalisation and biases as in the authors'
code, github.com/Nandan91/ULSAM.
Cost: 2 C multiply-adds a position, a 3 x 3 maximum, and six passes over the features.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from mereo.core import Coupling, mechanism
from mereo.core.kernels.transforms import transformed
from mereo.core.modes import autocasts, must_be_called
from mereo.errors import UsageError, check_positive
from mereo.mechanisms.gate.published import Names


def maximum_3x3(x: Tensor) -> Tensor:
    """The largest value of each position and its eight neighbours: (..., height, width) -> the same."""
    for axis in (-1, -2):
        size, out = x.shape[axis], x.clone()
        if size > 1:
            first, last = out.narrow(axis, 0, size - 1), out.narrow(axis, 1, size - 1)
            torch.maximum(first, x.narrow(axis, 1, size - 1), out=first)
            torch.maximum(last, x.narrow(axis, 0, size - 1), out=last)
        x = out
    return x


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return ULSAM(8, subspaces=2), (torch.randn(2, 8, 6, 5),)


@mechanism(
    "ulsam",
    family="gate",
    source="arXiv:2006.15102",
    over="senders",
    values="shared",
    update="gate",
    promises=("normalised",),
    lacks={"couplings only": "the weighted features are added to the features"},
    zero_gradients={
        "scale.bias": "batch norm takes out the mean in training",
        "point.bias": "batch norm takes out the mean in training",
    },
    interface="maps",
    example=_example,
)
class ULSAM(nn.Module):
    """Add to each group of channels its features, weighted by one softmax over all positions.

    t = maxpool_3x3(scale x_n + bias),   A_n = softmax over positions of w_n . t,   out_n = x_n + A_n x_n

    Args:
        channels: of the map.
        subspaces: groups of consecutive channels; divides `channels`.
        batch_norm: batch norm and ReLU after both linear steps, and biases, as in the authors' code; False for the
            equations of the paper, 2 C parameters.
        momentum: of the batch norms. The authors' code has 0.9, with which statistics follow the last batch.

    Shapes: features (batch, channels, height, width) -> the same; couplings (batch, subspaces, 1, height * width).

    Reads as: couplings[b, n, 0, s] is the share of position s in the attention of group n. With equal shares each
    position grows by 1 / (height * width).

    Deviates: all groups are computed in one pass, which is equal to a module for each.

    Reference: arXiv:2006.15102, eq. 1 to 4.
    """

    published_names: ClassVar[Names] = (
        {
            "scale": "subspaces.*.conv_dws",
            "scale_norm": "subspaces.*.bn_dws",
            "point": "subspaces.*.conv_point",
            "point_norm": "subspaces.*.bn_point",
        },
    )

    def __init__(self, channels: int, subspaces: int = 4, batch_norm: bool = True, momentum: float = 0.1) -> None:
        super().__init__()
        check_positive(channels=channels, subspaces=subspaces)
        if channels % subspaces:
            raise UsageError(f"subspaces is {subspaces}; it must divide channels, {channels}.")
        self.scale = nn.Conv2d(channels, channels, 1, groups=channels, bias=batch_norm)
        self.point = nn.Conv2d(channels, subspaces, 1, groups=subspaces, bias=batch_norm)
        self.scale_norm = nn.BatchNorm2d(channels, momentum=momentum) if batch_norm else nn.Identity()
        self.point_norm = nn.BatchNorm2d(subspaces, momentum=momentum) if batch_norm else nn.Identity()
        self.activation = nn.ReLU() if batch_norm else nn.Identity()
        self.pool = nn.MaxPool2d(3, stride=1, padding=1)
        self.coupling = Coupling("senders")

    def _scaled(self, features: Tensor) -> Tensor:
        """The maximum over 3 x 3 of the scaled features: (batch, channels, height, width) -> the same."""
        parts = (self.scale, self.scale_norm, self.activation, self.pool)
        plain = (
            self.training or torch.is_grad_enabled() or torch.compiler.is_compiling() or features.device.type != "cpu"
        )
        # While its couplings are recorded, and so while operations are counted, its layers run.
        if plain or self.coupling.watched or transformed() or autocasts(features) or must_be_called(*parts):
            scaled: Tensor = self.pool(self.activation(self.scale_norm(self.scale(features))))
            return scaled
        # PyTorch's pooling takes most of the time on a CPU, and its convolution of single channels the rest.
        factor, bias, norm = self.scale.weight[:, :, 0], self.scale.bias, self.scale_norm
        if isinstance(norm, nn.BatchNorm2d) and bias is not None:
            assert norm.running_mean is not None and norm.running_var is not None
            slope = norm.weight * (norm.running_var + norm.eps).rsqrt()
            bias = slope * (bias - norm.running_mean) + norm.bias
            return maximum_3x3((features * (slope[:, None, None] * factor)).add_(bias[:, None, None]).relu_())
        return maximum_3x3(features * factor)

    def forward(self, features: Tensor) -> Tensor:
        scores = self.activation(self.point_norm(self.point(self._scaled(features))))
        shares = self.coupling(scores.flatten(2).unsqueeze(2)).unflatten(3, features.shape[2:])
        groups = features.unflatten(1, (shares.shape[1], -1))
        return (groups * (1 + shares)).flatten(1, 2)
