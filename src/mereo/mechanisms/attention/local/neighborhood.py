"""Neighbourhood attention: each token of a grid attends to the window of tokens nearest to it.

Source: arXiv:2403.04690; the stride is from arXiv:2504.16922; position biases as in arXiv:2204.07143.
Cost: 4 N W D FLOPs for N tokens of D with windows of W tokens, instead of 4 N^2 D; memory grows with N.
"""

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from mereo.core import Coupling, Neighborhood, mechanism
from mereo.core.initialise import start_linears
from mereo.core.inputs import check_tensors
from mereo.core.kernels.exchange import Exchange, exchange
from mereo.core.topology.neighborhood import each_axis
from mereo.errors import UsageError, check_finite, check_heads, check_probability

PerAxis = int | Sequence[int]
Switches = bool | Sequence[bool]


def _grouped(name: str, x: Tensor, heads: int) -> Tensor:
    """Each head of keys and values repeated for the heads of the queries that share it."""
    if x.shape[-2] == heads:
        return x
    if x.shape[-2] == 0 or heads % x.shape[-2]:
        raise UsageError(
            f"{name} has {x.shape[-2]} heads and q has {heads}; the heads of q must be a multiple of them."
        )
    return x.repeat_interleave(heads // x.shape[-2], dim=-2)


def _check(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, ...]:
    """The grid; UsageError if the three do not fit together."""
    check_tensors(q=q, k=k, v=v)
    if not 4 <= q.dim() <= 6:
        raise UsageError(
            f"q has {q.dim()} axes; it must be (batch, *grid, heads, dim) with a grid of one to three axes."
        )
    if min(q.shape[1:-2]) < 2:
        raise UsageError(
            f"q is {tuple(q.shape)}; it must be (batch, *grid, heads, dim) with at least two tokens along each axis of"
            " the grid, the smallest window."
        )
    if k.shape[:-2] != q.shape[:-2] or k.shape[-1] != q.shape[-1] or v.shape[:-1] != k.shape[:-1]:
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in (("q", q), ("k", k), ("v", v)))
        raise UsageError(f"shapes are {shapes}; batch and grid must agree, dim of q and k, and heads of k and v.")
    if {k.dtype, v.dtype} != {q.dtype} or {k.device, v.device} != {q.device}:
        raise UsageError(f"q, k, v are {q.dtype}, {k.dtype}, {v.dtype}; they must have one type and device.")
    if not q.is_floating_point():
        raise UsageError(f"q, k, v are {q.dtype}; they must be real numbers in floating point, such as q.float().")
    if not q.shape[-1]:
        raise UsageError(f"q is {tuple(q.shape)}, with a dim of 0; it must be at least 1.")
    return tuple(q.shape[1:-2])


