"""The inverted bottleneck of MaxViT: a residual branch that widens, mixes neighbours, gates channels and narrows.

Source: Sandler et al. 2018, arXiv:1801.04381 (the bottleneck); Tu et al. 2022, arXiv:2204.01697, section 3.3 and
appendix A.1 (norm first, squeeze and excite).
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core.kernels.transforms import fallback_reason
from mereo.core.modes import must_be_called
from mereo.core.shapes import same_padding
from mereo.core.squash import bounded
from mereo.errors import UsageError, check_choice, check_positive
from mereo.layers.norms import norm_factors
from mereo.layers.stochastic_depth import StochasticDepth
from mereo.mechanisms.slots import Place, fill_slot

Border = tuple[int, int, int, int]
Weights = tuple[Tensor, Tensor, Tensor, Tensor]
"""Weights and biases of the expansion and of the depthwise convolution, with their norms folded in."""
PART = 2**17
"""Number of wide entries that are made at a time (512 KiB in float32)."""


class InvertedBottleneck(nn.Module):
    """A residual branch that widens a map, mixes neighbours, gates channels and narrows it again.

    out = shortcut(x) + narrow(gate(act(norm(depthwise(act(norm(widen(norm(x)))))))))

    shortcut(x) = x where the stride is 1, and the mean of 2 x 2 cells where it is 2, projected if inputs != outputs.

    Args:
        inputs, outputs: channels.
        hidden: channels between the wide convolutions.
        squeezed: channels of the narrow layer of squeeze and excite.
        stride: 1 or 2, of the depthwise convolution.
        activation: makes the activations.
        padding: where a stride of 2 puts its zeros: "same" after the map as TensorFlow does, or "symmetric".
        bias: of the last layer and of the projection.
        eps, momentum: of the batch normalisations.
        drop_path: rate of stochastic depth.
        mechanism: name of the mechanism that takes the place of squeeze and excite.
        mechanism_args: arguments of its constructor that the block does not fill in.
        size: rows and columns of the output, for mechanisms that need them.

    Shapes: (batch, inputs, height, width) -> (batch, outputs, height / stride, width / stride), both in channels-last
        memory.

    Deviates: in evaluation the norms are folded into the adjacent layers, which is equal up to rounding. In training
        gradients are clamped to +-1e16.

    Reference: arXiv:2204.01697, section 3.3.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        hidden: int,
        squeezed: int,
        stride: int = 1,
        *,
        activation: Callable[[], nn.Module] = nn.GELU,
        padding: str = "symmetric",
        bias: bool = True,
        eps: float = 1e-5,
        momentum: float = 0.1,
        drop_path: float = 0.0,
        mechanism: str = "squeeze_excite",
        mechanism_args: Mapping[str, Any] | None = None,
        size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        check_positive(inputs=inputs, outputs=outputs, hidden=hidden, squeezed=squeezed)
        check_choice("padding", padding, ("same", "symmetric"))
        if stride not in (1, 2) or (stride == 1 and inputs != outputs):
            raise UsageError(
                f"stride is {stride}, from {inputs} to {outputs} channels; give 2, or 1 and equal channels."
            )
        self.stride, self.padding = stride, padding
        self.project = nn.Linear(inputs, outputs, bias) if inputs != outputs else None
        self.norm = nn.BatchNorm2d(inputs, eps, momentum)
        self.widen = nn.Linear(inputs, hidden, bias=False)
        self.wide_norm = nn.BatchNorm2d(hidden, eps, momentum)
        self.activation = activation()
        self.depthwise = nn.Conv2d(hidden, hidden, 3, stride, groups=hidden, bias=False)
        self.mixed_norm = nn.BatchNorm2d(hidden, eps, momentum)
        if mechanism == "squeeze_excite":
            mechanism_args = {"hidden": squeezed, "activation": nn.SiLU, **(mechanism_args or {})}
        self.gate = fill_slot(mechanism, "maps", Place(hidden, size=size), mechanism_args)
        self.narrow = nn.Linear(hidden, outputs, bias)
        self.drop_path = StochasticDepth(drop_path)
        self.constant: nn.ParameterList | None = None

    def _borders(self, height: int, width: int) -> Border:
        """Zeros to the left, to the right, above and below."""
        if self.padding == "symmetric":
            return 1, 1, 1, 1
        return *same_padding(width, 3, self.stride), *same_padding(height, 3, self.stride)

    def folded(self) -> Weights:
        """Weights with norms folded in: W_1 h_1 diag(h_0), its bias, weight and bias of the depthwise convolution.

        norm(x) = h x + c,   h = g / sqrt(v + eps),   c = b - m h
        """
        first, first_shift = norm_factors(self.norm)
        wide, wide_shift = norm_factors(self.wide_norm)
        mixed, mixed_shift = norm_factors(self.mixed_norm)
        weight = self.widen.weight
        scaled = wide[:, None] * weight
        depthwise = self.depthwise.weight * mixed[:, None, None, None]
        parts = scaled * first, scaled @ first_shift + wide_shift, depthwise, mixed_shift
        return tuple(part.to(weight.dtype) for part in parts)  # type: ignore[return-value]

    def _in_place(self, x: Tensor) -> bool:
        """Whether the activation may overwrite its input, and has a public form that does."""
        hooked = self.activation._forward_hooks or self.activation._forward_pre_hooks
        plain = torch.is_grad_enabled() or torch.compiler.is_compiling() or fallback_reason() is not None
        return type(self.activation) is nn.SiLU and x.device.type == "cpu" and not (hooked or plain)

    def _widened(self, cells: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """activation(W x + b) of every cell; without gradients in parts that stay in the processor's cache."""
        if not self._in_place(cells) or cells.dtype != weight.dtype or torch.is_autocast_enabled("cpu"):
            return self.activation(F.linear(cells, weight, bias))
        rows = cells.reshape(-1, cells.shape[-1])
        wide, size = rows.new_empty(len(rows), len(weight)), max(1, PART // len(weight))
        for part, given in zip(wide.split(size), rows.split(size), strict=True):
            F.silu(torch.addmm(bias, given, weight.T, out=part), inplace=True)
        return wide.view(*cells.shape[:-1], -1)

    def _wide(
        self, cells: Tensor, weight: Tensor, bias: Tensor, border: tuple[int, int, int, int]
    ) -> tuple[Tensor, int]:
        """The widened map (batch, hidden, height, width), and how much padding the convolution still has to add."""
        left, right, above, below = border
        even = left == right == above == below
        if even or torch.is_grad_enabled() or torch.compiler.is_compiling():
            wide = self._widened(cells, weight, bias).permute(0, 3, 1, 2)
            return (wide, left) if even else (F.pad(wide, border), 0)
        # Padding the narrow map and erasing the layer's output at the padding is cheaper than padding the wide one.
        height, width = cells.shape[1] + above, cells.shape[2] + left
        wide = self._widened(F.pad(cells, (0, 0, *border)), weight, bias)
        for edge in (wide[:, :above], wide[:, height:], wide[:, :, :left], wide[:, :, width:]):
            edge.zero_()
        return wide.permute(0, 3, 1, 2), 0

    def _branch(self, x: Tensor) -> Tensor:
        border = self._borders(*x.shape[2:])
        layers = self.norm, self.widen, self.wide_norm, self.depthwise, self.mixed_norm
        called = self.constant is None and must_be_called(*layers)
        if self.training or called:
            cells = self.norm(x).permute(0, 2, 3, 1)
            wide = self.activation(self.wide_norm(self.widen(cells).permute(0, 3, 1, 2)))
            even = len(set(border)) == 1 and not called
            padded, left = (wide, border[0]) if even else (F.pad(wide, border), 0)
            if called:
                mixed = self.depthwise(padded)
            else:
                mixed = F.conv2d(padded, self.depthwise.weight, None, self.stride, left, 1, self.depthwise.groups)
            mixed = self.activation(self.mixed_norm(mixed))
        else:
            weight, bias, depthwise, shift = self.folded() if self.constant is None else self.constant
            wide, left = self._wide(x.permute(0, 2, 3, 1), weight, bias, border)
            mixed = F.conv2d(wide, depthwise, shift, self.stride, left, 1, len(depthwise))
            mixed = F.silu(mixed, inplace=True) if self._in_place(mixed) else self.activation(mixed)
        return self.narrow(self.gate(mixed).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.stride == 2 and (x.shape[2] % 2 or x.shape[3] % 2):
            raise UsageError(f"maps are {tuple(x.shape)}; a stride of 2 needs an even height and an even width.")
        shortcut = x if self.stride == 1 else F.avg_pool2d(x, 2)
        if self.project is not None:
            shortcut = self.project(shortcut.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        out: Tensor = shortcut + self.drop_path(self._branch(x))
        if self.training and out.requires_grad and not torch.compiler.is_compiling() and fallback_reason() is None:
            # Of blank images batch norms have no variance, and a derivative of eps^-1/2 each: many overflow float32.
            out.register_hook(bounded)
        return out

    def for_inference(self) -> nn.Module:
        self.constant = nn.ParameterList(nn.Parameter(part, requires_grad=False) for part in self.folded())
        self.norm = self.widen = self.wide_norm = self.depthwise = self.mixed_norm = None  # type: ignore[assignment]
        return self
