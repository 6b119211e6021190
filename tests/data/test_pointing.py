"""What pointers mean: exact answers against all answers, forms and measures against loops, the page's numbers."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from mereo.data.pointing import (
    FORMS,
    area_of,
    check_problem,
    convex_hull,
    cycle_form,
    delaunay_triangles,
    improved_tours,
    is_simple,
    length_of,
    shortest_tours,
    tour_form,
    triangle_form,
)
from mereo.errors import UsageError

SQUARE = [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]


def some(count: int, number: int, seed: int = 0) -> Tensor:
    return torch.rand(count, number, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def turn(a: list[float], b: list[float], c: list[float]) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def test_a_hull_has_every_point_on_its_left_and_starts_at_its_lowest_pointer() -> None:
    for points in some(30, 9):
        rows, hull = points.tolist(), [j - 1 for j in convex_hull(points.numpy())]
        assert hull[0] == min(hull) and len(set(hull)) == len(hull) >= 3
        for a, b in itertools.pairwise([*hull, hull[0]]):
            assert all(turn(rows[a], rows[b], rows[c]) > 0 for c in range(9) if c not in (a, b))
    for points in some(9, 3):
        assert sorted(convex_hull(points.numpy())) == [1, 2, 3] and convex_hull(points.numpy())[0] == 1
    middle = np.array([[0.5, 0.0], *SQUARE, [0.5, 0.5]])  # neither inside nor on a side
    assert convex_hull(middle) == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([], r"\(0,\)"),
        ([[0.0, 0.0], [1.0, 1.0]], r"\(2, 2\).*3"),
        ([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]], r"\(0.0, 0.0\) 2 times"),
        ([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]], "3 on a line"),
        ([[0.0, 0.0], [1.0, math.nan], [2.0, 2.0]], "finite"),
    ],
)
def test_points_without_a_hull(rows: list[list[float]], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        convex_hull(np.array(rows))


def test_the_shortest_tour_is_the_shortest_of_all() -> None:
    square = torch.tensor([SQUARE])
    assert length_of(square, shortest_tours(square)).tolist() == [4.0]
    for number in range(1, 8):
        points = some(4, number, number)
        found = shortest_tours(points)
        orders = torch.tensor([[1, *rest] for rest in itertools.permutations(range(2, number + 1))])
        for row, tour in zip(points, found, strict=True):
            lengths = length_of(row.expand(len(orders), -1, -1), orders)
            assert length_of(row[None], tour[None]).item() == pytest.approx(lengths.min().item())
            assert sorted(tour.tolist()) == [*range(1, number + 1)] and tour[0] == 1
            assert number < 3 or tour[1] < tour[-1]
    with pytest.raises(UsageError, match=r"25 .*20"):
        shortest_tours(some(1, 25))


def test_mean_lengths_of_shortest_tours_are_those_of_the_paper() -> None:
    for number, count, mean, deviation in ((5, 10_000, 2.12, 0.01), (10, 1_000, 2.87, 0.02)):
        points = some(count, number)
        assert length_of(points, shortest_tours(points)).mean().item() == pytest.approx(mean, abs=deviation)


def test_improved_tours_are_tours_and_hardly_longer() -> None:
    points = some(50, 9)
    found, best = improved_tours(points), length_of(points, shortest_tours(points))
    assert (found.sort(1).values == torch.arange(1, 10)).all()
    assert (length_of(points, found) >= best - 1e-9).all() and length_of(points, found).mean() < 1.005 * best.mean()


def test_triangles_fill_the_hull_and_their_circles_are_empty() -> None:
    for number in (3, 5, 8):
        points = some(10, number, number)
        for row, found in zip(points, delaunay_triangles(points), strict=True):
            hull = convex_hull(row.numpy())
            assert len(found) == 2 * number - 2 - len(hull)
            areas = area_of(row.expand(len(found), -1, -1), found).abs()
            torch.testing.assert_close(areas.sum(), area_of(row[None], torch.tensor([hull]))[0])
            for triangle in found.tolist():
                a, b, c = (row[j - 1] for j in triangle)
                centre = torch.linalg.solve(
                    2 * torch.stack((b - a, c - a)), torch.stack((b @ b - a @ a, c @ c - a @ a))
                )
                assert ((row - centre).norm(dim=1) > (a - centre).norm() - 1e-9).all()
    with pytest.raises(UsageError, match="3 on a line"):
        delaunay_triangles(torch.tensor([[[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]]))
    with pytest.raises(UsageError, match="2 in a set"):
        delaunay_triangles(some(1, 2))
    angles = torch.tensor([0.1, 1.3, 2.2, 4.0, 5.1], dtype=torch.float64)
    for on_a_circle in (torch.tensor(SQUARE), torch.stack((angles.cos(), angles.sin()), 1) / 3 + 0.4):
        for scale in (1.0, 1e-3, 1e6):
            with pytest.raises(UsageError, match="set 1 are on a circle, so their triangles are not unique"):
                delaunay_triangles(scale * torch.stack((some(1, len(on_a_circle))[0], on_a_circle.double())))
    # A circle that holds another point is no circle of the triangulation.
    assert len(delaunay_triangles(torch.tensor([[*SQUARE, [0.5, 0.4]]]))[0]) == 4


@pytest.mark.parametrize("problem", ["hull", "triangles"])
def test_points_on_a_line_have_no_hull_or_triangles(problem: str) -> None:
    place = np.array([0.1, 0.25, 0.7, 0.9])
    for slope, start in ((0.0, 0.3), (0.7, 0.1), (1.0, 0.0), (0.31, 0.6)):
        line = np.stack((place, slope * place + start), 1).astype(np.float32).astype(np.float64)
        with pytest.raises(UsageError, match="4 on a line"):
            check_problem(line, problem)
        check_problem(line + np.array([[0, 0], [0, 1e-4], [0, 0], [0, 0]]), problem)
    for count in (1, 2):
        with pytest.raises(UsageError, match="at least 3 rows"):
            check_problem(np.array(SQUARE[:count]), problem)
    check_problem(np.array(SQUARE[:1]), "tour")


def test_answers_that_mean_the_same_have_one_form() -> None:
    points = some(1, 6)
    cycle = torch.tensor([[5, 2, 6, 4, 0, -1]])
    assert cycle_form(points, cycle).tolist() == [[2, 6, 4, 5, 0, -1]]
    assert tour_form(points, cycle).tolist() == [[2, 5, 4, 6, 0, -1]]
    for problem in ("hull", "tour"):
        for shift in range(4):
            moved = torch.cat((cycle[:, :4].roll(shift, 1), cycle[:, 4:]), 1)
            assert torch.equal(FORMS[problem](points, moved), FORMS[problem](points, cycle))
    turned = torch.tensor([[4, 6, 2, 5, 0, -1]])
    assert torch.equal(tour_form(points, turned), tour_form(points, cycle))
    assert not torch.equal(cycle_form(points, turned), cycle_form(points, cycle)), "a hull has a direction"
    for rows in ([[0, 0, 0]], [[3, 0, 0]], [[2, 1, 0]]):
        for form in FORMS.values():
            assert form(points, torch.tensor(rows)).shape == (1, 3)
    triangles = delaunay_triangles(points)[0]
    mixed = torch.cat((triangles.flip(0).roll(1, 1).flatten(), torch.tensor([0, -1])))[None]
    found = triangle_form(points, mixed)
    assert found[0, :-2].tolist() == triangles.flatten().tolist() and found[0, -2:].tolist() == [0, -1]
    sides = [
        [(points[0, j - 1] - points[0, k - 1]).norm() for j, k in ((b, c), (c, a), (a, b))] for a, b, c in triangles
    ]
    centres = [
        sum(side * points[0, j - 1] for side, j in zip(each, row, strict=True)) / sum(each)
        for each, row in zip(sides, triangles.tolist(), strict=True)
    ]
    assert [tuple(centre.tolist()) for centre in centres] == sorted(tuple(centre.tolist()) for centre in centres)


def test_simple_polygons_their_areas_and_lengths() -> None:
    points = torch.tensor([SQUARE]).expand(6, -1, -1)
    rows = [[1, 2, 3, 4, 0], [4, 3, 2, 1, 0], [1, 3, 2, 4, 0], [1, 2, 0, 0, 0], [1, 2, 3, 1, 0], [1, 2, 3, 0, 0]]
    pointers = torch.tensor(rows)
    assert is_simple(points, pointers).tolist() == [True, True, False, False, False, True]
    assert area_of(points, pointers).tolist() == [1, -1, 0, 0, 0.5, 0.5]
    torch.testing.assert_close(length_of(points, pointers)[[0, 3, 5]], torch.tensor([4, 2, 2 + 2**0.5]))
