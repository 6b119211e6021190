"""Linear layers and convolutions executed, with the activation after them.

oneDNN computes a product and its activation in one pass over the outputs, and on processors for which PyTorch's own
matrix products (MKL) are not written, the product by itself takes about half as long. The plain operations remain for
everything that this does not cover: other devices and types, exporters, transforms of `torch.func`. A compiler that
needs gradients knows oneDNN's convolutions and not its linear layers: for it, on a processor with AVX-512 that is not
Intel's, a linear layer is a convolution of size one on maps in channels-last memory, the same sum without a copy.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core.kernels.transforms import steps_aside

_PLAIN = ("none", "")


def known_activation(activation: nn.Module | None) -> tuple[str, str] | None:
    """oneDNN's name and form of an activation that it can apply to a result; None for any other."""
    if activation is None or type(activation) is nn.Identity:
        return _PLAIN
    if isinstance(activation, nn.Module) and (activation._forward_hooks or activation._forward_pre_hooks):
        return None
    if type(activation) is nn.GELU:
        return "gelu", activation.approximate
    return {nn.ReLU: ("relu", ""), nn.SiLU: ("swish", "")}.get(type(activation))


def _available() -> bool:
    mkldnn = torch.backends.mkldnn
    operators = ("_linear_pointwise", "_convolution_pointwise")
    return mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in operators)


_AVAILABLE = _available()


def _can_run(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN's operators may stand for the plain ones in this call."""
    if not _AVAILABLE or x.dtype != torch.float32 or weight.dtype != torch.float32 or x.device.type != "cpu":
        return False
    if torch.compiler.is_compiling():
        # Gradients are the compiler's own.
        return not (torch.is_grad_enabled() or torch.compiler.is_exporting() or torch.is_autocast_enabled("cpu"))
    return (
        weight.device.type == "cpu"
        and type(x) in (Tensor, nn.Parameter)
        and type(weight) in (Tensor, nn.Parameter)
        and x.numel() > 0
        and torch._C._get_mkldnn_enabled()
        and not torch.is_autocast_enabled("cpu")
        and torch._C._get_tracing_state() is None
        and torch._C._len_torch_dispatch_stack() == 0  # modes that count or replace operations support the plain ones
        and steps_aside() is None
    )


@cache
def _convolutions_are_faster() -> bool:
    """Whether this processor has AVX-512 and is not Intel's."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkldnn.is_available():
        return False
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text()[:4096]
    except (OSError, UnicodeDecodeError):
        return False


_FASTER = _convolutions_are_faster()


def autocasts(x: Tensor) -> bool:
    """Whether layers would convert this tensor under `torch.autocast`."""
    return x.device.type != "meta" and torch.is_autocast_enabled(x.device.type)


def unconverted(x: Tensor) -> AbstractContextManager[Any]:
    """A context in which `torch.autocast` converts nothing on the device of this tensor."""
    return torch.autocast(x.device.type, enabled=False) if autocasts(x) else nullcontext()


def _compiles_to_a_convolution(x: Tensor, weight: Tensor) -> bool:
    """Whether a compiler is given a convolution in place of a matrix product."""
    if not _FASTER or not torch.compiler.is_compiling() or torch.compiler.is_exporting():
        return False
    if x.device.type != "cpu" or not x.dtype == weight.dtype == torch.float32 or autocasts(x):
        return False
    # The compiler copies maps of one row, whose layout is ambiguous, so that tokens must come as maps.
    return x.dim() == 4


def _as_convolution(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.conv2d(x.permute(0, 3, 1, 2), weight[:, :, None, None], bias).permute(0, 2, 3, 1)


def _needs_gradient(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _activated(out: Tensor, activation: nn.Module | None) -> Tensor:
    return out if activation is None else activation(out)


@torch.library.custom_op("mereo::affine_product", mutates_args=())
def _opaque(x: Tensor, weight: Tensor, bias: Tensor | None, name: str, form: str) -> Tensor:
    """oneDNN's product as one operation of ours: compilers take their own only with constant weights."""
    rows: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, name, [], form)
    return rows


@_opaque.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, name: str, form: str) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


