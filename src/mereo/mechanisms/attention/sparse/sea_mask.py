"""Which keys each query of SEA keeps: the largest entries of a compressed map, stretched to all keys.

A query that sees n keys reads them in K columns: key j, counted from 0 among those it sees, is in column

    m(j) = floor((j + 1/2) K / n - 1e-4)                                                         arXiv:2310.01777
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.errors import UsageError, check_choice

GROUPS = ("causal_batch", "batch", "head", "query")
SHIFT = 1e-4
FIRST_ROWS = 64


def column_of(places: Tensor, count: Tensor | int, columns: int) -> Tensor:
    """The column that holds a key.

    Shapes: places int64 (...), of a key among `count` visible ones -> int64 (...), meaningless for others.
    """
    exact = (places.double() + 0.5) * columns / count
    return (exact - SHIFT).floor().long().clamp(0, columns - 1)


def _ratio(top_k: float, columns: int, count: Tensor, of: int) -> Tensor:
    """round(of * top_k * columns / count), at least 1 and at most of * columns."""
    return (of * top_k * columns / count.double().clamp(min=1)).round().long().clamp(1, of * columns)


def _largest(flat: Tensor, counts: Tensor, most: int) -> Tensor:
    """Bool, True for the `counts` largest entries along the last axis; none of `counts` exceeds `most`."""
    order = flat.topk(min(most, flat.shape[-1]), -1).indices
    keep = torch.arange(order.shape[-1], device=flat.device) < counts.unsqueeze(-1)
    return torch.zeros_like(flat, dtype=torch.bool).scatter(-1, order, keep.expand_as(order))


def _by_rows(probabilities: Tensor, lengths: Tensor, top_k: float, causal: bool) -> Tensor:
    """The largest entries of each row of queries, over the columns of all heads together."""
    heads, tokens, columns = probabilities.shape[1:]
    flat = probabilities.transpose(1, 2).flatten(2)
    counts = _ratio(top_k, columns, lengths, heads)
    most = heads * columns
    if not causal:
        kept = _largest(flat, counts, most)
    else:
        # Later rows keep fewer entries, and the search for few is faster: rows in blocks that double.
        parts, first = [], 0
        while first < tokens:
            last = min(max(2 * first, FIRST_ROWS), tokens)
            here = slice(first, last)
            at_most = min(max(round(heads * top_k * columns / (first + 1)) + 1, 1), most)
            parts.append(_largest(flat[:, here], counts[:, here], at_most))
            first = last
        kept = torch.cat(parts, 1)
    return kept.unflatten(2, (heads, columns)).transpose(1, 2)


def choose(
    probabilities: Tensor,
    lengths: Tensor,
    top_k: float,
    group: str,
    *,
    causal: bool = False,
    valid: Tensor | None = None,
) -> Tensor:
    """The kept entries of compressed maps: top_k keys a query on average.

    Args:
        top_k: keys a query keeps on average over the group.
        group: what shares one budget: "query" a row of a head, "head" all rows of a head, "batch" a whole sample,
            "causal_batch" a row of all heads.

    Shapes: probabilities (batch, heads, queries, columns), lengths int64 (batch or 1, queries), keys that each query
        sees, valid bool (batch, queries), False for padding -> bool (batch, heads, queries, columns).
    """
    check_choice("group", group, GROUPS)
    if causal and group != "causal_batch":
        raise UsageError(f"group is {group!r} with causal=True; queries may not share a budget, give 'causal_batch'.")
    heads, _, columns = probabilities.shape[1:]
    probabilities = probabilities.detach()
    if valid is not None:
        probabilities = probabilities.masked_fill(~valid[:, None, :, None], -1.0)
    if group == "causal_batch":
        kept = _by_rows(probabilities, lengths, top_k, causal)
    elif group == "query":
        counts = _ratio(top_k, columns, lengths, 1)
        kept = _largest(probabilities, counts.unsqueeze(1), columns)
    else:
        whole = probabilities.flatten(2 if group == "head" else 1)
        budget = top_k * columns * (1 if group == "head" else heads)
        most = max(min(round(budget), whole.shape[-1]), 1)
        counts = torch.full(whole.shape[:-1], most, device=whole.device)
        kept = _largest(whole, counts, most).view_as(probabilities)
    return kept if valid is None else kept & valid[:, None, :, None]


def visible(tokens: int, causal: bool, valid: Tensor | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """How many keys each query sees, and the place of each key among them.

    Shapes: -> int64 (batch or 1, queries), int64 (batch or 1, keys).
    """
    order = torch.arange(tokens, device=device)
    if causal:
        return (order + 1).unsqueeze(0), order.unsqueeze(0)
    if valid is None:
        return torch.full((1, tokens), tokens, device=device), order.unsqueeze(0)
    return valid.sum(1, keepdim=True).expand(-1, tokens), valid.cumsum(1) - 1


def stretch(maps: Tensor, lengths: Tensor, places: Tensor, causal: bool, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compressed maps over all keys, and which keys each query sees.

    Shapes: maps (batch, heads, queries, columns), lengths (batch or 1, queries), places (batch or 1, keys)
        -> (batch, heads, queries, keys), bool (batch or 1, 1, queries or 1, keys). Entries of other keys are arbitrary.
    """
    columns, tokens = maps.shape[-1], places.shape[-1]
    if causal:
        index = column_of(places.unsqueeze(1), lengths.unsqueeze(2), columns)
        seen = places.unsqueeze(1) < lengths.unsqueeze(2)
    else:
        index = column_of(places, lengths[:, :1].clamp(min=1), columns).unsqueeze(1)
        seen = torch.ones_like(index, dtype=torch.bool) if valid is None else valid.unsqueeze(1)
    index = index.unsqueeze(1).expand(*maps.shape[:3], tokens)
    return maps.gather(-1, index), seen.unsqueeze(1)


