"""EViT: a vision transformer drops the patch tokens that its class token attends to least, or fuses them into one.

Source: arXiv:2202.07800, section 3.
Cost: that of the host on fewer tokens; with a keep rate of 0.7 in three of twelve layers, 3.03 instead of 4.61 billion
multiplications an image for DeiT-S. The class token's row of attention adds N D multiplications a reducing layer.
"""

import math
from collections.abc import Sequence
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Coupling, Signal, mechanism
from mereo.core.kernels.attention import attend
from mereo.core.modes import hooked, modes_kept
from mereo.core.squash import accumulation_type
from mereo.core.surgery import restate_surgery, surgery
from mereo.errors import UsageError, check_fraction
from mereo.mechanisms.attention.dense import MultiHeadAttention
from mereo.mechanisms.attention.hosted import HostedAttention, attention_drop, merge_heads, optional, split_heads

Exchanged = tuple[Tensor, Tensor, Tensor]


def keep(tokens: Tensor, kept: Tensor, attention: Tensor, fuse: bool = True, normalize: bool = False) -> Tensor:
    """The kept tokens in the given order and, behind them, the others as one: f = sum of a_i y_i over those that left.

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


def _exchange(attn: nn.Module, x: Tensor) -> Exchanged:
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
        patches of this block's input.
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

    def forward(self, x: Tensor) -> Tensor:
        count = self.count(x.shape[1] - self.prefix)
        if count == x.shape[1] - self.prefix:
            x = x + self._branch(1, self.attn(self.norm1(x)))
        else:
            attended, q, k = _exchange(self.attn, self.norm1(x))
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


def _blocks_of(model: nn.Module) -> nn.ModuleList | nn.Sequential:
    """The transformer's blocks: the longest list of modules that all have attention and a feed-forward layer."""
    parts = ("norm1", "attn", "norm2", "mlp")
    lists = [
        m
        for m in model.modules()
        if isinstance(m, nn.ModuleList | nn.Sequential) and len(m) and all(hasattr(b, p) for b in m for p in parts)
    ]
    if not lists:
        raise UsageError(
            f"model is a {type(model).__name__} without blocks of {', '.join(parts)}; give a vision transformer, of"
            " mereo or timm."
        )
    return max(lists, key=len)


def _prefix_of(model: nn.Module) -> int:
    """Number of tokens before the patches; UsageError without a class token."""
    prefix = getattr(model, "num_prefix_tokens", None)
    prefix = int(getattr(model, "cls_token", None) is not None) if prefix is None else int(prefix)
    if prefix < 1 or (hasattr(model, "cls_token") and model.cls_token is None):
        raise UsageError(
            f"model is a {type(model).__name__} without a class token, whose attention decides which patches stay;"
            " give a transformer that has one."
        )
    return prefix


@torch.no_grad()
def _check_block(block: nn.Module, prefix: int, number: int) -> None:
    """UsageError unless the block computes what `ReducingBlock` takes it to, tried on random tokens."""
    like = next(block.parameters())
    if like.is_meta:
        return
    generator = torch.Generator().manual_seed(0)
    try:
        with modes_kept(block):
            block.eval()
            read = block.attn.query if isinstance(block.attn, MultiHeadAttention) else block.attn.qkv  # type: ignore[union-attr]
            x = torch.randn(2, prefix + 5, read.in_features, generator=generator).to(like)  # type: ignore[union-attr,arg-type]
            ours = ReducingBlock(block, prefix, 1.0).eval()
            agrees = torch.equal(ours(x), block(x))
            out, q, k = _exchange(block.attn, x)  # type: ignore[arg-type]
            expected = block.attn(x)  # type: ignore[operator]
            agrees = agrees and torch.allclose(out, expected, rtol=1e-2, atol=1e-2 * float(expected.abs().max()))
            agrees = agrees and q.shape == k.shape
    except (AttributeError, RuntimeError, TypeError, ValueError):
        agrees = False
    if not agrees:
        raise UsageError(
            f"block {number} is a {type(block).__name__} that computes something else than x + attn(norm1(x)) and then"
            " x + mlp(norm2(x)) with attention over all tokens; EViT needs such blocks."
        )


def _per_layer(name: str, given: float | Sequence[float], layers: Sequence[int]) -> list[float]:
    values = list(given) if isinstance(given, Sequence) else [given] * len(layers)
    if len(values) != len(layers):
        raise UsageError(f"{name} is {given!r} for {len(layers)} layers; give one value, or one for each layer.")
    return values


