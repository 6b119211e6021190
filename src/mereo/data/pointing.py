"""Answers as pointers to points: polygons, tours and triangles, each in one form, and how to find them exactly.

Pointers are numbers from 1; 0 is the end of a sequence, and behind it is padding.
"""

import itertools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mereo.errors import UsageError

Floats = npt.NDArray[np.float64]
MOST_EXACT = 20
"""Cities of a tour up to which it is found by dynamic programming."""
RESOLVED = 1e-7
"""Width of a set of points in the unit square, in float32, up to which it is on a line."""
ROUNDING = 1e-12
"""Share of the size of a set up to which points are on a line or a circle, in float64."""
_AT_ONCE = 2**24
"""Numbers of a table of tours."""


# --- one form of each answer ----------------------------------------------------------------------------------------


def counts_of(pointers: Tensor) -> Tensor:
    """Pointers before the end: int64 (batch, steps) -> int64 (batch,)."""
    return (pointers > 0).cumprod(1).sum(1)


def _taken(pointers: Tensor, places: Tensor) -> Tensor:
    """The pointers at some places, if there are any; the end and padding stay."""
    inside = torch.arange(pointers.shape[1], device=pointers.device) < counts_of(pointers).unsqueeze(1)
    return torch.where(inside, pointers.gather(1, places), pointers)


def as_given(points: Tensor, pointers: Tensor) -> Tensor:
    """A sequence whose order and start count."""
    return pointers


def cycle_form(points: Tensor, pointers: Tensor) -> Tensor:
    """A cycle in its direction, from its lowest pointer on: int64 (batch, steps) -> the same."""
    counts = counts_of(pointers).unsqueeze(1)
    steps = torch.arange(pointers.shape[1], device=pointers.device).expand_as(pointers)
    first = pointers.masked_fill(steps >= counts, torch.iinfo(torch.int64).max).argmin(1, keepdim=True)
    return _taken(pointers, (first + steps) % counts.clamp(min=1))


def tour_form(points: Tensor, pointers: Tensor) -> Tensor:
    """A cycle from its lowest pointer on, towards the lower one of its two neighbours: int64 (batch, steps)."""
    cycle, counts = cycle_form(points, pointers), counts_of(pointers).unsqueeze(1)
    steps = torch.arange(pointers.shape[1], device=pointers.device).expand_as(pointers)
    back = _taken(cycle, (-steps) % counts.clamp(min=1))
    last = cycle.gather(1, (counts - 1).clamp(min=0))
    turn = (counts > 2) & (cycle[:, min(1, cycle.shape[1] - 1), None] > last)
    return torch.where(turn, back, cycle)


