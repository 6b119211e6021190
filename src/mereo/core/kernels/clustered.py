"""How attention inside clusters is executed: members gathered, attended and scattered; or prefixes over all pairs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mereo.core.coupling import Coupling
from mereo.core.kernels.attention import attend
from mereo.core.squash import accumulation_type
from mereo.core.topology import Tiles


def distances(x: Tensor, centroids: Tensor) -> Tensor:
    """Squared distance of every token from every centroid of its head.

    |x_n - mu_c|^2 = |x_n|^2 + |mu_c|^2 - 2 <x_n, mu_c> = <[-2 mu_c, 1, |mu_c|^2], [x_n, |x_n|^2, 1]>

    Shapes: x (batch, heads, tokens, dim), centroids (heads, clusters, dim) -> (batch, heads, clusters, tokens), at
        least float32.
    """
    wide = torch.promote_types(accumulation_type(x), accumulation_type(centroids))
    x, centroids = x.to(wide), centroids.to(wide)
    one, length = torch.ones_like(x[..., :1]), x.square().sum(-1, keepdim=True)
    own = centroids.square().sum(-1, keepdim=True)
    return torch.cat((-2 * centroids, torch.ones_like(own), own), -1) @ torch.cat((x, length, one), -1).mT


def members(apart: Tensor, window: int) -> Tensor:
    """The tokens nearest to each centroid, in the order of their positions, `window` for every cluster.

    A distance of NaN counts as the farthest.

    Shapes: apart (batch, heads, clusters, tokens) -> int64 (batch, heads, clusters, min(window, tokens)).
    """
    return apart.topk(min(window, apart.shape[-1]), -1, largest=False, sorted=False).indices.sort(-1).values


def prefix_members(apart: Tensor, window: int) -> Tensor:
    """Whether token j is among the nearest ones of tokens 0 to i; of equal distances the first counts.

    Shapes: apart (..., tokens) -> bool (..., tokens i, tokens j).
    """
    tokens = apart.shape[-1]
    position = torch.arange(tokens, device=apart.device)
    mine, other = apart.unsqueeze(-1), apart.unsqueeze(-2)
    nearer = (other < mine) | ((other == mine) & (position < position.unsqueeze(-1)))
    before = nearer.cumsum(-1, dtype=torch.int32).mT  # [i, j]: tokens up to i that are nearer than j
    return (before < window) & (position <= position.unsqueeze(-1))


@dataclass(frozen=True)
class Clustered:
    """One call.

    Attributes:
        q: (batch, heads, tokens, dim).
        k: (batch, heads, senders, dim); None if the queries are the keys.
        v: (batch, heads, senders, pose).
        of_queries, of_keys: distances from the centroids, (batch, heads, clusters, tokens or senders).
        window: members of a cluster.
        coupling: makes the couplings.
        scale: factor of q k^T.
        causal: whether keys behind the query are left out.
        mask: bool (batch, senders), or None.
    """

    q: Tensor
    k: Tensor | None
    v: Tensor
    of_queries: Tensor
    of_keys: Tensor
    window: int
    coupling: Coupling
    scale: float
    causal: bool = False
    mask: Tensor | None = None

    @property
    def keys(self) -> Tensor:
        """The keys, whether they are the queries or not."""
        return self.q if self.k is None else self.k

    @property
    def measured(self) -> tuple[Tensor, Tensor]:
        """Distances of queries and keys, infinite where they take no part."""
        if self.mask is None:
            return self.of_queries, self.of_keys
        away = ~self.mask[:, None, None]
        keys = self.of_keys.masked_fill(away, torch.inf)
        same = self.of_queries.shape[-1] == away.shape[-1]
        return self.of_queries.masked_fill(away, torch.inf) if same else self.of_queries, keys


def gathered(given: Clustered) -> Tensor:
    """Members of every cluster copied side by side, attended, and added to their places."""
    q, v, coupling = given.q, given.v, given.coupling
    batch, heads, tokens, _ = q.shape
    of_queries, of_keys = given.measured
    queries = members(of_queries, given.window)
    keys = queries if given.k is None else members(of_keys, given.window)
    allowed = None
    if given.mask is not None:
        allowed = _at(given.mask.unsqueeze(1).expand(-1, heads, -1), keys).unsqueeze(-2)
    if given.causal and coupling.topology is None:
        past = keys.unsqueeze(-2) <= queries.unsqueeze(-1)
        allowed = past if allowed is None else allowed & past
    if allowed is not None:
        allowed = allowed.transpose(1, 2).flatten(0, 1)
    counts = torch.zeros(batch, heads, tokens, dtype=accumulation_type(q), device=q.device)
    counts = counts.scatter_add(2, queries.flatten(2), counts.new_ones(1).expand(batch, heads, queries[0, 0].numel()))
    share = _at(counts, queries).reciprocal().to(q.dtype).transpose(1, 2).flatten(0, 1).unsqueeze(-1)
    read = _rows(queries, tokens)
    written = read if given.k is None else _rows(keys, v.shape[2])
    cluster_q, cluster_v = _gathered(q, read), _gathered(v, written)
    cluster_k = cluster_q if given.k is None else _gathered(given.k, written)
    if coupling.watched:
        tiles = Tiles(queries, keys, tokens, v.shape[2])
        scores = (cluster_q * given.scale) @ cluster_k.mT
        mixed = coupling(scores, allowed, weight=share, tiles=tiles) @ cluster_v
    else:
        mixed = attend(cluster_q, cluster_k, cluster_v, coupling, mask=allowed, scale=given.scale) * share
    out = mixed.new_zeros(batch * tokens * heads, v.shape[-1])
    out = out.index_add(0, read.flatten(), mixed.reshape(-1, v.shape[-1]))
    return out.view(batch, tokens, heads, v.shape[-1]).transpose(1, 2)


def over_prefixes(given: Clustered) -> Tensor:
    """Clusters of the tokens up to each query, one cluster after the other over all pairs of tokens."""
    q, k, v, coupling = given.q, given.keys, given.v, given.coupling
    of_queries, of_keys = (x.nan_to_num(torch.inf, torch.inf) for x in given.measured)
    tokens, clusters = q.shape[2], of_queries.shape[2]

    def within(apart: Tensor, c: int) -> Tensor:
        return prefix_members(apart[:, :, c], given.window)

    itself = torch.eye(tokens, dtype=torch.bool, device=q.device)
    inside = torch.stack([(within(of_queries, c) & itself).any(-1) for c in range(clusters)], 2)
    share = shares(inside, q).unsqueeze(-1)

    def allowed(c: int) -> Tensor:
        pairs = within(of_keys, c) & inside[:, :, c].unsqueeze(-1)
        return pairs if given.mask is None else pairs & given.mask[:, None, None]

    if not coupling.watched:
        parts = [
            attend(q, k, v, coupling, mask=allowed(c), scale=given.scale) * share[:, :, c] for c in range(clusters)
        ]
        return torch.stack(parts).sum(0)
    everyone = torch.arange(tokens, device=q.device).expand(clusters, -1)
    pairs = torch.stack([allowed(c) for c in range(clusters)], 1).flatten(0, 1)
    scores = ((q * given.scale) @ k.mT).repeat_interleave(clusters, 0)
    tiles = Tiles(everyone, everyone, tokens, tokens)
    couplings = coupling(scores, pairs, weight=share.transpose(1, 2).flatten(0, 1), tiles=tiles)
    return (couplings @ v.repeat_interleave(clusters, 0)).unflatten(0, (-1, clusters)).sum(1)


def shares(inside: Tensor, like: Tensor) -> Tensor:
    """1 / the number of clusters of a token, in each cluster that it is in; of the type of `like`.

    Shapes: inside bool (batch, heads, clusters, tokens) -> the same.
    """
    counted = inside.to(accumulation_type(like))
    return (counted / counted.sum(2, keepdim=True).clamp(min=1)).to(like.dtype)


def _at(values: Tensor, lists: Tensor) -> Tensor:
    """values (batch, heads, tokens) at lists (batch, heads, clusters, members) -> as the lists."""
    return values.gather(2, lists.flatten(2)).view(lists.shape)


def _rows(lists: Tensor, tokens: int) -> Tensor:
    """Row of each member among (batch * tokens * heads): int64 (batch, clusters, heads, members)."""
    batch, heads = lists.shape[:2]
    head = torch.arange(heads, device=lists.device).view(1, 1, -1, 1)
    first = tokens * torch.arange(batch, device=lists.device).view(-1, 1, 1, 1)
    return (lists.transpose(1, 2) + first) * heads + head


def _gathered(x: Tensor, rows: Tensor) -> Tensor:
    """Members of every cluster: (batch, heads, tokens, dim) -> (batch * clusters, heads, members, dim)."""
    flat = x.transpose(1, 2).reshape(-1, x.shape[-1])
    return flat.index_select(0, rows.flatten()).view(rows.shape[0] * rows.shape[1], *rows.shape[2:], x.shape[-1])