def neighborhood_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    window: PerAxis,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    causal: Switches = False,
    scale: float | None = None,
    *,
    extra_kv: tuple[Tensor, Tensor] | None = None,
    return_lse: bool = False,
    bias: Tensor | None = None,
    coupling: Coupling | None = None,
    method: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Attend inside the neighbourhood of each token: softmax over the window nearest to it.

    out_i = sum_j softmax_j(scale <q_i, k_j> + bias_(j - i)) v_j,   j in the neighbourhood of i

    Args:
        window: tokens along each axis of the grid; one number, or one for each axis, as the next three.
        stride: number of neighbouring tokens that share one window.
        dilation: distance between the tokens of a window.
        causal: whether a token attends to none behind it.
        scale: factor of the scores; 1 / sqrt(dim) by default.
        extra_kv: keys and values that every query attends to as well, such as registers or text.
        return_lse: also return log sum exp of the scores, float32 or wider.
        bias: added to the scores by relative position, in units of the dilation.
        coupling: makes the couplings, for dropout, recording, and other normalisers; plain softmax by default.
        method: "auto", "compiled" (C++, CPU), "tiles", "gathered", "flex" (FlexAttention; on a CPU without gradients),
            or "dense", the reference.

    Shapes:
        q (batch, *grid, heads, dim), k (batch, *grid, key heads, dim), v (batch, *grid, key heads, pose), grid of one
        to three axes, key heads a divisor of heads; extra_kv (batch, more, key heads, dim), (batch, more, key heads,
        pose); bias (heads, 2 window - 1 for each axis) -> (batch, *grid, heads, pose), and (batch, *grid, heads).

    Raises:
        UsageError: for a window that the grid does not hold, and shapes that do not fit together.

    Reference: arXiv:2403.04690; `Neighborhood` has the rule of the windows.
    """
    grid, heads = _check(q, k, v), q.shape[-2]
    k, v = (_grouped(name, x, heads).flatten(1, -3) for name, x in (("k", k), ("v", v)))
    more = 0
    if extra_kv is not None:
        extra = _extra(extra_kv, q, v)
        more = extra[0].shape[1]
        k, v = (torch.cat((x, y), 1) for x, y in zip((k, v), extra, strict=True))
    topology = Neighborhood(grid, _plain(window), _plain(stride), _plain(dilation), _plain(causal), more)
    if bias is not None:
        needed = (heads, *(2 * line.window - 1 for line in topology.lines))
        if tuple(bias.shape) != needed:
            raise UsageError(f"bias is {tuple(bias.shape)}; it must be {needed}, (heads, 2 window - 1 for each axis).")
        bias = bias.flatten(1)
    check_finite(scale=scale)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    coupling = Coupling("senders") if coupling is None else coupling
    q, k, v = (x.transpose(1, 2) for x in (q.flatten(1, -3), k, v))
    out, lse = exchange(Exchange(q, k, v, topology, coupling, scale, table=bias, with_lse=return_lse), method)
    out = out.transpose(1, 2).unflatten(1, grid)
    return out if lse is None else (out, lse.transpose(1, 2).unflatten(1, grid))


T = TypeVar("T")


def _plain(value: T | Sequence[T]) -> T | tuple[T, ...]:
    return tuple(value) if isinstance(value, Sequence) else value


def _extra(extra_kv: tuple[Tensor, Tensor], q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Extra keys and values with the heads of the queries."""
    more_k, more_v = (_grouped("extra_kv", x, q.shape[-2]) for x in extra_kv)
    for x, pose in ((more_k, q.shape[-1]), (more_v, v.shape[-1])):
        if x.dim() != 4 or x.shape[0] != q.shape[0] or x.shape[-1] != pose or x.shape[1] != more_k.shape[1]:
            raise UsageError(
                f"extra_kv has a tensor of {tuple(x.shape)}; it must be (batch, more, heads, dim) with batch"
                f" {q.shape[0]} and dim {pose}."
            )
    return more_k, more_v


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return NeighborhoodAttention(12, 3, window=3, axes=1), (torch.randn(2, 9, 12),)


