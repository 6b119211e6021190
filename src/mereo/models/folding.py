"""Prepares a network for inference: folds what is constant after training, in the faster memory layout."""

import copy
from typing import Protocol, TypeVar, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from mereo.core.kernels.transforms import fallback_reason
from mereo.core.modes import hooked, must_be_called

Model = TypeVar("Model", bound=nn.Module)
_FOLDED = "_is_folded"
"""Attribute of modules that have their form for inference, which is made once."""
SMALL_MAP = 100
"""Cells up to which a 1x1 convolution is faster as one product of matrices."""


@runtime_checkable
class Foldable(Protocol):
    """A module with a faster form for inference.

    `for_inference` is called on a copy in eval mode whose children are folded already; it may change the module in
    place, and returns what takes its place: itself or another module that computes the same.
    """

    def for_inference(self) -> nn.Module: ...


class PointwiseConvolution(nn.Conv2d):
    """A folded 1x1 convolution, of all images together on a CPU: where images are few, PyTorch computes one by one.

    Small maps are multiplied by the weights as one matrix. The rows of larger ones are given to the convolution as
    images, for which PyTorch then takes oneDNN on one thread as well.

    Shapes: (batch, inputs, height, width) -> (batch, outputs, height, width).
    """

    def forward(self, maps: Tensor) -> Tensor:
        apart = maps.dim() != 4 or maps.device.type != "cpu" or torch.compiler.is_compiling() or fallback_reason()
        if apart or not maps.is_contiguous(memory_format=torch.channels_last):
            return super().forward(maps)
        cells = maps.permute(0, 2, 3, 1)
        if maps.shape[2] * maps.shape[3] <= SMALL_MAP:
            return F.linear(cells, self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)
        rows = super().forward(cells.flatten(0, 1).unsqueeze(1).permute(0, 3, 1, 2))
        return rows.permute(0, 2, 3, 1).reshape(*cells.shape[:3], self.out_channels).permute(0, 3, 1, 2)


def _is_pointwise(convolution: nn.Conv2d) -> bool:
    plain = type(convolution) is nn.Conv2d and convolution.groups == 1 and convolution.padding in ((0, 0), "valid")
    return plain and convolution.kernel_size == (1, 1) and convolution.stride == (1, 1)


def _fold_norms(sequence: nn.Sequential) -> None:
    """Fold every batch normalisation directly after a convolution of a sequence into it."""
    for place in range(len(sequence) - 1):
        convolution, norm = sequence[place], sequence[place + 1]
        if must_be_called(convolution, norm):
            continue
        if type(norm) is nn.BatchNorm2d and norm.running_mean is not None and isinstance(convolution, nn.Conv2d):
            sequence[place] = fused = fuse_conv_bn_eval(convolution, norm)
            if _is_pointwise(fused):
                fused.__class__ = PointwiseConvolution
            sequence[place + 1] = nn.Identity()


def _fold(module: nn.Module) -> nn.Module:
    for name, child in module.named_children():
        setattr(module, name, _fold(child))
    if isinstance(module, nn.Sequential):
        _fold_norms(module)
    # The form for inference would skip hooks and adapters.
    inside = (each for child in module.children() for each in child.modules())
    called = hooked(module) or must_be_called(*inside)
    if not isinstance(module, Foldable) or _FOLDED in module.__dict__ or called:
        return module
    ready = module.for_inference()
    ready.__dict__[_FOLDED] = True
    return ready


def folded(model: Model) -> Model:
    """A copy for inference that computes the same, to rounding, with fewer passes over its maps.

    norm(conv(x; W, b); m, v, g, c) = conv(x; W h, (b - m) h + c),   h = g / sqrt(v + eps)

    Every batch normalisation directly after a convolution in a sequence is folded into it, modules that have a form
    for inference (see `Foldable`) take it, and the copy is in channels-last memory if the network declares that to be
    faster. Modules with forward hooks or layers of other libraries, and their parent modules, stay as they are. Its
    weights no longer match the architecture, so it cannot be saved; keep the model itself for that.

    Args:
        model: as trained; it stays as it is.

    Returns:
        The copy, in eval mode and without gradients.
    """
    ready = copy.deepcopy(model).eval().requires_grad_(False)
    ready.__dict__.pop("config", None)
    _fold(ready)
    channels_last = bool(getattr(ready, "channels_last", False))
    for parameter in (p for p in ready.parameters() if p.dim() == 4):  # transforms of capsules have five axes or more
        parameter.data = parameter.to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    return ready
