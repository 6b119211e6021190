"""Other signals back through ReLU: the deconvolution network and guided backpropagation.

Source: Zeiler, Fergus 2014, arXiv:1311.2901; Springenberg and others 2015, arXiv:1412.6806, section 3.4.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_RELU = (torch.relu, torch.relu_, Tensor.relu, Tensor.relu_, F.relu)


class _ReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, guided: bool) -> Tensor:
        output = inputs.relu()
        ctx.save_for_backward(output if guided else None)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (output,) = ctx.saved_tensors
        above = gradients[0].clamp(min=0)
        return above if output is None else above * (output > 0), None


class Rectified(TorchFunctionMode):
    """While it is entered, ReLU passes back max(g, 0), and with `guided` only where its input is above 0.

    Attributes:
        calls: of ReLU, as a module or a function.
    """

    def __init__(self, guided: bool) -> None:
        super().__init__()
        self.guided, self.calls = guided, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _RELU:
            return func(*args, **(kwargs or {}))
        self.calls += 1
        return _ReLU.apply(args[0] if args else kwargs["input"], self.guided)