@mechanism(
    "neighborhood",
    family="local attention",
    over="senders",
    values="shared",
    update="linear",
    source="arXiv:2403.04690",
    promises=("normalised", "any length"),
    sender_axes={"0": 1},
    receiver_axes={"0": 1, "output": 1},
    largest_input=1e15,  # queries times keys must fit float32
    interface="maps",
    channels_last=True,
    example=_example,
)
class NeighborhoodAttention(nn.Module):
    """Replace each token by a weighted sum of the values of its neighbourhood.

    q, k, v = W x + b   for each head;   out = W_o [neighbourhood attention(q, k, v), ...] + b_o

    Args:
        dim: size of the tokens.
        num_heads: independent sets of couplings; divides `dim`.
        window: tokens of the neighbourhood along each axis; one number, or one for each axis, as the next three.
        stride: number of neighbouring tokens that share one window.
        dilation: distance between the tokens of a window.
        causal: whether a token attends to none behind it.
        axes: number of axes of the grid, 1 to 3.
        qkv_bias: biases of the projection to queries, keys and values.
        position_bias: a learned bias for each head and relative position, as in the networks of arXiv:2204.07143.
        clip: on a grid too small for the window or the dilation, take the largest that it holds, and the inner part of
            the biases, instead of an error; for networks that take images of any size.
        attn_drop: dropout of the couplings.
        proj_drop: dropout of the output.

    Shapes: tokens (batch, *grid, dim) -> (batch, *grid, dim).

    Reads as: couplings[b, h, r, s] is the share of token s in the output of head h for token r, tokens numbered row by
        row; 0 outside the neighbourhood. A sparse tensor where the map is large.

    Raises:
        UsageError: for a window that does not fit the grid.

    Reference: arXiv:2403.04690, weights as in arXiv:2204.07143: truncated normal of 0.02, biases of zero.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        window: PerAxis = 7,
        stride: PerAxis = 1,
        dilation: PerAxis = 1,
        causal: Switches = False,
        axes: int = 2,
        qkv_bias: bool = True,
        position_bias: bool = False,
        clip: bool = False,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        check_probability(attn_drop=attn_drop, proj_drop=proj_drop)
        check_heads(dim, num_heads)
        self.clip = clip
        if axes not in (1, 2, 3):
            raise UsageError(f"axes is {axes!r}; it must be 1, 2 or 3.")
        self.num_heads, self.axes, self.input_axes = num_heads, axes, (axes + 2,)
        self.window, self.stride = each_axis("window", window, axes), each_axis("stride", stride, axes)
        self.dilation, self.causal = each_axis("dilation", dilation, axes), each_axis("causal", causal, axes)
        # Whether the arguments hold for any grid: the smallest one that takes this window.
        Neighborhood(
            tuple(max(w, 2) * max(d, 1) for w, d in zip(self.window, self.dilation, strict=True)),
            self.window, self.stride, self.dilation, self.causal,
        )  # fmt: skip
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.coupling = Coupling("senders", dropout=attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        table = torch.zeros(num_heads, *(2 * w - 1 for w in self.window)) if position_bias else None
        self.position_bias = None if table is None else nn.Parameter(table)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: truncated normal weights and position biases of 0.02, other biases zero."""
        for linear in (self.qkv, self.proj):
            start_linears(linear)
        if self.position_bias is not None:
            nn.init.trunc_normal_(self.position_bias, std=0.02)

    def _fitting(self, grid: Sequence[int]) -> tuple[PerAxis, PerAxis, PerAxis, Tensor | None]:
        """Window, stride, dilation and biases that a grid holds."""
        bias: Tensor | None = self.position_bias
        if not self.clip:
            return self.window, self.stride, self.dilation, bias
        window = tuple(min(w, length) for w, length in zip(self.window, grid, strict=True))
        stride = tuple(min(s, w) for s, w in zip(self.stride, window, strict=True))
        dilation = tuple(min(d, max(length // w, 1)) for d, w, length in zip(self.dilation, window, grid, strict=True))
        if bias is not None:
            for axis, (whole, w) in enumerate(zip(self.window, window, strict=True), 1):
                bias = bias.narrow(axis, whole - w, 2 * w - 1)
        return window, stride, dilation, bias

    def forward(self, tokens: Tensor) -> Tensor:
        window, stride, dilation, bias = self._fitting(tokens.shape[1:-1])
        q, k, v = self.qkv(tokens).unflatten(-1, (3, self.num_heads, -1)).unbind(-3)
        out = neighborhood_attention(q, k, v, window, stride, dilation, self.causal, bias=bias, coupling=self.coupling)
        assert isinstance(out, Tensor)
        return self.proj_drop(self.proj(out.flatten(-2)))

    def extra_repr(self) -> str:
        parts = [str(self.qkv.in_features), f"num_heads={self.num_heads}", f"window={self.window}"]
        for name, default in (("stride", 1), ("dilation", 1), ("causal", False)):
            value = getattr(self, name)
            parts += [f"{name}={value}"] if any(x != default for x in value) else []
        return ", ".join(parts)
