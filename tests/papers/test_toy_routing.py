"""The picture of the toy model: labels stand at their lines, apart where they would cover each other."""

import pytest

from papers.kiefer_generative_capsules.toy_routing import apart


@pytest.mark.parametrize(
    ("heights", "expected"),
    [
        ((0, 50, 20), [0, 50, 20]),
        ((5, 5, 50), [0, 10, 50]),
        ((7, 7, 7), [-3, 7, 17]),
        # Two that were far enough from the third come too near to it when they are moved apart.
        ((0, 8, 16), [-2, 8, 18]),
        ((0, 0, 12), [-6, 4, 14]),
    ],
)
def test_labels_are_apart(heights, expected):
    assert apart(heights, 10) == pytest.approx(expected)
