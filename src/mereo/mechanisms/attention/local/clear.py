"""CLEAR: text attends to everything, an image token to all text and to the image tokens in a circle around it.

Source: arXiv:2412.16112; the public code has the scale for long sequences and the keys of blocks.
Cost: 4 D FLOPs a pair; T (T + N) + N T pairs of T text and N image tokens, and at most N times the tokens of a circle
(193 at a radius of 8) among image tokens, so linear in N. Memory grows with N.
"""

import math

import torch
from torch import Tensor, nn

from mereo.core import Circle, Coupling, mechanism
from mereo.core.kernels.attention import attend
from mereo.core.kernels.exchange import Exchange, exchange
from mereo.errors import UsageError, check_finite, check_heads, check_positive, check_probability


def length_scale(keys: int, trained: int, dim: int, factor: float = 1.0) -> float:
    """Scale of the scores for sequences longer than in training.

    sqrt(log(factor * keys) / log(trained) / dim)

    Args:
        keys: length of the sequence.
        trained: number of tokens in training, at least 2.
        dim: of each head.
        factor: multiplies the length; the public code has 10 in the variant with blocks.
    """
    if trained < 2:
        raise UsageError(f"trained is {trained}; it must be the length of the sequences of training, at least 2.")
    check_positive(keys=keys, dim=dim, factor=factor)
    return math.sqrt(max(math.log(factor * keys), 0.0) / math.log(trained) / dim)


