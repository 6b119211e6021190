"""Behaviour and likeness of scanpaths: numbers worked by hand, and loops over pairs."""

import math
from statistics import median

import numpy as np
import pytest

from mereo.data.scanpaths import behaviour, behaviour_gap, edit_distance, multimatch, sequence_score


def paths(*rows: tuple[int, ...]) -> np.ndarray:
    longest = max(map(len, rows))
    return np.array([[*row, *[-1] * (longest - len(row))] for row in rows])


def test_behaviour_of_a_path() -> None:
    found = behaviour(paths((3, 3, 7, 3, 9, 9, 9, 4), (2, 2), ()), np.array([4, 0, 0]))
    assert found[0].tolist() == [1, 8, 0.5, 0.375, 0.125]
    assert found[1].tolist() == [0, 2, 0.5, 0.5, 0] and np.isnan(found[2]).all()
    human = np.array([1.0, 8.0, 0.5, 0.375, 0.0])
    assert behaviour_gap(np.array([0.5, 12.0, 0.5, 0.375, 0.3]), human) == pytest.approx(0.25)


def test_scores_of_sequences() -> None:
    one, other = paths((1, 2, 3, 4), (1, 1, 2), (5, 6)), paths((1, 3, 4), (2, 1, 1), (5, 6))
    assert sequence_score(one, other) == pytest.approx([0.75, 2 / 3, 1])
    assert edit_distance(one, other).tolist() == [1, 2, 0]
    assert edit_distance(paths((1, 2, 3)), paths(())).tolist() == [3]


def alignments(n: int, m: int) -> list[list[tuple[int, int]]]:
    """All ways from (0, 0) to (n, m) by steps of one in one or both."""
    if (n, m) == (0, 0):
        return [[(0, 0)]]
    before = [(n - a, m - b) for a, b in ((1, 1), (1, 0), (0, 1)) if n >= a and m >= b]
    return [[*way, (n, m)] for place in before for way in alignments(*place)]


def test_multimatch_is_that_of_the_best_alignment_of_all() -> None:
    generator = np.random.default_rng(0)
    places, size = generator.random((6, 2)) * (5, 3), np.array([5.0, 3.0])
    one, other = paths((0, 3, 2, 5), (1, 2), (4, 1, 0)), paths((1, 4, 3), (0, 1, 2), (4, 1, 0))
    found = multimatch(one, other, np.broadcast_to(places, (3, 6, 2)), np.broadcast_to(size, (3, 2)))
    assert np.isnan(found[1]).all() and found[2] == pytest.approx(np.ones(4))
    starts, others = places[[0, 3, 2]], places[[1, 4]]
    u, v = np.diff(places[[0, 3, 2, 5]], axis=0), np.diff(places[[1, 4, 3]], axis=0)
    cost = np.linalg.norm(u[:, None] - v, axis=2)
    best = min(alignments(2, 1), key=lambda way: sum(cost[pair] for pair in way[1:]))

    def angle(i: int, j: int) -> float:
        turn = abs(math.atan2(*u[i][::-1]) - math.atan2(*v[j][::-1])) % (2 * math.pi)
        return min(turn, 2 * math.pi - turn)

    diagonal = math.hypot(5, 3)
    expected = [
        1 - median(cost[pair] for pair in best) / (2 * diagonal),
        1 - median(angle(*pair) for pair in best) / math.pi,
        1 - median(abs(np.linalg.norm(u[i]) - np.linalg.norm(v[j])) for i, j in best) / diagonal,
        1 - median(float(np.linalg.norm(starts[i] - others[j])) for i, j in best) / diagonal,
    ]
    assert found[0] == pytest.approx(expected)