def product(x: Tensor, weight: Tensor, bias: Tensor | None, activation: tuple[str, str] = _PLAIN) -> Tensor:
    """activation(x W^T + b) by oneDNN, W as it is or packed. Shapes: those of `linear`."""
    name, form = activation
    rows = x.reshape(-1, x.shape[-1])
    if torch.compiler.is_compiling():
        rows = _opaque(rows, weight, bias, name, form)
    else:
        rows = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, name, [], form)
    return rows.view(*x.shape[:-1], weight.shape[0])


class _Linear(torch.autograd.Function):
    """x W^T + b with its gradients by oneDNN; second derivatives by the plain operations."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        rows, inputs = gradient.reshape(-1, gradient.shape[-1]), x.reshape(-1, x.shape[-1])
        of_bias = rows.sum(0) if wanted[2] else None
        if torch.is_grad_enabled() or not _can_run(gradient, weight):
            return gradient @ weight if wanted[0] else None, rows.t() @ inputs if wanted[1] else None, of_bias
        of_x = product(gradient, weight.t(), None) if wanted[0] else None
        return of_x, product(rows.t(), inputs.t(), None) if wanted[1] else None, of_bias


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: nn.Module | None = None) -> Tensor:
    """activation(x W^T + b), by the fastest way that there is for this call.

    Args:
        activation: a module such as nn.GELU(); None for none.

    Shapes: x (..., inputs), weight (outputs, inputs), bias (outputs) -> (..., outputs).
    """
    name = known_activation(activation)
    if not _can_run(x, weight):
        plain = _as_convolution if _compiles_to_a_convolution(x, weight) else F.linear
        return _activated(plain(x, weight, bias), activation)
    if _needs_gradient(x, weight, bias):
        return _activated(_Linear.apply(x, weight, bias), activation)
    return product(x, weight, bias, name) if name else _activated(product(x, weight, bias), activation)


def _pointwise(x: Tensor, weight: Tensor, stride: int, padding: int) -> bool:
    """Whether a convolution is a product of cells, which lie in memory as rows."""
    if x.dim() != 4 or weight.shape[1:] != (x.shape[1], 1, 1) or stride != 1 or padding != 0:
        return False
    return x.permute(0, 2, 3, 1).is_contiguous()


_FEW_IMAGES = 16
"""On one thread PyTorch computes a 1x1 convolution of fewer images by MKL, image by image."""


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int = 1,
    padding: int = 0,
    groups: int = 1,
    activation: nn.Module | None = None,
) -> Tensor:
    """activation(conv(x; W, b)), by the fastest way that there is for this call.

    Shapes: x (batch, inputs, height, width), weight (outputs, inputs / groups, kernel, kernel)
        -> (batch, outputs, ...).
    """
    if not torch.compiler.is_compiling() and _can_run(x, weight):
        gradient, pointwise = _needs_gradient(x, weight, bias), _pointwise(x, weight, stride, padding)
        if pointwise and (not gradient or (torch.get_num_threads() == 1 and len(x) < _FEW_IMAGES)):
            return linear(x.permute(0, 2, 3, 1), weight.flatten(1), bias, activation).permute(0, 3, 1, 2)
        name = known_activation(activation)
        if not gradient and name not in (None, _PLAIN):
            return _activated_convolution(x, weight, bias, stride, padding, groups, name)
    return _activated(F.conv2d(x, weight, bias, stride, padding, 1, groups), activation)


def _activated_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int, groups: int, name: tuple[str, str]
) -> Tensor:
    sides = [[side, side] for side in (padding, stride, 1)]
    out: Tensor = torch.ops.mkldnn._convolution_pointwise(x, weight, bias, *sides, groups, name[0], [], name[1])
    return out


class Linear(nn.Linear):
    """PyTorch's linear layer, executed by `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def activated(layer: nn.Module, x: Tensor, activation: nn.Module) -> Tensor:
    """activation(layer(x)), in one pass where the layer is a `Linear` that nothing watches."""
    if type(layer) is Linear and not (layer._forward_hooks or layer._forward_pre_hooks):
        return linear(x, layer.weight, layer.bias, activation)
    out: Tensor = activation(layer(x))
    return out
