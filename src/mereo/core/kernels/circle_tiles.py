"""Attention to circles by tiles: a square of queries attends to the union of their circles, with a mask.

Cost: 2 N P (D + E) FLOPs a head for N image tokens that attend to P each, times the senders of a union over those of a
circle: with squares of 8 x 8 about 2.4 at a radius of 8, and 1.3 at 32. Live at once: copies of keys and values, as
many as a union has for each square.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mereo.core.coupling import Coupling
from mereo.core.kernels.attention import attend
from mereo.core.kernels.kept import kept
from mereo.core.tiles import Tiles
from mereo.core.topology import Circle

TILE = 8
"""Queries of a tile along each side."""
PADDING = 1.25
"""Tiles are computed together while the largest has at most so many times the senders of the smallest."""


@dataclass(frozen=True, eq=False)
class Group:
    """Tiles that are computed together.

    Attributes:
        queries: int64 (tiles, queries), image tokens; beyond a border another one is repeated.
        real: bool (tiles, queries), False beyond a border.
        keys: int64 (tiles, keys), image tokens, -1 where a tile has fewer.
        sees: bool (tiles, queries, keys).
    """

    queries: Tensor
    real: Tensor
    keys: Tensor
    sees: Tensor


@kept(16)
def _whole(circle: Circle, device: torch.device) -> Group:
    """All tiles."""
    (rows, columns), reach = circle.grid, circle.reach
    tall, wide = min(TILE, rows), min(TILE, columns)
    corner = torch.cartesian_prod(
        torch.arange(0, rows, tall, device=device), torch.arange(0, columns, wide, device=device)
    ).unsqueeze(1)
    side = torch.tensor((rows, columns), device=device)
    inside = torch.cartesian_prod(torch.arange(tall, device=device), torch.arange(wide, device=device))
    at = corner + inside
    real, at = (at < side).all(-1), torch.minimum(at, side - 1)
    offsets = [
        (dy, dx)
        for dy in range(-reach, tall + reach)
        for width in (circle.widths[max(-dy, dy - tall + 1, 0)],)
        for dx in range(-width, wide + width)
    ]
    keys = corner + torch.tensor(offsets, device=device)
    there = ((keys >= 0) & (keys < side)).all(-1)
    sees = (at.unsqueeze(2) - keys.unsqueeze(1)).square().sum(-1) < circle.radius**2
    number = torch.tensor((columns, 1), device=device)
    numbers = torch.where(there, (keys * number).sum(-1), -1)
    return Group((at * number).sum(-1), real, numbers, sees & there.unsqueeze(1))


@kept(16)
def _groups(circle: Circle, device: torch.device) -> tuple[Group, ...]:
    """Tiles with about as many senders together, and those first that are there."""
    whole = _whole(circle, device)
    counts, order = (whole.keys >= 0).sum(1).sort()
    groups, begin = [], 0
    listed = counts.tolist()
    for end in range(1, len(listed) + 1):
        if end < len(listed) and listed[end] <= PADDING * listed[begin]:
            continue
        mine, most = order[begin:end], listed[end - 1]
        keys, places = whole.keys[mine].sort(dim=1, descending=True)
        sees = whole.sees[mine].gather(2, places[:, None, :most].expand(-1, whole.sees.shape[1], -1))
        groups.append(Group(whole.queries[mine], whole.real[mine], keys[:, :most], sees))
        begin = end
    return tuple(groups)


def groups_of(circle: Circle, device: torch.device, together: bool) -> tuple[Group, ...]:
    """The tiles of an image; to a compiler, which unrolls a loop over groups, all of them together."""
    if together or torch.compiler.is_compiling():
        return (_whole(circle, device),)
    return _groups(circle, device)


def tiled(q: Tensor, k: Tensor, v: Tensor, circle: Circle, coupling: Coupling, scale: float) -> Tensor:
    """The output of each image token.

    Shapes: q (batch, heads, image, dim), k (batch, heads, senders, dim), v (batch, heads, senders, pose), senders
        [text | image | blocks] -> (batch, heads, image, pose).
    """
    batch, heads = q.shape[:2]
    shared = torch.arange(k.shape[2] - circle.image, device=q.device)
    shared = torch.where(shared < circle.text, shared, shared + circle.image)
    together = coupling.watched or not coupling.is_plain_softmax
    outputs, places = [], []
    for group in groups_of(circle, q.device, together):
        tiles = len(group.queries)
        senders = torch.cat((shared.expand(tiles, -1), torch.where(group.keys < 0, -1, group.keys + circle.text)), 1)

        def pick(x: Tensor, which: Tensor) -> Tensor:
            picked = x.index_select(2, which.clamp(min=0).flatten()).unflatten(2, which.shape)
            return picked.transpose(1, 2).flatten(0, 1) if together else picked.flatten(0, 1)

        Q, K, V = pick(q, group.queries), pick(k, senders), pick(v, senders)
        sees = torch.nn.functional.pad(group.sees, (len(shared), 0), value=True)
        if together:
            where = Tiles(torch.where(group.real, group.queries, -1), senders, circle.image, k.shape[2])
            mask = sees.unsqueeze(1).repeat(batch, 1, 1, 1)
            out = attend(Q, K, V, coupling, mask=mask, scale=scale, tiles=where)
            out = out.unflatten(0, (batch, tiles)).transpose(1, 2)
        else:  # tiles stand where heads do, so that one mask serves all images and heads
            out = attend(Q, K, V, coupling, mask=sees.unsqueeze(0), scale=scale).unflatten(0, (batch, heads))
        outputs.append(out.flatten(2, 3))
        places.append(torch.where(group.real, group.queries, circle.image).flatten())
    place = torch.cat(places)
    numbers = torch.arange(len(place), device=q.device)
    picked = numbers.new_zeros(circle.image + 1).scatter_(0, place, numbers)[:-1]
    return torch.cat(outputs, 2).index_select(2, picked)
