"""Circles of an image: worked numbers, the rule with loops, limits, bad input."""

from itertools import product

import pytest
import torch

from mereo.core import Circle
from mereo.errors import UsageError


@pytest.mark.parametrize(
    ("radius", "tokens"), [(1, 1), (2, 9), (3, 25), (4, 45), (5, 69), (8, 193), (16, 793), (32, 3205)]
)
def test_tokens_of_a_whole_circle(radius: int, tokens: int) -> None:
    circle = Circle((2 * radius + 1, 2 * radius + 1), radius)
    widths = circle.widths
    assert sum(2 * widths[abs(dy)] + 1 for dy in range(-circle.reach, circle.reach + 1)) == tokens
    if radius <= 8:
        assert circle.near()[circle.image // 2].sum() == tokens


def test_neighbours_near_the_border() -> None:
    expected = torch.tensor([[4, 6, 6, 4], [6, 9, 9, 6], [6, 9, 9, 6], [4, 6, 6, 4]])
    assert torch.equal(Circle((4, 4), 2).allowed(16, 16).sum(1).view(4, 4), expected)


def test_pairs_of_an_image_and_its_text() -> None:
    circle = Circle((8, 8), 3, 512)
    assert circle.pairs == circle.allowed(576, 576).sum() == 328_836
    circle = Circle((8, 8), 3, 512, 4)
    allowed = circle.allowed(576, 580)
    assert allowed[512 + 3 * 8 + 3].sum() == 512 + 25 + 4 == 541, "all text, a circle, and four blocks"
    assert allowed[0].sum() == 576 and not allowed[0, 576:].any(), "text does not attend to blocks"
    assert circle.pairs == allowed.sum()


@pytest.mark.parametrize(
    ("radius", "pairs", "billions"),
    [(8, 710_052, 63.486), (16, 2_594_880, 86.647), (32, 8_085_036, 154.110), (100, 4096**2, 260.919)],
)
def test_operations_of_the_published_sizes(radius: int, pairs: int, billions: float) -> None:
    circle = Circle((64, 64), radius, 512)
    assert circle.image_pairs == pairs
    assert 4 * 3072 * circle.pairs / 1e9 == pytest.approx(billions, abs=5e-4)


@pytest.mark.parametrize(
    ("grid", "radius", "text", "factor"),
    [((5, 7), 2.5, 2, None), ((6, 4), 3, 0, 2), ((1, 9), 4, 1, None), ((7, 1), 1, 3, None), ((4, 4), 0.5, 1, 1)],
)
def test_the_rule(grid: tuple[int, int], radius: float, text: int, factor: int | None) -> None:
    circle = Circle(grid, radius, text, factor)
    places = [None] * text + list(product(*map(range, grid)))

    def talks(q: int, k: int) -> bool:
        if k >= len(places):
            return q >= text
        a, b = places[q], places[k]
        return a is None or b is None or (a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2 < radius**2

    senders = len(places) + circle.pooled
    expected = [[talks(q, k) for k in range(senders)] for q in range(len(places))]
    assert circle.allowed(len(places), senders).tolist() == expected
    assert circle.pairs == sum(map(sum, expected))


def test_limits() -> None:
    assert Circle((3, 4), 13**0.5 + 0.001).allowed(12, 12).all(), "beyond the diagonal it is full attention"
    assert not Circle((3, 4), 13**0.5).allowed(12, 12).all() and not Circle((2, 5), 4).near()[0, 4]
    assert torch.equal(Circle((3, 4), 1).allowed(12, 12), torch.eye(12, dtype=torch.bool))
    assert Circle((3, 3), 1e30).reach == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((4, 4), 0), "radius is 0"), (((4, 4), float("inf")), "radius is inf"), (((4, 4), float("nan")), "radius"),
        (((4,), 2), "rows and columns"), (((0, 4), 2), "at least 1"), (((4, 4), 2, -1), "text is -1"),
        (((8, 12), 2, 0, 3), r"down_factor is 3 .*\[1, 2, 4\]"),
    ],
)  # fmt: skip
def test_bad_input(arguments, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Circle(*arguments)


def test_another_number_of_tokens() -> None:
    with pytest.raises(UsageError, match=r"5 receivers.*has 18 and 18"):
        Circle((4, 4), 2, 2).allowed(5, 18)
