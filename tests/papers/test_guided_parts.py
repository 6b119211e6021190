"""What is measured of masks in the experiment on self-guided attention."""

import pytest
import torch

from papers.multiscale_self_guided_attention.guided_parts import boundary_distance, overlap


def test_a_square_beside_itself_moved_by_two_pixels() -> None:
    true, found = torch.zeros(2, 8, 8, dtype=torch.bool)
    true[2:5, 1:4] = True
    found[2:5, 3:6] = True
    assert overlap(found, true) == pytest.approx(2 * 3 / 18) and overlap(true, true) == 1
    assert boundary_distance(true, true) == 0
    # Of the 8 pixels of each edge, three are on the other edge, two at 1 and three at 2.
    assert boundary_distance(found, true) == pytest.approx((3 * 0 + 2 * 1 + 3 * 2) / 8)
