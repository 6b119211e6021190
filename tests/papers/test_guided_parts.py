"""What is measured of masks in the experiment on self-guided attention."""

import pytest
import torch

from papers.multiscale_self_guided_attention.guided_parts import overlap


def test_a_square_beside_itself_moved_by_two_pixels() -> None:
    true, found = torch.zeros(2, 8, 8, dtype=torch.bool)
    true[2:5, 1:4] = True
    found[2:5, 3:6] = True
    assert overlap(found, true) == pytest.approx(2 * 3 / 18) and overlap(true, true) == 1