def keys_of_columns(lengths: Tensor, places: Tensor, columns: int, valid: Tensor | None) -> Tensor:
    """Number of keys in each column, for queries that all see the same keys: float (batch or 1, columns)."""
    index = column_of(places, lengths[:, :1].clamp(min=1), columns)
    ones = torch.ones_like(index) if valid is None else valid.long()
    return F.one_hot(index, columns).mul(ones.unsqueeze(-1)).sum(1)


def _first_of(column: Tensor, count: Tensor, columns: int) -> Tensor:
    """The first of `count` keys that is in a column or after it, by an estimate and then the rule itself."""
    first = ((column.double() + SHIFT) * count / columns - 0.5).ceil().long().clamp(min=0)
    first = torch.where((first > 0) & (column_of(first - 1, count, columns) >= column), first - 1, first)
    first = torch.where((first < count) & (column_of(first, count, columns) < column), first + 1, first)
    return torch.minimum(first, count)


def listed(kept: Tensor, lengths: Tensor) -> Tensor:
    """The keys in the kept columns of each query, as places among those it sees, in order; -1 is padding.

    Shapes: kept bool (batch, heads, queries, columns), lengths int64 (batch or 1, queries)
        -> int64 (batch, heads, queries, places); the longest list sets the number of places, at least one.
    """
    batch, heads, queries, columns = kept.shape
    lengths = lengths.expand(batch, queries)
    b, h, i, column = kept.nonzero(as_tuple=True)
    count = lengths[b, i]
    begin = _first_of(column, count, columns)
    end = torch.where(column == columns - 1, count, _first_of(column + 1, count, columns))
    width = (end - begin).clamp(min=0)
    row = (b * heads + h) * queries + i
    lists = torch.zeros(batch * heads * queries, dtype=torch.long, device=kept.device).index_add_(0, row, width)
    most = max(int(lists.max()), 1) if len(lists) else 1
    starts = lists.cumsum(0) - lists  # of each list among all keys, which come in the order of the lists
    before = width.cumsum(0) - width
    owner = torch.repeat_interleave(torch.arange(len(width), device=kept.device), width)
    number = torch.arange(len(owner), device=kept.device)
    keys = begin[owner] + number - before[owner]
    places = kept.new_full((batch * heads * queries, most), -1, dtype=torch.long)
    places[row[owner], number - starts[row[owner]]] = keys
    return places.view(batch, heads, queries, most)
