"""Attention of TransNeXt: each cell attends to its 3 x 3 window and to a pooled map of the whole image, by cosine.

Source: Shi 2024, arXiv:2311.17132, section 3; gates of heads as in Jin et al. 2025, arXiv:2410.11842.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Coupling
from mereo.core.squash import accumulation_type
from mereo.core.topology import KeyLists
from mereo.errors import check_heads
from mereo.mechanisms.attention.sparse.head_router import HeadRouter

Size = tuple[int, int]


def unit(x: Tensor) -> Tensor:
    """x / |x| over the last axis, 0 where x is 0."""
    return F.normalize(x.to(accumulation_type(x)), dim=-1).to(x.dtype)


class ContinuousPositions(nn.Module):
    """A bias for each cell and each cell of a pooled map, which a small network makes of their distance.

    b = B relu(A l + a) + c,   l = sign(o) log2(1 + |o|) / 3,   o = 8 (cell - pooled cell) / (side - 1), by axis

    Args:
        heads: of the attention.
        base: rows and columns of the map that distances are divided by.

    Shapes: rows and columns of the map and of the pooled map -> (heads, cells, pooled cells).

    Reference: arXiv:2311.17132, eq. 7, and arXiv:2111.09883, section 3.3.
    """

    def __init__(self, heads: int, base: Size, hidden: int = 512) -> None:
        super().__init__()
        self.base, self.first, self.second = base, nn.Linear(2, hidden), nn.Linear(hidden, heads)

    def forward(self, size: Size, pooled: Size) -> Tensor:
        like, axes, numbers = self.first.weight, [], []
        for side, count, base in zip(size, pooled, self.base, strict=True):
            # Distances along an axis take few values, and the network runs once for each pair of them.
            step = side // count
            most = step * (count - 1)
            offsets = torch.arange(side + most, device=like.device, dtype=torch.float32) - most - (step - 1) / 2
            offsets = offsets * (8 / max(base - 1, 1))
            axes.append(offsets.sign() * offsets.abs().log1p() / math.log(8))
            cells, places = (torch.arange(n, device=like.device) for n in (side, count))
            numbers.append(cells.unsqueeze(1) - step * places + most)
        down, across = axes
        pairs = torch.stack((down[:, None].expand(-1, len(across)), across[None].expand(len(down), -1)), -1)
        table = self.second(self.first(pairs.to(like.dtype)).relu())
        bias = table[numbers[0]][:, :, numbers[1]]  # rows, pooled rows, columns, pooled columns, heads
        return bias.permute(4, 0, 2, 1, 3).flatten(3, 4).flatten(1, 2)


class PixelAttention(nn.Module):
    """Every cell attends to all cells by the cosine of queries and keys.

    couplings = softmax(t log(N) (q / |q| + e) (k / |k|)^T + b),   t = log(1 + exp(temperature)), e a learned query

    Args:
        dim, num_heads: channels, and heads, which divide them.
        size: rows and columns of the map, for positions.
        router: gates of the heads; none by default.

    Shapes: cells (batch, rows, columns, dim) -> the same.

    Reference: arXiv:2311.17132, section 3.2.
    """

    def __init__(self, dim: int, num_heads: int, size: Size, router: HeadRouter | None = None) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        self.num_heads = num_heads
        self.temperature = nn.Parameter(torch.full((num_heads, 1, 1), math.log(math.expm1(1 / 0.24))))
        self.query_embedding = nn.Parameter(torch.zeros(num_heads, 1, dim // num_heads))
        self.positions = ContinuousPositions(num_heads, size)
        self.coupling = Coupling("senders")
        self.router, self.proj = router, nn.Linear(dim, dim)
        nn.init.trunc_normal_(self.query_embedding, std=0.02)
        self.make_projections(dim)

    def make_projections(self, dim: int) -> None:
        """The layers of queries, keys and values."""
        self.qkv = nn.Linear(dim, 3 * dim)

    def heads(self, x: Tensor) -> Tensor:
        """(batch, tokens, dim) -> (batch, heads, tokens, dim / heads)."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def scaled(self, q: Tensor, keys: Tensor) -> Tensor:
        """Unit queries as they are multiplied with keys, given the number of keys of each query."""
        return (q + self.query_embedding) * (F.softplus(self.temperature) * keys.log()).to(q.dtype)

    def mix(self, tokens: Tensor, size: Size) -> Tensor:
        """The heads of tokens: (batch, cells, dim) -> (batch, heads, cells, dim / heads)."""
        q, k, v = (self.heads(x) for x in self.qkv(tokens).chunk(3, -1))
        q = self.scaled(unit(q), tokens.new_full((), size[0] * size[1], dtype=torch.float32))
        return self.coupling(q @ unit(k).mT + self.positions(size, size).to(q.dtype)) @ v

    def forward(self, cells: Tensor) -> Tensor:
        tokens = cells.flatten(1, 2)
        out = self.mix(tokens, (cells.shape[1], cells.shape[2])).transpose(1, 2)
        if self.router is not None:
            out = out * self.router(tokens).unsqueeze(-1)
        merged: Tensor = self.proj(out.flatten(2))
        return merged.view(cells.shape)


