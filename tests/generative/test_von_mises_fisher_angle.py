"""The angle to the mean: the ends of its range, shapes, and a rejection that does not end."""

import math

import pytest
import torch

from mereo.errors import MereoError
from mereo.generative import von_mises_fisher_angle
from mereo.generative.von_mises_fisher_angle import draw_angle


@pytest.mark.parametrize("d", [2, 3, 16, 1024])
def test_ends_of_the_range(d: int) -> None:
    for kappa in (0.0, 1e-9, 1.0, 1e6):
        angle = draw_angle(torch.full((3000,), kappa), d)
        assert angle.dtype == torch.float64 and (angle >= 0).all() and (angle <= math.pi).all()


def test_shapes() -> None:
    assert draw_angle(torch.ones(2, 0, 3), 5).shape == (2, 0, 3)
    assert draw_angle(torch.ones(()), 5).shape == ()


def test_an_endless_rejection_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(von_mises_fisher_angle, "_MOST_PROPOSALS", 1)
    with pytest.raises(MereoError, match="dimension 4 did not end after 1 proposals"):
        draw_angle(torch.full((1000,), 2.0), 4)
