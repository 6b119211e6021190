"""Neighbourhood attention by tiles: a tile of queries attends to the box that holds all of its windows, with a mask.

Cost: 2 N W (D + E) FLOPs a head for N tokens with windows of W, times the keys of a box over the window: about 4 for
tiles of 8 x 8 and windows of 7 x 7. Live at once: copies of keys and values, so many for each tile.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.core.kernels.again import twice_differentiable
from mereo.core.kernels.kept import kept
from mereo.core.kernels.transforms import transformed
from mereo.core.squash import accumulation_type
from mereo.core.topology import Neighborhood
from mereo.core.topology.neighborhood import Line

TILE = {1: 32, 2: 8, 3: 4}
"""Queries of a tile along each axis, by the number of axes."""


@dataclass(frozen=True, eq=False)
class Plan:
    """How the tokens of a grid, or the positions of one axis, are cut into tiles.

    Attributes:
        queries: int64 (tiles, queries), the token of each; beyond a border another one is repeated.
        real: bool (tiles, queries), False beyond a border.
        keys: int64 (tiles, keys), the token of each.
        sees: bool (tiles, queries, keys).
        offset: int64 (tiles, queries, keys), the entry of a table of relative positions, (2 w - 1) along each axis.
    """

    queries: Tensor
    real: Tensor
    keys: Tensor
    sees: Tensor
    offset: Tensor


def _cut(line: Line, tile: int, device: torch.device) -> Plan:
    """Tiles along one axis, group by group of the dilation."""
    counts = [line.group(g) for g in range(line.dilation)]
    at = [(g, n, first) for g, n in enumerate(counts) for first in range(0, n, tile)]
    group, count, begin = (torch.tensor(x, device=device).unsqueeze(1) for x in zip(*at, strict=True))
    places = begin + torch.arange(tile, device=device)
    real, places = places < count, torch.minimum(places, count - 1)
    first, end = line.window_of(places, count)
    keys = first[:, :1] + torch.arange(min(line.together(tile), counts[0]), device=device)
    sees = (keys.unsqueeze(1) >= first.unsqueeze(2)) & (keys.unsqueeze(1) < end.unsqueeze(2))
    offset = (keys.unsqueeze(1) - places.unsqueeze(2) + line.window - 1).clamp(0, 2 * line.window - 2)
    keys = torch.minimum(keys, count - 1)
    return Plan(group + line.dilation * places, real, group + line.dilation * keys, sees, offset)


@kept(32)
def plan_of(topology: Neighborhood, device: torch.device) -> Plan:
    """Tiles of the whole grid: all products of those along its axes."""
    tile = TILE[len(topology.grid)]
    one = torch.zeros(1, 1, dtype=torch.long, device=device)
    yes = torch.ones(1, 1, dtype=torch.bool, device=device)
    plan = Plan(one, yes, one, yes.unsqueeze(0), one.unsqueeze(0))
    for line in topology.lines:
        cut = _cut(line, min(tile, line.group(0)), device)

        def both(mine: Tensor, new: Tensor, factor: int = 0) -> Tensor:
            """Every entry of the tiles so far with every one of the new axis: numbers row by row, or both of two."""
            for axis in range(mine.dim()):
                mine, new = mine.unsqueeze(2 * axis + 1), new.unsqueeze(2 * axis)
            joined = mine * factor + new if factor else mine & new
            for axis in range(joined.dim() // 2):
                joined = joined.flatten(axis, axis + 1)
            return joined

        plan = Plan(
            both(plan.queries, cut.queries, line.length),
            both(plan.real, cut.real),
            both(plan.keys, cut.keys, line.length),
            both(plan.sees, cut.sees),
            both(plan.offset, cut.offset, 2 * line.window - 1),
        )
    return plan


def places_of(plan: Plan, tokens: int) -> Tensor:
    """Where each token stands among the queries of all tiles: int64 (tokens,)."""
    queries = plan.queries.flatten().masked_fill(~plan.real.flatten(), tokens)
    numbers = torch.arange(len(queries), device=queries.device)
    return numbers.new_zeros(tokens + 1).scatter_(0, queries, numbers)[:-1]


def tiled(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    topology: Neighborhood,
    scale: float,
    *,
    bias: Tensor | None = None,
    extra: tuple[Tensor, Tensor] | None = None,
    dropout: float = 0.0,
    with_lse: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The output of each query, and log sum exp of its scores where it is wanted.

    Args:
        bias: added to the scores by relative position, (heads, product over axes of 2 window - 1).
        extra: keys and values (batch, more, heads, dim) that every query attends to as well.

    Shapes: q, k (batch, tokens, heads, dim), v (batch, tokens, heads, pose) -> (batch, tokens, heads, pose),
        (batch, tokens, heads).
    """
    plan, batch = plan_of(topology, q.device), q.shape[0]
    tiles = len(plan.queries)

    def pick(x: Tensor, which: Tensor, more: Tensor | None = None) -> Tensor:
        picked = x.index_select(1, which.flatten()).unflatten(1, which.shape)
        if more is not None:
            picked = torch.cat((picked, more.unsqueeze(1).expand(-1, tiles, -1, -1, -1)), 2)
        return picked.flatten(0, 1).transpose(1, 2)

    Q = pick(q, plan.queries)
    K, V = (pick(x, plan.keys, None if extra is None else extra[i]) for i, x in enumerate((k, v)))
    sees, added = plan.sees.unsqueeze(1), None
    if bias is not None:
        added = bias[:, plan.offset].transpose(0, 1).to(q.dtype)
    if extra is not None:
        more = extra[0].shape[1]
        sees = F.pad(sees, (0, more), value=True)
        added = None if added is None else F.pad(added, (0, more))

    def plain(Q: Tensor, K: Tensor, V: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:
        wide = accumulation_type(Q)
        # In half precision these products would overflow.
        scores = (Q.to(wide) @ K.to(wide).transpose(-1, -2) * scale).unflatten(0, (batch, tiles))
        scores = scores if added is None else scores + added
        scores = scores.masked_fill(~sees, -torch.inf).flatten(0, 1)
        return F.dropout(scores.softmax(-1), dropout).to(V.dtype) @ V, scores

    lse = None
    if with_lse or transformed() or torch.onnx.is_in_onnx_export():
        out, scores = plain(Q, K, V, added)
        lse = scores.logsumexp(-1) if with_lse else None
    else:
        mask = sees if added is None else added.masked_fill(~sees, torch.finfo(added.dtype).min)
        out = F.scaled_dot_product_attention(Q, K, V, mask.repeat(batch, 1, 1, 1), dropout, scale=scale)
        if not dropout:  # what is dropped cannot be drawn again
            out = twice_differentiable(out, lambda *given: plain(*given)[0], Q, K, V, added)
    places = places_of(plan, topology.tokens)

    def back(x: Tensor) -> Tensor:
        return x.unflatten(0, (batch, tiles)).transpose(2, 3).flatten(1, 2).index_select(1, places)

    return back(out), None if lse is None else back(lse.unsqueeze(-1)).squeeze(-1)