class AggregatedAttention(PixelAttention):
    """Every cell attends to its 3 x 3 window and to the cells of a pooled map, in one softmax.

    scores = t log(n) (q / |q| + e) (k / |k|)^T + b,   n the number of keys of the cell

    out = (couplings of the window + q / |q| T + c) v_window + couplings of the pooled map v_pooled

    Args:
        dim, num_heads: channels, and heads, which divide them.
        size: rows and columns of the map, for positions.
        pool: side of the square of cells that the mean is taken of; divides both sides of maps.
        router: gates of the heads; none by default.

    Shapes: cells (batch, rows, columns, dim) -> the same; couplings (batch, heads, cells, cells + pooled cells).

    Reference: arXiv:2311.17132, section 3.3.
    """

    def __init__(self, dim: int, num_heads: int, size: Size, pool: int, router: HeadRouter | None = None) -> None:
        super().__init__(dim, num_heads, size, router)
        self.pool = pool
        self.reduce, self.norm = nn.Conv2d(dim, dim, 1), nn.LayerNorm(dim)
        self.local_bias = nn.Parameter(torch.zeros(num_heads, 9))
        self.local_tokens = nn.Parameter(torch.zeros(num_heads, dim // num_heads, 9))
        self.local_shift = nn.Parameter(torch.zeros(num_heads, 1, 9))
        nn.init.trunc_normal_(self.local_bias, std=0.0004)
        nn.init.trunc_normal_(self.local_tokens, std=0.02)

    def make_projections(self, dim: int) -> None:
        self.query, self.key_value = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)

    def windows(self, x: Tensor, size: Size) -> Tensor:
        """The window of each cell: (batch, heads, cells, d) -> (batch, heads, cells, d, 9)."""
        maps = x.transpose(2, 3).flatten(1, 2).unflatten(2, size)
        return F.unfold(maps, 3, padding=1).unflatten(1, (*x.shape[1:4:2], 9)).permute(0, 1, 4, 2, 3)

    def mix(self, tokens: Tensor, size: Size) -> Tensor:
        maps = tokens.transpose(1, 2).unflatten(2, size)
        pooled = F.avg_pool2d(F.gelu(self.reduce(maps)), self.pool)
        small = (pooled.shape[2], pooled.shape[3])
        numbers = torch.arange(1.0, tokens.shape[1] + 1, device=tokens.device).view(1, 1, *size)
        numbers = F.unfold(numbers, 3, padding=1)[0].T.long() - 1  # (cells, 9), -1 beyond the border
        q = unit(self.heads(self.query(tokens)))
        scaled = self.scaled(q, (numbers >= 0).sum(1, keepdim=True) + float(small[0] * small[1]))
        k, v = (self.heads(x) for x in self.key_value(tokens).chunk(2, -1))
        far_k, far_v = (self.heads(x) for x in self.key_value(self.norm(pooled.flatten(2).mT)).chunk(2, -1))
        near = (scaled.unsqueeze(-2) @ self.windows(unit(k), size)).squeeze(-2) + self.local_bias.unsqueeze(1)
        far = scaled @ unit(far_k).mT + self.positions(size, small).to(q.dtype)
        more = torch.arange(far.shape[-1], device=tokens.device).expand(len(numbers), -1) + tokens.shape[1]
        lists = torch.cat((numbers, more), 1)
        tiles = KeyLists(lists[None, None], tokens.shape[1] + far.shape[-1]) if self.coupling.watched else None
        couplings = self.coupling(torch.cat((near, far), -1), (lists >= 0).expand(1, 1, -1, -1), tiles=tiles)
        inner = couplings[..., :9] + q @ self.local_tokens + self.local_shift
        local = (self.windows(v, size) @ inner.unsqueeze(-1)).squeeze(-1)
        return local + couplings[..., 9:] @ far_v
