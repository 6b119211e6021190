"""Neighbourhoods of a grid: worked numbers, a reference written from the rule with loops, limits, bad input."""

from itertools import product

import pytest
import torch

from mereo.core import Neighborhood
from mereo.errors import UsageError


def keys_of(i: int, L: int, w: int, s: int, d: int, causal: bool) -> list[int]:
    """Keys of position i of one axis, from the rule."""
    g, p = i % d, i // d
    n = len(range(g, L, d))
    if causal:
        leader = min((p // s) * s + s - 1, n - 1)
        start, end = max(leader - w + 1, 0), p + 1
    else:
        leader = min((p // s) * s + s // 2, n - 1)
        start = min(max(leader - w // 2, 0), n - w)
        end = start + w
    return [g + d * t for t in range(start, end)]


@pytest.mark.parametrize(
    ("length", "options", "expected"),
    [
        (
            7,
            {"window": 3, "dilation": 2},
            [[0, 2, 4], [1, 3, 5], [0, 2, 4], [1, 3, 5], [2, 4, 6], [1, 3, 5], [2, 4, 6]],
        ),
        (8, {"window": 4, "stride": 2}, [[*range(a, a + 4)] for a in (0, 0, 1, 1, 3, 3, 4, 4)]),
        (8, {"window": 4, "stride": 4}, [[*range(a, a + 4)] for a in (0, 0, 0, 0, 4, 4, 4, 4)]),
        (7, {"window": 4}, [[*range(a, a + 4)] for a in (0, 0, 0, 1, 2, 3, 3)]),
    ],
)
def test_worked_numbers(length: int, options: dict[str, int], expected: list[list[int]]) -> None:
    assert Neighborhood((length,), **options).keys().tolist() == expected


def test_one_axis_equals_the_rule() -> None:
    checked = 0
    for L, w, d, causal in product(range(2, 13), range(2, 6), range(1, 4), (False, True)):
        for s in range(1, w + 1) if w * d <= L else ():
            allowed = Neighborhood((L,), w, s, d, causal).allowed(L, L)
            expected = [[j in keys_of(i, L, w, s, d, causal) for j in range(L)] for i in range(L)]
            assert allowed.tolist() == expected, (L, w, s, d, causal)
            assert causal or (allowed.sum(1) == w).all()
            assert allowed.diagonal().all(), "a token attends to itself"
            checked += 1
    assert checked > 400


@pytest.mark.parametrize(
    ("grid", "window", "stride", "dilation", "causal"),
    [
        ((6, 5), (3, 2), 1, (2, 1), (True, False)),
        ((4, 7), (4, 3), (2, 3), (1, 2), False),
        ((3, 4, 5), (2, 3, 2), (1, 1, 2), (1, 1, 2), (True, False, False)),
    ],
)
def test_several_axes_are_a_product(grid, window, stride, dilation, causal) -> None:
    topology = Neighborhood(grid, window, stride, dilation, causal)
    places = list(product(*map(range, grid)))
    lines = topology.lines

    def talks(i: tuple[int, ...], j: tuple[int, ...]) -> bool:
        return all(
            b in keys_of(a, x.length, x.window, x.stride, x.dilation, x.causal)
            for a, b, x in zip(i, j, lines, strict=True)
        )

    expected = [[talks(i, j) for j in places] for i in places]
    assert topology.allowed(len(places), len(places)).tolist() == expected


def test_limits() -> None:
    assert Neighborhood((6,), 6).allowed(6, 6).all(), "a window of the whole axis is full attention"
    assert torch.equal(Neighborhood((6,), 6, causal=True).allowed(6, 6), torch.ones(6, 6, dtype=torch.bool).tril())
    seen_by = Neighborhood((9,), 3).allowed(9, 9).sum(0)
    assert seen_by.unique().numel() > 1, "tokens near a border are seen by more or fewer"
    assert hash(Neighborhood((6,), 3)) == hash(Neighborhood((6,), (3,))), "equal values are one value"


@pytest.mark.parametrize(
    ("grid", "options", "message"),
    [
        ((5,), {"window": 6}, r"window is 6.*5 tokens; possible windows: 2 to 5"),
        ((8, 8), {"window": (3, 1)}, r"window is 1.*axis 1.*2 to 8"),
        ((8,), {"window": 3, "dilation": 3}, r"dilation 3.*2 to 2; for this window a dilation up to 2"),
        ((8,), {"window": 3, "dilation": 5}, r"none at this dilation"),
        ((8,), {"window": 3, "stride": 4}, r"stride is 4.*from 1 to the window, 3"),
        ((8,), {"window": 3, "stride": 0}, r"stride is 0"),
        ((8,), {"window": 3, "dilation": 0}, r"dilation is 0"),
        ((8,), {"window": 2.5}, r"window is 2.5.*whole number"),
        ((8, 8), {"window": 3, "stride": (1, None)}, r"stride is None.*whole number"),
        ((8, 8), {"window": (3, 3, 3)}, r"window is \(3, 3, 3\) for a grid of 2 axes"),
        ((2, 2, 2, 2), {"window": 2}, r"one to three axes"),
    ],
)
def test_bad_input(grid, options, message) -> None:
    with pytest.raises(UsageError, match=message):
        Neighborhood(grid, **options)


def test_another_number_of_tokens() -> None:
    with pytest.raises(UsageError, match=r"5 receivers.*has 6 and 6"):
        Neighborhood((6,), 3).allowed(5, 6)
