"""Bi-level routing attention: each region of an image reads the few regions whose mean key fits its mean query.

Source: Zhu, Wang, Ke, Zhang, Lau 2023, arXiv:2303.08810, section 3.2.
Cost: 4 N C^2 multiply-adds for the projections of N cells, R^2 C for the routing between R regions, and 2 k N^2 C / R
    for the attention (2 N^2 C where it runs over all cells with a mask).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Coupling, mechanism
from mereo.core.initialise import start_linears
from mereo.core.kernels.attention import attend
from mereo.core.topology import Blocks, Tiles, regions
from mereo.errors import UsageError, check_choice, check_finite, check_heads, check_positive

METHODS = ("auto", "gather", "dense")
PADS = ("masked", "legacy", "zeros")
DENSE_FROM = 0.2
"""Share of the regions that a region reads from which a mask over all cells is faster than gathering."""


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return BiLevelRoutingAttention(8, 2, regions=2, top_k=2), (torch.randn(2, 4, 6, 8),)


@mechanism(
    "bi_level_routing",
    family="sparse attention",
    over="senders",
    values="shared",
    update="linear",
    source="arXiv:2303.08810",
    promises=("normalised",),
    lacks={"couplings only": "a convolution of the values is added"},
    largest_input=1e15,  # queries times keys must fit float32
    interface="maps",
    channels_last=True,
    example=_example,
)
class BiLevelRoutingAttention(nn.Module):
    """Let each cell attend to all cells of the k regions that its own region is routed to.

    I = the k regions s with the largest <mean q of region r, mean k of region s>

    out = W_o [softmax(C^-1/2 q k_I^T) v_I + DW5x5(v)] + b   for each head

    The routing is not differentiated. The 5 x 5 depthwise convolution of the values runs over the whole map.

    Args:
        dim: channels C.
        num_heads: independent sets of couplings; divides `dim`. All heads share the routing.
        regions: along each side of the map.
        top_k: regions that each region reads.
        scale: of the scores; C^-1/2 by default, as the authors' weights need it (not the usual (C / heads)^-1/2).
        soft: multiply the keys and values of each routed region by its share, a softmax over the k scores of routing.
        pad: what happens if regions do not divide the map. "masked": padding takes no part. "legacy": the input is
            padded by zeros, and padded cells take part with the biases as keys and values, as in the authors' first
            code. "zeros": queries, keys and values are padded by zeros, which count in the attention and not in the
            means, as in their second.
        method: "gather" copies the cells of the routed regions; "dense" attends to all cells with a mask; "auto" takes
            "dense" from a share of DENSE_FROM of the regions on. With `soft`, only "gather" runs.

    Shapes: maps (batch, rows, columns, dim) -> the same; routes int64 (batch, regions^2, k), regions row by row.

    Reads as: couplings[b, h, r, s] is the share of cell s in the output of head h at cell r; 0 where the region of s is
    not one that the region of r is routed to.

    Deviates: padding is masked by default; the paper does not say how it treats such sizes.

    Reference: arXiv:2303.08810, section 3.2, eq. 3 to 7.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        regions: int = 7,
        top_k: int = 4,
        scale: float | None = None,
        soft: bool = False,
        pad: str = "masked",
        method: str = "auto",
    ) -> None:
        super().__init__()
        check_positive(regions=regions, top_k=top_k)
        check_choice("pad", pad, PADS)
        check_choice("method", method, METHODS)
        check_heads(dim, num_heads)
        if top_k > regions**2:
            raise UsageError(f"top_k is {top_k} with {regions} x {regions} regions; give at most {regions**2}.")
        if soft and method == "dense":
            raise UsageError("method is 'dense' with soft=True, which only 'gather' runs; use 'auto'.")
        self.num_heads, self.regions, self.top_k, self.soft, self.pad = num_heads, regions, top_k, soft, pad
        check_finite(scale=scale)
        self.scale = dim**-0.5 if scale is None else scale
        self.method = method
        self.qkv = nn.Linear(dim, 3 * dim)
        self.local = nn.Conv2d(dim, dim, 5, padding=2, groups=dim)
        self.proj = nn.Linear(dim, dim)
        self.coupling = Coupling("senders")
        start_linears(self)

    def _dense(self) -> bool:
        """Whether attention runs over all cells with a mask."""
        if self.method != "auto":
            return self.method == "dense"
        return not self.soft and self.top_k >= DENSE_FROM * self.regions**2

    @torch.no_grad()
    def route(self, queries: Tensor, keys: Tensor, real: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The regions that each region reads, and the softmax of their scores, largest first.

        Shapes: queries, keys (batch, regions, cells of a region, dim), real bool (regions, cells of a region), False
            for padding -> routes and shares, both (batch, regions, k).
        """
        if real is None:
            scores = queries.mean(2) @ keys.mean(2).mT
        else:
            counts = real.sum(1, keepdim=True).clamp(min=1)
            queries, keys = ((x * real.unsqueeze(-1)).sum(2) / counts for x in (queries, keys))
            scores = (queries @ keys.mT).masked_fill(~real.any(1), torch.finfo(keys.dtype).min)
        best, routes = scores.topk(self.top_k, -1)
        return routes, (best * self.scale).softmax(-1)

    def forward(self, maps: Tensor, return_routes: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        batch, rows, columns, dim = maps.shape
        if not rows * columns:
            raise UsageError(
                f"BiLevelRoutingAttention: maps has {rows} rows and {columns} columns; give at least one of each."
            )
        side = (-(-rows // self.regions), -(-columns // self.regions))
        blocks = Blocks((rows, columns), side, (self.regions, self.regions))
        missing = (0, 0, 0, side[1] * self.regions - columns, 0, side[0] * self.regions - rows)
        real = None
        if any(missing) and self.pad == "legacy":
            maps = F.pad(maps, missing)
        elif any(missing):
            real = blocks.tiles(device=maps.device).receivers >= 0
        qkv = self.qkv(maps)
        values = qkv[..., 2 * dim :].permute(0, 3, 1, 2)
        cells = blocks.cut(qkv).unflatten(0, (batch, self.regions**2))
        routes, shares = self.route(cells[..., :dim], cells[..., dim : 2 * dim], real)
        real = real if self.pad == "masked" else None
        exchange = self._over_all if self._dense() else self._over_gathered
        tiles = self._tiles(routes, blocks) if self.coupling.watched else None
        mixed = blocks.join(exchange(cells, routes, shares, real, tiles))
        enhanced = mixed + self.local(values).permute(0, 2, 3, 1)[:, :rows, :columns]
        out: Tensor = self.proj(enhanced)
        return (out, routes) if return_routes else out

    def _tiles(self, routes: Tensor, blocks: Blocks) -> Tiles:
        """Which cells each region attends to in each image; all cells, region by region, in the dense form."""
        if not self._dense():
            return regions(blocks, routes)
        cells = blocks.tiles(device=routes.device).receivers.reshape(1, -1)
        return Tiles(cells, cells, *blocks.counts)

    def _over_gathered(
        self, cells: Tensor, routes: Tensor, shares: Tensor, real: Tensor | None, tiles: Tiles | None
    ) -> Tensor:
        """Attention to copies of routed regions: (batch, regions, cells, 3 dim) -> (batch * regions, cells, dim)."""
        batch, regions, count, triple = cells.shape
        first = torch.arange(batch, device=cells.device).view(-1, 1, 1) * regions
        size = 2 * triple // 3
        pairs = cells[..., triple // 3 :].reshape(batch * regions, count * size)
        kv = pairs.index_select(0, (routes + first).flatten()).view(batch * regions, self.top_k, count, size)
        if self.soft:
            kv = kv * shares.view(batch * regions, self.top_k, 1, 1)
        q = cells[..., : triple // 3].flatten(0, 1)
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in (q, *kv.flatten(1, 2).chunk(2, -1)))
        mask = None if real is None else real[routes].flatten(2).flatten(0, 1)[:, None, None, :]
        return attend(q, k, v, self.coupling, mask=mask, scale=self.scale, tiles=tiles).transpose(1, 2).flatten(2)

    def _over_all(
        self, cells: Tensor, routes: Tensor, shares: Tensor, real: Tensor | None, tiles: Tiles | None
    ) -> Tensor:
        """The same by attention to all cells, with a mask of the routed regions."""
        batch, regions, count, _ = cells.shape
        q, k, v = cells.flatten(1, 2).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        mask = None
        if self.top_k < regions or real is not None:
            read = torch.zeros(batch, regions, regions, dtype=torch.bool, device=cells.device).scatter(2, routes, True)
            read = read.unsqueeze(-1) if real is None else read.unsqueeze(-1) & real
            wide = read.expand(-1, -1, -1, count).flatten(2)
            mask = wide.unsqueeze(2).expand(-1, -1, count, -1).flatten(1, 2).unsqueeze(1)
        out = attend(q, k, v, self.coupling, mask=mask, scale=self.scale, tiles=tiles)
        return out.transpose(1, 2).flatten(2).unflatten(1, (regions, count)).flatten(0, 1)

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, regions={self.regions}, top_k={self.top_k}, soft={self.soft}"
