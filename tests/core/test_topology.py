"""grid_groups against loops."""

import pytest

from mereo.core import grid_groups
from mereo.errors import UsageError


@pytest.mark.parametrize(
    ("fine", "coarse"), [((4, 4), (2, 2)), ((6, 4), (2, 2)), ((5, 7), (2, 3)), ((3, 3), (3, 3)), ((8, 2), (1, 1))]
)
def test_groups_equal_loops(fine: tuple[int, int], coarse: tuple[int, int]) -> None:
    q, p = fine[0] // coarse[0], fine[1] // coarse[1]
    groups: list[list[int]] = [[] for _ in range(coarse[0] * coarse[1])]
    for row in range(fine[0]):
        for column in range(fine[1]):
            if row // q < coarse[0] and column // p < coarse[1]:
                groups[row // q * coarse[1] + column // p].append(row * fine[1] + column)
    assert grid_groups(fine, coarse).tolist() == groups


@pytest.mark.parametrize(("fine", "coarse"), [((2, 4), (4, 4)), ((4, 2), (4, 4))])
def test_a_coarse_grid_larger_than_the_fine(fine: tuple[int, int], coarse: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="cannot lie under"):
        grid_groups(fine, coarse)
