"""Lightning attention: causal linear attention with decay, block by block, and the gated mixer of tokens around it.

Source: arXiv:2405.17381; the decay is from the released code, arXiv:2307.14995 has the gate and the norm.
Cost: 2 N (2 D E + b (D + E)) FLOPs a head for N tokens, keys of D, values of E and blocks of b: the same for each token
at every length, and a state of D E numbers.
"""

from collections.abc import Sequence
from math import log2

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import bounded, mechanism
from mereo.core.inputs import check_tensors
from mereo.core.kernels.linear_scan import BLOCK, Scan, linear_scan
from mereo.core.kernels.transforms import transformed
from mereo.core.modes import must_be_called
from mereo.core.squash import accumulation_type
from mereo.errors import UsageError, check_choice, check_positive
from mereo.mechanisms.scan.base import LinearScan

DECAYS = ("alibi", "paper", "none")


def lightning_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slopes: Tensor | Sequence[float],
    block: int = BLOCK,
    state: Tensor | None = None,
    return_state: bool = False,
    *,
    method: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Let each token read a decaying sum of the tokens up to it; no softmax, no scale, no normaliser.

    S_t = exp(-slope) S_(t-1) + k_t v_t^T,   out_t = q_t^T S_t

    Args:
        slopes: of each head, at least 0; 0 never forgets, infinity reads the token itself only.
        block: tokens that are multiplied as pairs, if the compiled form does not run.
        state: of the tokens before the first one.
        return_state: also return the state behind the last token.
        method: "auto", "compiled" (C++, CPU), "chunked", "parallel" (all pairs) or "recurrent" (a token at a time).

    Shapes:
        q, k (batch, heads, tokens, dim), v (batch, heads, tokens, pose), slopes (heads,), state (batch, heads, dim,
        pose) -> (batch, heads, tokens, pose), and the state, at least float32. Any number of tokens.

    Raises:
        UsageError: for shapes that do not fit together, and slopes below 0.

    Reference: arXiv:2405.17381, section 3.
    """
    check_tensors(q=q, k=k, v=v)
    if not isinstance(slopes, Tensor):
        slopes = torch.tensor(slopes, dtype=torch.promote_types(torch.float32, q.dtype), device=q.device)
    _check(q, k, v, slopes)
    check_positive(block=block)
    out, last = linear_scan(Scan(q, k, v, slopes, state, block), method)
    return (out, last) if return_state else out


def _check(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> None:
    if q.dim() != 4 or k.shape != q.shape or v.dim() != 4 or v.shape[:3] != q.shape[:3]:
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in (("q", q), ("k", k), ("v", v)))
        raise UsageError(f"shapes are {shapes}; they must be (batch, heads, tokens, dim), with q as k.")
    if slopes.shape != q.shape[1:2]:
        raise UsageError(f"slopes are {tuple(slopes.shape)}; they must be ({q.shape[1]},), one for each head of q.")
    if {k.dtype, v.dtype} != {q.dtype}:
        raise UsageError(f"q, k, v are {q.dtype}, {k.dtype}, {v.dtype}; they must have one type.")
    if not (torch.compiler.is_compiling() or transformed()) and not bool((slopes >= 0).all()):
        raise UsageError(f"slopes are {slopes.tolist()}; they must be at least 0, or the state would grow.")


def decay_slopes(num_heads: int, decay: str = "alibi", layer: int = 0, num_layers: int = 1) -> list[float]:
    """Slopes of the heads of one layer; the last layer forgets almost nothing.

    alibi: s_h = 2^(-8 h / H) (1 - l / (L - 1) + 1e-5),   paper: s_h = 8 h / H (1 - l / L),   h = 1 .. H

    Args:
        decay: "alibi" (the released code), "paper", or "none". Where the number of heads is no power of two,
            "alibi" has the slopes of the next lower one, then every second one of the doubled number.
        layer, num_layers: l from 0, and L; of one layer only, the factor is 1.
    """
    check_choice("decay", decay, DECAYS)
    check_positive(num_heads=num_heads, num_layers=num_layers)
    if not 0 <= layer < num_layers:
        raise UsageError(f"layer is {layer} of num_layers={num_layers}; it must be from 0 to {num_layers - 1}.")
    if decay == "none":
        return [0.0] * num_heads
    if decay == "paper":
        return [8 * h / num_heads * (1 - layer / num_layers) for h in range(1, num_heads + 1)]
    factor = 1 - layer / (num_layers - 1) + 1e-5 if num_layers > 1 else 1.0
    whole = 2 ** int(log2(num_heads))
    powers = [-8 * h / whole for h in range(1, whole + 1)]
    powers += [-8 * h / (2 * whole) for h in range(1, 2 * whole + 1, 2)][: num_heads - whole]
    return [2**power * factor for power in powers]


def simple_rms_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """Divide by the root of the mean square along the last axis: x / sqrt(mean x^2 + eps); no parameters.

    Shapes: (..., dim) -> the same.
    """
    wide = bounded(x.to(accumulation_type(x)))
    return (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()).to(x.dtype)


class LinearizedPositions(nn.Module):
    """Relative positions for linear attention (LRPE): a learned frequency for each channel of each head.

    x_t -> [x cos(theta t), x sin(theta t)],   so that   <q_t, k_s> = sum_c q_c k_c cos(theta_c (t - s))

    Args:
        num_heads, dim: of the queries and keys; theta starts at 10000^(-2 j / (heads dim)) for channel j of all heads.

    Shapes: (batch, heads, tokens, dim) -> (batch, heads, tokens, 2 dim).
    """

    def __init__(self, num_heads: int, dim: int) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.empty(num_heads, 1, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: frequencies that fall geometrically over the channels of all heads."""
        channels = torch.arange(self.theta.numel(), dtype=torch.float64).view_as(self.theta)
        with torch.no_grad():
            self.theta.copy_(10000 ** (-2 * channels / self.theta.numel()))

    def forward(self, x: Tensor, position: int = 0) -> Tensor:
        wide = accumulation_type(x)
        angles = self.theta.to(wide) * torch.arange(position, position + x.shape[2], device=x.device).unsqueeze(-1)
        return torch.cat((x * angles.cos(), x * angles.sin()), -1).to(x.dtype)


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return LightningAttention(12, 3, block=4), (torch.randn(2, 9, 12),)