def _chosen(layers: Sequence[int] | None, depth: int) -> list[int]:
    """The reducing layers: by default those at a quarter, a half and three quarters."""
    chosen = sorted({depth // 4, depth // 2, 3 * depth // 4}) if layers is None else list(layers)
    if not chosen or len(set(chosen)) < len(chosen) or not all(0 <= layer < depth for layer in chosen):
        raise UsageError(
            f"layers is {layers!r}; give different numbers from 0 to {depth - 1}, the blocks of the model."
        )
    return chosen


def reduce_blocks(
    blocks: nn.ModuleList | nn.Sequential,
    prefix: int,
    keep_rate: float | Sequence[float],
    layers: Sequence[int] | None = None,
    *,
    tokens: int | Sequence[int] | None = None,
    fuse: bool = True,
    normalize: bool = False,
) -> None:
    """Let some blocks of a transformer drop patches, in place; see `evit` for the arguments."""
    chosen = _chosen(layers, len(blocks))
    rates = _per_layer("keep_rate", keep_rate, chosen)
    numbers = [None] * len(chosen) if tokens is None else _per_layer("tokens", tokens, chosen)
    for rate in rates:
        check_fraction(keep_rate=rate)
    for number in numbers:
        if number is not None and number < 1:
            raise UsageError(f"tokens is {tokens!r}; at least 1 patch must stay.")
    for layer, rate, number in zip(chosen, rates, numbers, strict=True):
        count = None if number is None else int(number)
        blocks[layer] = ReducingBlock(blocks[layer], prefix, rate, tokens=count, fuse=fuse, normalize=normalize)


class _Attention(nn.Module):
    """Self-attention as timm writes it."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return _exchange(self, x)[0]


class _Block(nn.Module):
    """A transformer block as `evit` expects it."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = _Attention(dim, num_heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class _Transformer(nn.Sequential):
    """Blocks whose first token is the class token."""

    num_prefix_tokens = 1


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return _Transformer(*(_Block(8, 2) for _ in range(2))), (torch.randn(2, 13, 8),)


@mechanism(
    "evit",
    family="token selection",
    source="arXiv:2202.07800",
    records="kept tokens",
    steps=2,
    lacks={"half precision": "rounding can change which tokens stay, and with them the output"},
    largest_input=1e15,  # the layer norms of the host
    example=_example,
)
@surgery
def evit(
    model: nn.Module,
    keep_rate: float | Sequence[float] = 0.7,
    *,
    layers: Sequence[int] | None = None,
    tokens: int | Sequence[int] | None = None,
    fuse: bool = True,
    normalize: bool = False,
) -> nn.Module:
    """A copy of a vision transformer that drops the patch tokens its class token attends to least, in a few layers.

    z = [class, the ceil(r N) patches with the largest class attention a, sum of a_i y_i over the others]

    Args:
        model: of mereo or timm, with a class token and blocks of `norm1`, `attn`, `norm2`, `mlp`. It is not changed;
            the copy has the same weights under the same names.
        keep_rate: share of patches that stay in each reducing layer, r; 1 leaves a layer as it is, bit for bit. One
            number, or one for each layer.
        layers: numbers of the reducing blocks; by default those at a quarter, a half and three quarters.
        tokens: numbers of patches that stay, instead of rates.
        fuse: keep the patches that leave as one token, the last.
        normalize: divide that token by the sum of its weights; the paper does not.

    Shapes: those of `model`, with fewer tokens in its features. Recorded, by layer: int64 (batch, count), which patches
        of the layer's input stayed; `kept_patches` gives their places on the image.

    Raises:
        UsageError: for a model without a class token, and blocks that compute something else.

    Deviates: attention is read before dropout, and equal tokens are kept by their number.

    Reference: arXiv:2202.07800, eq. 4 to 6.
    """
    prefix, copy = _prefix_of(model), deepcopy(model)
    blocks = _blocks_of(copy)
    for layer in _chosen(layers, len(blocks)):
        _check_block(blocks[layer], prefix, layer)
    reduce_blocks(blocks, prefix, keep_rate, layers, tokens=tokens, fuse=fuse, normalize=normalize)
    return copy


def set_keep_rate(model: nn.Module, keep_rate: float) -> None:
    """Give all reducing layers of a model another rate, as a schedule does in training."""
    check_fraction(keep_rate=keep_rate)
    for module in model.modules():
        if isinstance(module, ReducingBlock):
            module.keep_rate = keep_rate
    arguments = getattr(model, "config", {}).get("args", {})
    if "keep_rates" in arguments:
        arguments["keep_rates"] = (keep_rate,) * len(arguments["keep_rates"])
    restate_surgery(model, "evit", keep_rate=keep_rate)


def scheduled_keep_rate(epoch: float, keep_rate: float = 0.7, start: float = 10, length: float = 100) -> float:
    """The rate of a training from scratch: 1 up to epoch `start`, then falling along a cosine over `length` epochs.

    r(t) = r + (1 - r) (cos(pi t / length) + 1) / 2   for t epochs after the start
    """
    if epoch < start:
        return 1.0
    t = min((epoch - start) / length, 1.0)
    return keep_rate + (1 - keep_rate) * (math.cos(math.pi * t) + 1) / 2


def kept_patches(kept: Sequence[Tensor], fused: bool = True) -> list[Tensor]:
    """Which patches of the image are left after each reducing layer, by falling attention; -1 is a fused token.

    Args:
        kept: what `record` shows, layer by layer.
        fused: whether layers fuse what they drop.

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
