"""EViT: a vision transformer drops the patch tokens that its class token attends to least, or fuses them into one.

`mereo.evit` puts it into a network.

Source: arXiv:2202.07800, section 3.
Cost: as the host on fewer tokens; with a keep rate of 0.7 in three of twelve layers, 3.03 instead of 4.61 billion
multiplications an image for DeiT-S. The class token's row of attention adds N D multiplications a reducing layer.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Coupling, Signal, mechanism
from mereo.core.kernels.attention import attend
from mereo.core.modes import hooked
from mereo.core.squash import accumulation_type
from mereo.mechanisms.attention.hosted import (
    HostedAttention,
    attention_drop,
    merge_heads,
    optional,
    refuse_masks,
    split_heads,
)

Exchanged = tuple[Tensor, Tensor, Tensor]


def keep(tokens: Tensor, kept: Tensor, attention: Tensor, fuse: bool = True, normalize: bool = False) -> Tensor:
    """The kept tokens in the given order and, behind them, one token for all others: f = sum of a_i y_i over them.

    Args:
        fuse: whether the others are kept as their sum.
        normalize: divide that sum by the sum of its weights.

    Shapes: tokens (batch, tokens, dim), kept int64 (batch, count), attention (batch, tokens)
        -> (batch, count + 1, dim), or (batch, count, dim) without the sum.
    """
    stay = tokens.gather(1, kept.unsqueeze(-1).expand(-1, -1, tokens.shape[-1]))
    if not fuse:
        return stay
    weights = attention.scatter(1, kept, 0.0)
    if normalize:
        weights = weights / weights.sum(1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    return torch.cat((stay, weights.to(tokens.dtype).unsqueeze(1) @ tokens), 1)


def order_of(attention: Tensor) -> Tensor:
    """Tokens by falling attention, equal ones by their number: (batch, tokens) -> int64 (batch, tokens)."""
    if torch.compiler.is_exporting():  # ONNX has no stable sort; its top-k puts equal ones in order
        return attention.topk(attention.shape[1], dim=1).indices
    return attention.sort(dim=1, descending=True, stable=True).indices


_SOFTMAX = Coupling("senders")


def exchange(attn: nn.Module, x: Tensor) -> Exchanged:
    """What the attention of a block returns for its tokens, with the queries and keys of its heads.

    Attention that was replaced, or that has hooks, is called as it is; queries and keys are then made twice.

    Shapes: (batch, tokens, dim) -> (batch, tokens, dim), (batch, heads, tokens, d), (batch, heads, tokens, d).
    """
    q, k, v = split_heads(attn, x)
    if hooked(attn) or isinstance(attn, HostedAttention):
        return attn(x), q, k
    own = getattr(attn, "coupling", None)
    if isinstance(own, Coupling):
        out = attend(q, k, v, own)
    elif attn.training and attention_drop(attn):
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=attention_drop(attn))
    else:
        out = attend(q, k, v, _SOFTMAX)  # unlike PyTorch's operation, in forward mode too
    return merge_heads(attn, x, out.transpose(1, 2).flatten(2)), q, k


class _Attention(nn.Module):
    """Self-attention as timm writes it."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return exchange(self, x)[0]


class _Block(nn.Module):
    """A transformer block as a reducing block takes it over."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = _Attention(dim, num_heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return ReducingBlock(_Block(8, 2), 1, 0.7), (torch.randn(2, 13, 8),)


@mechanism(
    "evit",
    family="token selection",
    source="arXiv:2202.07800",
    records="kept tokens",
    lacks={"half precision": "rounding can change which tokens stay, and with them the output"},
    largest_input=1e15,  # the layer norms of the host
    example=_example,
)
class ReducingBlock(nn.Module):
    """A block of a transformer that drops patch tokens between its attention and its feed-forward layer.

    y = x + attention(x),   a_i = mean over heads of softmax(q_class k^T)_i,   out = z + feed forward(z),
    z = [class, the ceil(r N) patches with the largest a in falling order, sum of a_i y_i over the others]

    Args:
        block: with `norm1`, `attn`, `norm2` and `mlp`, and, if it has them, `ls1`, `ls2`, `drop_path1`, `drop_path2`;
            its modules keep their names.
        prefix: number of tokens before the patches, the first of which is the class token; they always stay.
        keep_rate: share of patches that stay, r.
        tokens: number of patches that stay; overrides the rate.
        fuse, normalize: see `keep`.

    Shapes: (batch, tokens, dim) -> (batch, fewer tokens, dim); kept tokens int64 (batch, count), numbers among the
        patches of this block's input. `kept_patches` gives their places on the image.

    Deviates: attention is read before dropout, and equal tokens are kept by their number.

    Reference: arXiv:2202.07800, eq. 4 to 6.
    """

    norm1: nn.Module
    attn: nn.Module
    norm2: nn.Module
    mlp: nn.Module

    def __init__(
        self,
        block: nn.Module,
        prefix: int,
        keep_rate: float,
        *,
        tokens: int | None = None,
        fuse: bool = True,
        normalize: bool = False,
    ) -> None:
        super().__init__()
        for name, child in block.named_children():
            self.add_module(name, child)
        self.training = block.training
        self.prefix, self.keep_rate, self.tokens = prefix, keep_rate, tokens
        self.fuse, self.normalize = fuse, normalize
        self.kept = Signal("kept tokens")

    def count(self, patches: int) -> int:
        """The number of patches kept, given the number of patches."""
        if self.tokens is not None:
            return min(self.tokens, patches)
        return math.ceil(round(self.keep_rate * patches, 6))  # 0.1 * 30 is a little above 3

    def _branch(self, which: int, out: Tensor) -> Tensor:
        return optional(self, f"drop_path{which}")(optional(self, f"ls{which}")(out))

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        refuse_masks(self, attn_mask, is_causal)
        count = self.count(x.shape[1] - self.prefix)
        if count == x.shape[1] - self.prefix:
            x = x + self._branch(1, self.attn(self.norm1(x)))
        else:
            attended, q, k = exchange(self.attn, self.norm1(x))
            y = x + self._branch(1, attended)
            wide = accumulation_type(q)
            scores = q[:, :, :1].to(wide) * q.shape[-1] ** -0.5 @ k.to(wide).transpose(-1, -2)
            attention = scores.softmax(-1).mean(1)[:, 0, self.prefix :]
            patches = y[:, self.prefix :]
            kept = self.kept(order_of(attention)[:, :count])
            x = torch.cat((y[:, : self.prefix], keep(patches, kept, attention, self.fuse, self.normalize)), 1)
        return x + self._branch(2, self.mlp(self.norm2(x)))

    def extra_repr(self) -> str:
        return f"keep_rate={self.keep_rate}" if self.tokens is None else f"tokens={self.tokens}"


def kept_patches(kept: Sequence[Tensor], fused: bool = True) -> list[Tensor]:
    """Which patches of the image are left after each reducing layer, by falling attention; -1 is a fused token.

    Args:
        kept: what `record` shows, layer by layer.
        fused: whether layers fuse the tokens that they drop.

    Shapes: int64 (batch, count) each -> the same.
    """
    places: list[Tensor] = []
    for numbers in kept:
        mine = numbers
        if places:
            before = F.pad(places[-1], (0, 1), value=-1) if fused else places[-1]
            mine = before.gather(1, numbers)
        places.append(mine)
    return places
