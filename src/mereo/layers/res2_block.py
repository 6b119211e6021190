"""A Res2Net block with squeeze and excitation: one bottleneck that sees receptive fields of several sizes.

Source: Gao, Cheng, Zhao, Zhang, Yang, Torr 2019, arXiv:1904.01169, with the gate of Hu et al. 2018, arXiv:1709.01507.
Cost: of a bottleneck whose middle convolution has `scale` groups, less one group; the groups run one after the other.
"""

import torch
from torch import Tensor, nn

from mereo.errors import UsageError, check_positive
from mereo.layers.conv_norm import ConvNorm
from mereo.mechanisms.gate import SqueezeExcite


class Res2SEBlock(nn.Module):
    """relu(shortcut(x) + gate(norm(conv1x1(y_1, ..., y_s)))), where y comes from s groups of relu(norm(conv1x1(x))).

    stride 1:  y_1 = a_1,  y_2 = K_2(a_2),  y_k = K_k(a_k + y_{k-1})
    stride 2:  y_1 = average pooling of a_1,  y_k = K_k(a_k)

    K_k is a convolution of 3x3, a norm and a ReLU. The shortcut is a convolution of size one with a norm where the
    shape changes. With `scale` 1 the only group passes a K, which is the ordinary bottleneck.

    Args:
        inputs, outputs: channels.
        stride: of the block; above 1 the groups do not see each other.
        scale: number of groups, which divides `outputs`.
        reduction: of the gate, which has outputs / reduction hidden numbers, at least 1.

    Shapes: (batch, inputs, height, width) -> (batch, outputs, ceil(height / stride), ceil(width / stride)).

    Reference: arXiv:1904.01169, eq. 1; the pooled group with strides is from the authors' code.
    """

    def __init__(self, inputs: int, outputs: int, stride: int = 1, scale: int = 4, reduction: int = 16) -> None:
        super().__init__()
        check_positive(inputs=inputs, outputs=outputs, stride=stride, scale=scale, reduction=reduction)
        if outputs % scale:
            raise UsageError(f"scale is {scale} and outputs {outputs}; it must divide them.")
        width = outputs // scale
        self.scale, self.chained = scale, stride == 1
        self.enter = ConvNorm(inputs, outputs, activation=nn.ReLU)
        self.groups = nn.ModuleList(
            ConvNorm(width, width, 3, stride, activation=nn.ReLU) for _ in range(max(scale - 1, 1))
        )
        pooled = stride > 1 and scale > 1
        self.pool = nn.AvgPool2d(3, stride, padding=1) if pooled else nn.Identity()
        self.leave = ConvNorm(outputs, outputs)
        self.gate = SqueezeExcite(outputs, max(outputs // reduction, 1))
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else ConvNorm(inputs, outputs, 1, stride)

    def _scales(self, maps: Tensor) -> Tensor:
        """The outputs of the groups, concatenated along the channels."""
        if self.scale == 1:
            return self.groups[0](maps)
        first, *others = maps.chunk(self.scale, 1)
        made = [self.pool(first)]
        for number, (group, convolve) in enumerate(zip(others, self.groups, strict=True)):
            made.append(convolve(group + made[-1] if self.chained and number else group))
        return torch.cat(made, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.shortcut(x) + self.gate(self.leave(self._scales(self.enter(x)))))
