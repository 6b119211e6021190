"""Convolutions and linear layers for inference on a CPU, with weights in the order in which oneDNN reads them.

oneDNN, which PyTorch brings, reorders the weights of a convolution in every call, and PyTorch computes linear layers
by MKL, which on processors of other makers than Intel leaves half of their speed unused. Packed once, neither is paid,
and an activation is applied while the output is written.
"""

from itertools import zip_longest
from typing import Any, Self, TypeGuard, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core.kernels.affine import Linear, known_activation, product
from mereo.core.kernels.transforms import steps_aside
from mereo.core.modes import hooked
from mereo.errors import UsageError
from mereo.layers.feed_forward import FeedForward


def can_pack(module: nn.Module) -> TypeGuard[nn.Conv2d | nn.Linear]:
    """Whether a layer has a packed form: a convolution or linear layer in float32 on a CPU, under a PyTorch that has
    oneDNN's operators."""
    if type(module) not in (nn.Conv2d, nn.Linear, Linear) or not torch.backends.mkldnn.is_available():
        return False
    if hooked(module):
        return False
    weight = module.weight
    if not isinstance(weight, Tensor) or weight.device.type != "cpu" or weight.dtype != torch.float32:
        return False
    if isinstance(module, nn.Conv2d) and (module.padding_mode != "zeros" or isinstance(module.padding, str)):
        return False
    names = ("_convolution_pointwise", "_linear_pointwise", "_reorder_convolution_weight")
    return weight.numel() > 0 and all(hasattr(torch.ops.mkldnn, name) for name in names)


class Packed(nn.Module):
    """activation(layer(x)) for a convolution or linear layer, without gradients of its weights.

    Inputs that need a gradient, other devices and types and exported programs get PyTorch's own layer with the weights
    put back into their usual order.

    Args:
        layer: for which `can_pack` holds.
        activation: one that oneDNN can apply (see `known_activation`), or None.

    Shapes: those of the layer.
    """

    def __init__(self, layer: nn.Conv2d | nn.Linear, activation: nn.Module | None = None) -> None:
        super().__init__()
        known = known_activation(activation)
        if known is None:
            raise UsageError(f"activation is {activation}; a packed layer applies ReLU, GELU and SiLU.")
        self.activation, self.activation_name = activation, known
        self.described = repr(layer)
        self.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach(), requires_grad=False)
        self.linear = isinstance(layer, nn.Linear)
        if isinstance(layer, nn.Linear):
            self.in_features, self.out_features = layer.in_features, layer.out_features
        self.geometry: tuple[Any, ...] = ([0, 0], [1, 1], [1, 1], 1)
        if isinstance(layer, nn.Conv2d):
            self.geometry = (list(layer.padding), list(layer.stride), list(layer.dilation), layer.groups)
        pointwise = layer.weight[0, 0].numel() == 1 if isinstance(layer, nn.Conv2d) else False
        self.product = self.linear or (pointwise and self.geometry == ([0, 0], [1, 1], [1, 1], 1))
        self._dense: Tensor | None = layer.weight.detach()
        self._packed: Tensor | None = None
        self._pack()

    @property
    def weight(self) -> Tensor:
        """The weights in PyTorch's order."""
        if self._dense is not None:
            return self._dense
        assert self._packed is not None
        weight = self._packed.to_dense()
        return weight[:, :, None, None] if self.product and not self.linear else weight

    def _pack(self) -> None:
        weight = self.weight
        if weight.device.type == "cpu" and weight.dtype == torch.float32 and self._packed is None:
            if self.product:
                self._packed = weight.flatten(1).contiguous().to_mkldnn()
            else:
                self._packed = torch.ops.mkldnn._reorder_convolution_weight(weight, *self.geometry, None)
            self._dense = None

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        changed = fn(self.weight)
        self._dense, self._packed = changed, None
        super()._apply(fn, recurse)
        self._pack()
        return self

    def __getstate__(self) -> dict[str, Any]:
        # oneDNN's tensors cannot be copied.
        return {**self.__dict__, "_dense": self.weight, "_packed": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._pack()

    def _plain(self, x: Tensor) -> Tensor:
        padding, stride, dilation, groups = self.geometry
        if self.linear:
            out = F.linear(x, self.weight, self.bias)
        else:
            out = F.conv2d(x, self.weight, self.bias, stride, padding, dilation, groups)
        return out if self.activation is None else self.activation(out)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor
        gradient = x.requires_grad and torch.is_grad_enabled()
        fits = self._packed is not None and x.dtype == torch.float32 and x.device.type == "cpu" and x.numel() > 0
        if gradient or not fits or torch.is_autocast_enabled("cpu") or steps_aside():
            return self._plain(x)
        if not self.product:
            name, form = self.activation_name
            return torch.ops.mkldnn._convolution_pointwise(x, self._packed, self.bias, *self.geometry, name, [], form)
        # A convolution of size one is a product too, and for some sizes oneDNN's convolutions are ten times as slow.
        rows = x if self.linear else x.permute(0, 2, 3, 1)
        assert self._packed is not None
        out = product(rows, self._packed, self.bias, self.activation_name)
        return out if self.linear else out.permute(0, 3, 1, 2)

    def extra_repr(self) -> str:
        return self.described + (f", {self.activation}" if self.activation is not None else "")


def _pack_sequence(sequence: nn.Sequential, convolutions: bool) -> None:
    """Pack the layers of a sequence, each with the activation directly after it."""
    places = [i for i, module in enumerate(sequence) if type(module) is not nn.Identity]
    for place, following in zip_longest(places, places[1:]):  # an empty sequence has neither
        layer = sequence[place]
        if not can_pack(layer) or not (convolutions or isinstance(layer, nn.Linear)):
            continue
        activation = None if following is None else sequence[following]
        if activation is None or following is None or known_activation(activation) is None:
            sequence[place] = Packed(layer)
        else:
            sequence[place], sequence[following] = Packed(layer, activation), nn.Identity()


def pack(module: nn.Module, convolutions: bool = True) -> None:
    """Replace, in place, every layer inside a module that has a packed form.

    Args:
        convolutions: whether convolutions too; their outputs are then in channels-last memory.
    """
    if isinstance(module, nn.Sequential):
        _pack_sequence(module, convolutions)
    if isinstance(module, FeedForward) and can_pack(module.first) and known_activation(module.activation) is not None:
        module.first = cast("Linear", Packed(module.first, module.activation))
        module.activation = nn.Identity()
    for name, child in module.named_children():
        if can_pack(child) and (convolutions or isinstance(child, nn.Linear)):
            setattr(module, name, Packed(child))
        else:
            pack(child, convolutions)