def triangle_form(points: Tensor, pointers: Tensor) -> Tensor:
    """Triangles in the order of their incentres, x before y, each with its pointers sorted: int64 (batch, steps).

    incentre = (a A + b B + c C) / (a + b + c),   a = |B C|, b = |C A|, c = |A B|
    """
    whole = pointers.shape[1] // 3
    triples = pointers[:, : 3 * whole].unflatten(1, (whole, 3)).clamp(min=0).sort(2).values
    corners = points.gather(1, (triples - 1).clamp(min=0).flatten(1).unsqueeze(-1).expand(-1, -1, points.shape[2]))
    corners = corners.unflatten(1, (whole, 3))
    sides = (corners.roll(-1, 2) - corners.roll(1, 2)).norm(dim=3, keepdim=True)
    centres = (sides * corners).sum(2) / sides.sum(2).clamp(min=torch.finfo(sides.dtype).tiny)
    absent = torch.arange(whole, device=pointers.device) >= (counts_of(pointers) // 3).unsqueeze(1)
    order = centres[..., 1].argsort(dim=1, stable=True)
    across = centres[..., 0].masked_fill(absent, torch.inf).gather(1, order)
    order = order.gather(1, across.argsort(dim=1, stable=True))
    placed = torch.cat(
        (triples.gather(1, order.unsqueeze(-1).expand_as(triples)).flatten(1), pointers[:, 3 * whole :]), 1
    )
    inside = torch.arange(pointers.shape[1], device=pointers.device) < 3 * (counts_of(pointers) // 3).unsqueeze(1)
    return torch.where(inside, placed, pointers)


FORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sequence": as_given, "hull": cycle_form, "tour": tour_form, "triangles": triangle_form,
}  # fmt: skip
"""Functions that bring answers which mean the same to one form: points (batch, n, 2), pointers (batch, steps)."""


# --- measures -------------------------------------------------------------------------------------------------------


def corners_of(points: Tensor, pointers: Tensor) -> Tensor:
    """The points of a cycle, the first one again from its end on: (batch, steps, 2)."""
    inside = torch.arange(pointers.shape[1], device=pointers.device) < counts_of(pointers).unsqueeze(1)
    places = torch.where(inside, pointers, pointers[:, :1]).clamp(min=1) - 1
    return points.gather(1, places.unsqueeze(-1).expand(-1, -1, points.shape[2]))


def length_of(points: Tensor, pointers: Tensor) -> Tensor:
    """The length of a closed cycle: (batch,)."""
    corners = corners_of(points, pointers)
    return (corners.roll(-1, 1) - corners).norm(dim=2).sum(1)


def area_of(points: Tensor, pointers: Tensor) -> Tensor:
    """The area of a polygon, above 0 where it goes counter-clockwise: (batch,)."""
    corners = corners_of(points, pointers)
    return _cross(corners, corners.roll(-1, 1)).sum(1) / 2


def _cross(a: Tensor, b: Tensor) -> Tensor:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def is_simple(points: Tensor, pointers: Tensor) -> Tensor:
    """Whether a cycle is a simple polygon: three corners or more, each once, no two sides cross. -> bool (batch,)."""
    counts, steps = counts_of(pointers), pointers.shape[1]
    place = torch.arange(steps, device=pointers.device)
    inside = place < counts.unsqueeze(1)
    pairs = inside.unsqueeze(2) & inside.unsqueeze(1) & (place.unsqueeze(1) < place)
    again = (pairs & (pointers.unsqueeze(2) == pointers.unsqueeze(1))).flatten(1).any(1)
    start = corners_of(points, pointers).double()
    side = start.roll(-1, 1) - start  # the last one leads back, as the first corner stands behind the last
    turns = _cross(side.unsqueeze(2), start.unsqueeze(1) - start.unsqueeze(2))
    beyond = _cross(side.unsqueeze(2), start.roll(-1, 1).unsqueeze(1) - start.unsqueeze(2))
    parted = turns * beyond < 0
    crossed = (pairs & parted & parted.transpose(1, 2)).flatten(1).any(1)
    return (counts >= 3) & ~again & ~crossed


# --- exact answers --------------------------------------------------------------------------------------------------


def check_points(points: Floats, least: int = 1) -> None:
    """UsageError unless points (n, 2) are finite, at least `least` in number, and all different."""
    if points.ndim != 2 or points.shape[1] != 2 or len(points) < least or not np.isfinite(points).all():
        raise UsageError(f"points are {points.shape}; they must be at least {least} rows of two finite coordinates.")
    if len(found := np.unique(points, axis=0, return_counts=True)[1]) < len(points):
        row = np.unique(points, axis=0)[found.argmax()].tolist()
        raise UsageError(f"points have {tuple(row)} {found.max()} times; give each point once.")


def convex_hull(points: Floats) -> list[int]:
    """The corners of the convex hull, counter-clockwise from the lowest pointer on, by Andrew's monotone chain.

    Raises:
        UsageError: for fewer than three points, points that are there twice, and points on a line.
    """
    check_points(points, 3)
    rows = points.tolist()
    order = sorted(range(len(rows)), key=rows.__getitem__)
    corners: list[int] = []
    for part in (order, order[::-1]):
        chain: list[int] = []
        for j in part:
            x, y = rows[j]
            while len(chain) > 1:
                (ax, ay), (bx, by) = rows[chain[-2]], rows[chain[-1]]
                if (bx - ax) * (y - ay) - (by - ay) * (x - ax) > 0:
                    break
                chain.pop()
            chain.append(j)
        corners += chain[:-1]
    if len(corners) < 3:
        raise _on_a_line(len(rows))
    first = corners.index(min(corners))
    return [j + 1 for j in corners[first:] + corners[:first]]


def check_problem(points: Floats, problem: str) -> None:
    """UsageError for points of the unit square without an answer: a hull or triangles need three on no common line.

    Args:
        points: (n, 2), rounded to float32.
        problem: of `FORMS`.
    """
    if problem not in ("hull", "triangles"):
        return
    hull = torch.tensor([convex_hull(points)])
    area, (width, height) = float(area_of(torch.from_numpy(points)[None], hull)), np.ptp(points, 0)
    if 2 * area <= RESOLVED * max(width, height):
        raise _on_a_line(len(points))


def _on_a_line(count: int) -> UsageError:
    return UsageError(f"points are {count} on a line, which has no hull; give points on no common line.")


def shortest_tours(points: Tensor) -> Tensor:
    """The shortest closed tours by dynamic programming, of sets of equally many cities, in their one form.

    cost(S, j) = min_(k in S, k != j) cost(S - j, k) + |k j|:   the shortest way from city 1 through S that ends in j

    Shapes: points (batch, n, 2) -> pointers int64 (batch, n).

    Reference: Held and Karp 1962, doi:10.1137/0110015; O(2^n n^2).
    """
    number = points.shape[1]
    if not 1 <= number <= MOST_EXACT:
        raise UsageError(f"points are {number} in a set; exact tours are found of 1 to {MOST_EXACT}.")
    if number < 4:
        return torch.arange(1, number + 1).expand(len(points), -1)
    rows = max(_AT_ONCE // (2 ** (number - 1) * (number - 1)), 1)
    return torch.cat([_shortest(part.double()) for part in points.split(rows)])


def _shortest(points: Tensor) -> Tensor:
    count, others = len(points), points.shape[1] - 1
    away = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    between, home = away[:, 1:, 1:], away[:, 0, 1:]
    cost = points.new_full((2**others, count, others), torch.inf)
    sets = torch.arange(2**others)
    sizes = sum((sets >> j) & 1 for j in range(others))
    for j in range(others):
        cost[1 << j, :, j] = home[:, j]
    for size in range(2, others + 1):
        chosen = sets[sizes == size]
        for j in range(others):
            holding = chosen[(chosen >> j) & 1 == 1]
            cost[holding, :, j] = (cost[holding ^ (1 << j)] + between[:, j]).amin(2)
    rows, left = torch.arange(count), torch.full((count,), 2**others - 1)
    last, tour = (cost[left, rows] + home).argmin(1), []
    for _ in range(others):
        tour.append(last)
        left = left ^ (1 << last)
        last = (cost[left, rows] + between[rows, last]).argmin(1)
    pointers = torch.stack([torch.full_like(last, -1), *reversed(tour)], 1) + 2
    return tour_form(points, pointers)


def improved_tours(points: Tensor) -> Tensor:
    """Short closed tours: nearest neighbours from every city, each improved by 2-opt; the shortest is taken.

    2-opt turns a part of a tour around, the one that gains most, until none gains.

    Shapes: points (batch, n, 2), n at least 4 -> pointers int64 (batch, n).
    """
    number = points.shape[1]
    rows = max(_AT_ONCE // (number**3), 1)
    return torch.cat([_improved(part.double()) for part in points.split(rows)])


def _improved(points: Tensor) -> Tensor:
    count, number = points.shape[:2]
    away = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    away = away.repeat_interleave(number, 0)
    rows = torch.arange(len(away))
    tour, free = torch.arange(number).repeat(count).unsqueeze(1), torch.ones(len(away), number, dtype=torch.bool)
    for _ in range(number - 1):
        free[rows, tour[:, -1]] = False
        following = away[rows, tour[:, -1]].masked_fill(~free, torch.inf).argmin(1)
        tour = torch.cat((tour, following.unsqueeze(1)), 1)
    place = torch.arange(number)
    later, active = place.unsqueeze(1) + 1 < place, rows
    while len(active):
        here = tour[active]
        ahead = here.roll(-1, 1)
        kept = away[active.unsqueeze(1), here, ahead]
        mine = away[active].gather(1, here.unsqueeze(2).expand(-1, -1, number))  # from each city of the tour
        swapped = mine.gather(2, here.unsqueeze(1).expand(-1, number, -1)) + away[active].gather(
            1, ahead.unsqueeze(2).expand(-1, -1, number)
        ).gather(2, ahead.unsqueeze(1).expand(-1, number, -1))
        gains = (kept.unsqueeze(2) + kept.unsqueeze(1) - swapped).masked_fill(~later, -torch.inf).flatten(1)
        gain, best = gains.max(1)
        going = gain > 1e-9
        active, here = active[going], here[going]
        one, other = (best[going] // number).unsqueeze(1), (best[going] % number).unsqueeze(1)
        turned = torch.where((place > one) & (place <= other), one + 1 + other - place, place)
        tour[active] = here.gather(1, turned)
    lengths = away[rows.unsqueeze(1), tour, tour.roll(-1, 1)].sum(1).unflatten(0, (count, number))
    shortest = tour.unflatten(0, (count, number))[torch.arange(count), lengths.argmin(1)]
    return tour_form(points, shortest + 1)


def delaunay_triangles(points: Tensor) -> list[Tensor]:
    """The triangles whose circle holds no other point, by trying all, in their one form.

    Shapes: points (batch, n, 2) -> for each set int64 (triangles, 3).

    Raises:
        UsageError: for fewer than three points, points on a line, and four points on a circle that holds no other, such
            as the corners of a square: their triangles are not unique.
    """
    wide, number = points.double(), points.shape[1]
    if number < 3:
        raise UsageError(f"points are {number} in a set; a triangle needs three.")
    triples = torch.tensor(list(itertools.combinations(range(number), 3)))
    a, b, c = (wide[:, triples[:, k]] for k in range(3))
    size = (wide.amax(1) - wide.amin(1)).amax(1)
    turn = _cross(b - a, c - a)
    turn = turn.masked_fill(turn.abs() <= ROUNDING * size.square().unsqueeze(1), 0)
    away = wide.unsqueeze(1)
    # A point d is inside the circle where this determinant has the sign of the triangle's turn.
    da, db, dc = (corner.unsqueeze(2) - away for corner in (a, b, c))
    sa, sb, sc = (d.square().sum(3) for d in (da, db, dc))
    inside = (sa * _cross(db, dc) + sb * _cross(dc, da) + sc * _cross(da, db)) * turn.sign().unsqueeze(2)
    least = ROUNDING * size.pow(4)[:, None, None]
    corners = torch.zeros_like(inside, dtype=torch.bool).scatter(2, triples.expand(len(wide), -1, -1), True)
    empty = ((inside <= least) | corners).all(2) & (turn != 0)
    tied = empty.unsqueeze(2) & (inside >= -least) & ~corners
    if bool(tied.any()):
        row, triple, other = tied.nonzero()[0].tolist()
        four = ", ".join(str(tuple(points[row, k].tolist())) for k in sorted([*triples[triple].tolist(), other]))
        raise UsageError(f"points {four} of set {row} are on a circle, so their triangles are not unique; move one.")
    if not bool(empty.any(1).all()):
        raise UsageError(f"points are {number} on a line in one set, which has no triangles; give other points.")
    found = []
    for row, chosen in zip(wide, empty, strict=True):
        pointers = (triples[chosen] + 1).reshape(1, -1)
        found.append(triangle_form(row.unsqueeze(0), pointers).view(-1, 3))
    return found
