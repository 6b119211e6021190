"""How a path of fixated objects is described, and how alike two paths are; a batch of paths at a time.

Paths are int64 (paths, steps): numbers of objects, -1 behind the end. Definitions follow HKUST-NISL/oat_eccv24.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

BEHAVIOUR = ("correct", "length", "search", "refixation", "revisit")
MULTIMATCH = ("vector", "direction", "length", "position")
_AT_ONCE = 2**11
"""Pairs of paths that MultiMatch aligns together."""


def lengths_of(paths: Ints) -> Ints:
    """Fixations of each path: int64 (paths,)."""
    return (paths >= 0).sum(1)


def behaviour(paths: Ints, targets: Ints) -> Floats:
    """Correct, length, search, refixation and revisit of each path, (paths, 5); NaN for a path without a fixation.

    correct: whether the last fixation is the target. Of all fixations, search is the share of those that enter an
    object for the first time, refixation of those that repeat the one before, revisit of those that enter one again.

    Shapes: paths int64 (paths, steps), targets int64 (paths,).
    """
    there, counts = paths >= 0, lengths_of(paths)
    stays = np.zeros_like(there)
    stays[:, 1:] = there[:, 1:] & (paths[:, 1:] == paths[:, :-1])
    earlier = np.tril(np.ones((paths.shape[1],) * 2, bool), -1)
    known = ((paths[:, :, None] == paths[:, None]) & earlier).any(2)
    last = paths[np.arange(len(paths)), np.maximum(counts - 1, 0)]
    kinds = [there & ~known, there & stays, there & known & ~stays]
    with np.errstate(invalid="ignore"):
        shares = [kind.sum(1) / counts for kind in kinds]
    table = np.stack([last == targets, counts, *shares], 1).astype(np.float64)
    table[counts == 0] = np.nan
    return table


def behaviour_gap(found: Floats, human: Floats) -> float:
    """Delta = mean over the five means of |found - human| / human, leaving out those that are 0 for people; (5,) each.

    Reference: arXiv:2407.13335.
    """
    used = human > 0
    return float((np.abs(found - human)[used] / human[used]).mean()) if used.any() else 0.0


def _aligned(one: Ints, other: Ints, *, most: bool) -> Floats:
    """The longest common subsequence (`most`) or the edit distance of pairs: float64 (pairs,)."""
    rows, columns = one.shape[1], other.shape[1]
    table = np.zeros((rows + 1, columns + 1, len(one)))
    if not most:
        table[:, 0], table[0, :] = np.arange(rows + 1)[:, None], np.arange(columns + 1)[:, None]
    for i in range(1, rows + 1):
        for j in range(1, columns + 1):
            same = one[:, i - 1] == other[:, j - 1]
            around = table[i - 1, j], table[i, j - 1]
            if most:
                table[i, j] = np.maximum(table[i - 1, j - 1] + same, np.maximum(*around))
            else:
                table[i, j] = np.minimum(table[i - 1, j - 1] + ~same, np.minimum(*around) + 1)
    return np.asarray(table[lengths_of(one), lengths_of(other), np.arange(len(one))])


def sequence_score(one: Ints, other: Ints) -> Floats:
    """SS: the length of the longest common subsequence divided by the longer length: (pairs, steps) x 2 -> (pairs,)."""
    longer = np.maximum(lengths_of(one), lengths_of(other))
    return np.asarray(_aligned(one, other, most=True) / np.maximum(longer, 1))


def edit_distance(one: Ints, other: Ints) -> Floats:
    """ED: the fewest fixations to insert, delete or replace: (pairs, steps) x 2 -> (pairs,)."""
    return _aligned(one, other, most=False)


def multimatch(one: Ints, other: Ints, places: Floats, size: Floats) -> Floats:
    """Likeness of vectors, directions, lengths and positions of the jumps between fixations: (pairs, 4).

    Jumps are aligned by the path through all pairs of jumps (i, j), from the first to the last, whose differences
    |u_i - v_j| have the least sum. Of the differences along it, the median m gives the likeness 1 - m / largest, with
    the largest 2 |size|, pi, |size|, |size|. NaN for a path of fewer than three fixations.

    Args:
        places: (x, y) of the objects of each pair's scene.
        size: columns and rows of its shelf.

    Shapes: paths int64 (pairs, steps), places (pairs, objects, 2), size (pairs, 2).

    Reference: Dewhurst et al. 2012, doi:10.3758/s13428-012-0212-2; ties as in the code that arXiv:2407.13335 uses.
    """
    enough = np.minimum(lengths_of(one), lengths_of(other)) >= 3
    result = np.full((len(one), len(MULTIMATCH)), np.nan)
    for part in np.array_split(enough.nonzero()[0], max(int(enough.sum()) // _AT_ONCE, 1)):
        if len(part):
            result[part] = _multimatch(one[part], other[part], places[part], size[part])
    return result


def _jumps(paths: Ints, places: Floats) -> tuple[Floats, Floats, Ints]:
    """Starts and vectors of the jumps, (pairs, jumps, 2) each, and the number of the last jump."""
    spots = np.take_along_axis(places, np.maximum(paths, 0)[..., None], 1)
    return spots[:, :-1], spots[:, 1:] - spots[:, :-1], lengths_of(paths) - 2


def _multimatch(one: Ints, other: Ints, places: Floats, size: Floats) -> Floats:
    (start, u, i), (start2, v, j) = _jumps(one, places), _jumps(other, places)
    pairs, n, m = np.arange(len(one)), u.shape[1], v.shape[1]
    away = np.sqrt(np.square(u[:, :, None] - v[:, None]).sum(3))
    cost, moves = np.full((n + 1, m + 1, len(one)), np.inf), np.zeros((n, m, len(one)), np.int64)
    for a, b in np.ndindex(n, m):
        before = np.stack([cost[a, b], cost[a, b + 1], cost[a + 1, b]])  # from both, from i, from j
        moves[a, b] = before.argmin(0)
        cost[a + 1, b + 1] = before.min(0) + away[:, a, b] if a or b else 0
    steps = n + m - 1
    differences = np.full((len(MULTIMATCH), steps, len(one)), np.nan)
    open_ = np.ones(len(one), bool)
    for step in range(steps):
        differences[:, step] = np.where(open_, _differences(pairs, i, j, start, u, start2, v, away), np.nan)
        open_ = open_ & ((i > 0) | (j > 0))
        move = moves[i, j, pairs]
        i, j = i - (open_ & (move < 2)), j - (open_ & (move != 1))
    diagonal = np.sqrt(np.square(size).sum(1))
    largest = np.stack([2 * diagonal, np.full_like(diagonal, np.pi), diagonal, diagonal])
    return np.asarray((1 - np.nanmedian(differences, 1) / largest).T)


def _differences(
    pairs: Ints, i: Ints, j: Ints, start: Floats, u: Floats, start2: Floats, v: Floats, away: Floats
) -> Floats:
    """Of one pair of jumps for each pair of paths: vector, direction, length and position, (4, pairs)."""
    one, other = u[pairs, i], v[pairs, j]
    turn = np.abs(_angle(one) - _angle(other))
    length = np.abs(np.sqrt(np.square(one).sum(1)) - np.sqrt(np.square(other).sum(1)))
    apart = np.sqrt(np.square(start[pairs, i] - start2[pairs, j]).sum(1))
    return np.stack([away[pairs, i, j], np.minimum(turn, 2 * np.pi - turn), length, apart])


def _angle(vectors: Floats) -> Floats:
    """From 0 to 2 pi."""
    angles: Any = np.arctan2(vectors[:, 1], vectors[:, 0])
    return np.asarray(np.where(angles < 0, angles + 2 * np.pi, angles))