def block_sums(x: Tensor, grid: tuple[int, int], weight: Tensor) -> Tensor:
    """Weighted sums over the blocks of an image.

    Shapes: x (batch, heads, rows * columns, dim), weight (f, f) -> (batch, heads, blocks, dim).
    """
    f = len(weight)
    blocks = x.unflatten(2, (grid[0] // f, f, grid[1] // f, f))
    return torch.einsum("bhyixjd,ij->bhyxd", blocks, weight.to(x.dtype)).flatten(2, 3)


def _circle(
    q: Tensor, k: Tensor, v: Tensor, grid: tuple[int, int], radius: float, text: int, down: Tensor | None
) -> Circle:
    """The topology of the attention; UsageError if the arguments do not fit together."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4 or x.shape[:3] != q.shape[:3] or (name != "v" and x.shape[3] != q.shape[3]):
            raise UsageError(
                f"{name} is {tuple(x.shape)} and q {tuple(q.shape)}; both must be (batch, heads, tokens, dim), with the"
                " same batch, heads and tokens, and q and k of one dim."
            )
        if (x.dtype, x.device) != (q.dtype, q.device):
            raise UsageError(f"{name} is {x.dtype} on {x.device} and q {q.dtype} on {q.device}; they must agree.")
    if down is not None and (down.dim() != 2 or down.shape[0] != down.shape[1]):
        raise UsageError(f"down_weight is {tuple(down.shape)}; it must be square, (f, f).")
    circle = Circle(grid, radius, text, None if down is None else len(down))
    if q.shape[2] != text + circle.image:
        raise UsageError(
            f"there are {q.shape[2]} tokens (batch, heads, tokens, d); text_tokens is {text} and the grid {circle.grid}"
            f" has {circle.image}, which are {text + circle.image}."
        )
    return circle


def clear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grid: tuple[int, int],
    radius: float,
    *,
    text_tokens: int = 0,
    down_weight: Tensor | None = None,
    scale: float | None = None,
    coupling: Coupling | None = None,
    text_coupling: Coupling | None = None,
    method: str = "auto",
) -> Tensor:
    """Attend to all text, and from the image only to image tokens nearer than a radius.

    out_q = sum_k softmax_k(scale <q, k>) v_k   over the k that `Circle` allows q

    Args:
        grid: rows and columns of the image.
        radius: image tokens attend to image tokens nearer than this.
        text_tokens: number of tokens before the image tokens.
        down_weight: adds a key and a value for each block of f x f image tokens, their sum with these weights (f, f);
            image tokens attend to all of them. f divides both sides of the image.
        scale: factor of the scores; 1 / sqrt(dim) by default. See `length_scale`.
        coupling, text_coupling: make the couplings of image and text tokens; plain softmax by default.
        method: how image tokens attend: "auto", "compiled" (C++, CPU), "tiles", "gathered", "flex" (FlexAttention; on a
            CPU without gradients), or "dense", the reference.

    Shapes:
        q, k (batch, heads, tokens, dim), v (batch, heads, tokens, pose), after norms and rotation of positions, tokens
        [text | image, row by row]; down_weight (f, f) -> (batch, heads, tokens, pose).

    Raises:
        UsageError: for another number of tokens than the grid and the text have, and blocks that do not divide it.

    Reference: arXiv:2412.16112.
    """
    check_finite(scale=scale)
    circle = _circle(q, k, v, grid, radius, text_tokens, down_weight)
    scale = q.shape[3] ** -0.5 if scale is None else scale
    coupling = Coupling("senders") if coupling is None else coupling
    keys, values = k, v
    if down_weight is not None:
        keys, values = (torch.cat((x, block_sums(x[:, :, text_tokens:], circle.grid, down_weight)), 2) for x in (k, v))
    image, _ = exchange(Exchange(q[:, :, text_tokens:], keys, values, circle.of_image, coupling, scale), method)
    if not text_tokens:
        return image
    text_coupling = Coupling("senders") if text_coupling is None else text_coupling
    text = attend(q[:, :, :text_tokens], k, v, text_coupling, scale=scale)
    return torch.cat((text, image), 2)


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return ClearAttention(12, 3, grid=(3, 4), radius=2, text_tokens=2), (torch.randn(2, 14, 12),)


@mechanism(
    "clear",
    family="local attention",
    over="senders",
    steps=2,
    values="shared",
    update="linear",
    source="arXiv:2412.16112",
    promises=("normalised",),
    sender_axes={"0": 1},
    receiver_axes={"0": 1, "output": 1},
    largest_input=1e15,  # queries times keys must fit float32
    interface="tokens",
    example=_example,
)
class ClearAttention(nn.Module):
    """Replace each token by a weighted sum of the values of all text and of a circle of image tokens.

    q, k, v = W x + b   for each head;   out = W_o [CLEAR(q, k, v), ...] + b_o

    Args:
        dim: size of the tokens.
        num_heads: independent sets of couplings; divides `dim`.
        grid: rows and columns of the image.
        radius: image tokens attend to image tokens nearer than this.
        text_tokens: number of tokens before the image tokens, such as text or a class token.
        down_factor: side of blocks of cells; a token also attends to one key of each block, a learned weighted mean.
        trained_tokens: length of the sequences of training, for a scale that grows with the length; None for none.
        length_factor: see `length_scale`.
        qkv_bias: biases of the projections to queries, keys and values.
        attn_drop: dropout of the couplings.
        proj_drop: dropout of the output.

    Shapes: tokens (batch, text + rows * columns, dim) -> the same.

    Reads as: `coupling`[b, h, r, s] is the share of token s in the output of head h for image token r, senders numbered
        [text | image | blocks]; 0 outside the circle; a sparse tensor where the map is large. `text_coupling` is the
        same for text tokens, senders [text | image].

    Raises:
        UsageError: for blocks that do not divide the grid, and another number of tokens.

    Deviates: Xavier uniform and zero biases; the paper takes all weights from a trained network (see `linearise`).

    Reference: arXiv:2412.16112.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        grid: tuple[int, int],
        radius: float = 8,
        text_tokens: int = 0,
        down_factor: int | None = None,
        trained_tokens: int | None = None,
        length_factor: float = 1.0,
        qkv_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        check_probability(attn_drop=attn_drop, proj_drop=proj_drop)
        self.topology = Circle((grid[0], grid[1]), radius, text_tokens, down_factor)
        self.num_heads = num_heads
        tokens = text_tokens + self.topology.image
        self.scale: float | None = None
        if trained_tokens is not None:
            self.scale = length_scale(tokens, trained_tokens, dim // num_heads, length_factor)
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.down_weight = None if down_factor is None else nn.Parameter(mean_weight(down_factor))
        self.coupling = Coupling("senders", dropout=attn_drop)
        self.text_coupling = Coupling("senders", dropout=attn_drop) if text_tokens else None
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: Xavier uniform weights for each projection, biases of zero, blocks by their mean."""
        for weight in (*self.qkv.weight.chunk(3), self.proj.weight):
            nn.init.xavier_uniform_(weight)
        for linear in (self.qkv, self.proj):
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
        if self.down_weight is not None:
            nn.init.constant_(self.down_weight, 1 / self.down_weight.numel())

    def forward(self, tokens: Tensor) -> Tensor:
        q, k, v = self.qkv(tokens).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        out = clear_attention(
            q, k, v, self.topology.grid, self.topology.radius, text_tokens=self.topology.text,
            down_weight=self.down_weight, scale=self.scale, coupling=self.coupling, text_coupling=self.text_coupling,
        )  # fmt: skip
        return self.proj_drop(self.proj(out.transpose(1, 2).flatten(2)))

    def extra_repr(self) -> str:
        return f"{self.qkv.in_features}, num_heads={self.num_heads}, {self.topology}"


def mean_weight(factor: int) -> Tensor:
    """Weights (factor, factor) with which the sum of a block is its mean."""
    return torch.full((factor, factor), 1 / factor**2)