@mechanism(
    "lightning",
    family="scan",
    source="arXiv:2405.17381",
    records="states",
    promises=("causal", "streaming", "any length", "recurrence"),
    sender_axes={"0": 1},
    receiver_axes={"0": 1, "output": 1},
    largest_input=1e10,  # queries, keys and values are multiplied, and must fit float32
    interface="tokens",
    example=_example,
)
class LightningAttention(LinearScan):
    """Mix tokens by gated linear attention with decay.

    q = silu(W_q x),  k = silu(W_k x),  v = W_v x,  u = W_u x;   y = W_o (SRMSNorm(lightning(q, k, v)) * u)

    Args:
        dim: size of the tokens.
        num_heads: independent states; divides `inner`.
        inner: size of queries, keys, values and gates together; `dim` by default.
        decay: "alibi", "paper" or "none", see `decay_slopes`.
        layer, num_layers: place of this layer in its network, which decides how fast it forgets.
        positions: whether queries and keys are turned by position, see `LinearizedPositions`.
        block: tokens between two recorded states.

    Shapes: tokens (batch, tokens, dim) -> (batch, tokens, dim); recorded states (batch, heads, blocks, dim, pose).

    `step(token, state)` takes one token, and `extend(tokens, state, mask)` several; `mask` leaves
    padding out. The state does not grow.

    Deviates: the decay of the released code by default; "paper" is the decay of the text, which forgets much faster.

    Reference: arXiv:2405.17381, section 3; arXiv:2307.14995 for gate, norm and positions. Weights normal of 0.02.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        inner: int | None = None,
        decay: str = "alibi",
        layer: int = 0,
        num_layers: int = 1,
        positions: bool = False,
        block: int = BLOCK,
    ) -> None:
        super().__init__(block)
        inner = dim if inner is None else inner
        check_positive(dim=dim, num_heads=num_heads, inner=inner)
        if inner % num_heads:
            raise UsageError(f"inner is {inner} and num_heads {num_heads}; inner must be a multiple of num_heads.")
        self.num_heads = num_heads
        self._slopes = decay_slopes(num_heads, decay, layer, num_layers)
        self.qkvu = nn.Linear(dim, 4 * inner, bias=False)
        self.positions = LinearizedPositions(num_heads, inner // num_heads) if positions else None
        self.activation = nn.SiLU()
        self.proj = nn.Linear(inner, dim, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: normal weights of 0.02."""
        for layer in (self.qkvu, self.proj):
            nn.init.normal_(layer.weight, std=0.02)

    def slopes(self) -> list[float]:
        return self._slopes

    def read(self, tokens: Tensor, position: int) -> tuple[Tensor, Tensor, Tensor]:
        inner, weight = self.proj.in_features, self.qkvu.weight
        # The activation sees dense rows; heads are views of them.
        if must_be_called(self.qkvu):
            q, k, v, _ = self.qkvu(tokens).split(inner, -1)
        else:
            q, k, v = (F.linear(tokens, weight[part * inner : (part + 1) * inner]) for part in range(3))
        parts = self.activation(q), self.activation(k), v
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in parts)
        return (q, k, v) if self.positions is None else (self.positions(q, position), self.positions(k, position), v)

    def write(self, out: Tensor, tokens: Tensor) -> Tensor:
        inner = 3 * self.proj.in_features
        called = must_be_called(self.qkvu)
        gate = self.qkvu(tokens)[..., inner:] if called else F.linear(tokens, self.qkvu.weight[inner:])
        return self.proj(simple_rms_norm(out.transpose(1, 2).flatten(2)) * gate)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.extend(tokens)[0]

    def extra_repr(self) -> str:
        return f"{self.qkvu.in_features}, num_heads={self.num_heads}, block={self.block}"
