"""A convolution and its batch normalisation, which fold into one convolution for inference."""

from collections.abc import Callable

from torch import nn


class ConvNorm(nn.Sequential):
    """activation(norm(conv(x))), the convolution without a bias.

    Its entries are a convolution, a norm and, where given, an activation: `VisionModel.fuse` folds the first two.

    Args:
        inputs, outputs: channels.
        kernel, stride, groups: of the convolution, which is padded by kernel // 2.
        activation: makes the module that follows; nothing follows by default.
        eps, momentum: of the batch normalisation.
        norm_weight: where its weights start; 0 makes a residual branch start as nothing.

    Shapes: (batch, inputs, height, width) -> (batch, outputs, ceil(height / stride), ceil(width / stride)).
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int = 1,
        stride: int = 1,
        *,
        groups: int = 1,
        activation: Callable[[], nn.Module] | None = None,
        eps: float = 1e-5,
        momentum: float = 0.1,
        norm_weight: float = 1.0,
    ) -> None:
        convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        norm = nn.BatchNorm2d(outputs, eps=eps, momentum=momentum)
        nn.init.constant_(norm.weight, norm_weight)
        super().__init__(convolution, norm, *([] if activation is None else [activation()]))
