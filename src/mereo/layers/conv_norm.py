"""A convolution and its batch normalisation, which fold into one convolution for inference."""

from collections.abc import Callable
from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core.modes import hooked
from mereo.layers.norms import norm_factors

_CHEAP = 3
"""Least ratio of outputs to weights at which folding the weights costs less than a norm."""


def _is_plain(module: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Whether a module is a convolution without a bias whose weights can be folded in each call."""
    if type(module) is not nn.Conv2d or isinstance(module.padding, str):
        return False
    return module.bias is None and module.padding_mode == "zeros"


class ConvNorm(nn.Sequential):
    """activation(norm(conv(x))), the convolution without a bias unless one is asked for.

    Its entries are a convolution, a norm and, where given, an activation: `VisionModel.fuse` folds the first two. In
    evaluation without gradients the weights are folded in each call, if that costs less than a pass over the maps.

    Args:
        inputs, outputs: channels.
        kernel, stride, groups: of the convolution, which is padded by kernel // 2.
        activation: makes the module that follows; nothing follows by default.
        eps, momentum: of the batch normalisation.
        norm_weight: initial weight of the norm; 0 makes a residual branch start at zero.
        bias: of the convolution, which the norm cancels in training; for the parameters of published networks.

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
        bias: bool = False,
    ) -> None:
        convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=bias)
        norm = nn.BatchNorm2d(outputs, eps=eps, momentum=momentum)
        nn.init.constant_(norm.weight, norm_weight)
        super().__init__(convolution, norm, *([] if activation is None else [activation()]))

    def _folds(self, maps: Tensor) -> bool:
        """Whether the factors of the norm should multiply the weights instead of the maps."""
        convolution, norm = self[0], self[1]
        assert isinstance(convolution, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)
        if norm.training or norm.running_mean is None or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return False
        cells = maps.shape[0] * maps.shape[2] * maps.shape[3] / (convolution.stride[0] * convolution.stride[1])
        return cells >= _CHEAP * convolution.weight[0].numel()

    def forward(self, maps: Tensor) -> Tensor:
        convolution, norm, *after = self
        if not (type(norm) is nn.BatchNorm2d and _is_plain(convolution)) or hooked(convolution) or hooked(norm):
            return super().forward(maps)  # folded already, replaced, or watched
        weight, padding, groups = convolution.weight, convolution.padding, convolution.groups
        assert not isinstance(padding, str)
        if not self._folds(maps):
            out: Tensor = norm(F.conv2d(maps, weight, None, convolution.stride, padding, convolution.dilation, groups))
        else:
            factor, shift = norm_factors(norm)
            weight = (weight * factor[:, None, None, None]).to(weight.dtype)
            shift = shift.to(weight.dtype)
            out = F.conv2d(maps, weight, shift, convolution.stride, padding, convolution.dilation, groups)
        for module in after:
            out = module(out)
        return out
