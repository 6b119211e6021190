"""Excitation backpropagation: what is above zero is passed back in proportion to positive weights.

Source: Zhang, Lin, Brandt, Shen, Sclaroff 2016, arXiv:1608.00507, eq. 10 and section 3.3.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.errors import UsageError
from mereo.models import VisionModel

_WEIGHTED = (nn.Conv2d, nn.Linear)
_PASSED = (
    nn.BatchNorm2d, nn.ReLU, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Identity, nn.Flatten, nn.Dropout,
)  # fmt: skip


def last_scorer(model: VisionModel) -> nn.Module:
    """The linear layer that gives the scores; UsageError for a network with modules that the rule has no answer to."""
    for name, module in model.named_modules():
        if not any(module.children()) and not isinstance(module, (*_WEIGHTED, *_PASSED)):
            raise UsageError(
                f"method is of excitation, which passes through convolutions, ReLU and pooling alone; {name} is"
                f" {type(module).__name__}."
            )
    last = [module for module in model.get_classifier().modules() if isinstance(module, _WEIGHTED)]
    if not last:
        raise UsageError(f"method is of excitation, and the classifier of {type(model).__name__} has no linear layer.")
    return last[-1]


def _apply(module: nn.Module, inputs: Tensor, weight: Tensor) -> Tensor:
    """A convolution or linear layer with other weights and without its bias."""
    if isinstance(module, nn.Linear):
        return F.linear(inputs, weight)
    assert isinstance(module, nn.Conv2d)
    return module._conv_forward(inputs, weight, None)


class _Excite(torch.autograd.Function):
    """The output of a layer, through which g = P / x passes back: see `excite`."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, output: Tensor, module: nn.Module, last: bool, contrast: bool) -> Tensor:
        ctx.save_for_backward(inputs, output)
        ctx.module, ctx.last, ctx.contrast = module, last, contrast
        return output.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs, output = ctx.saved_tensors
        tiny = torch.finfo(inputs.dtype).eps ** 2
        passed = gradients[0] if ctx.last else gradients[0] * output
        if isinstance(ctx.module, nn.BatchNorm2d):
            return torch.where(inputs.abs() > tiny, passed / inputs, 0.0), None, None, None, None
        above = inputs.clamp(min=0)

        def share(weight: Tensor) -> Tensor:
            with torch.enable_grad():
                leaf = above.detach().requires_grad_()
                total = _apply(ctx.module, leaf, weight.clamp(min=0))
                ratio = torch.where(total > tiny, passed / total.clamp(min=tiny), 0.0)
                return torch.autograd.grad(total, leaf, ratio.detach())[0]

        weight = ctx.module.weight.detach()
        g = share(weight) - share(-weight) if ctx.last and ctx.contrast else share(weight)
        return g * (inputs > 0), None, None, None, None


def excite(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor, *, last: nn.Module, contrast: bool) -> Any:
    """A forward hook after which a weighted layer passes back by the rule of excitation.

    P_i = x_i+ sum_j W_ij+ P_j / sum_k W_kj+ x_k+,   g = P / x,   so that x g summed over channels is P

    Sums, means, maxima and ReLU pass g as plain gradients do, which for activations above zero is the same rule; batch
    normalisation passes P unchanged. With `contrast` the layer of the scores gives P for its weights minus P for their
    negative.

    Reference: arXiv:1608.00507, eq. 10; section 3.3 for the contrast, which is taken at the input of the classifier.
    """
    if not isinstance(module, (*_WEIGHTED, nn.BatchNorm2d)) or not output.requires_grad:
        return None
    return _Excite.apply(inputs[0], output.detach(), module, module is last, contrast)
