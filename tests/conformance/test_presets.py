"""The largest published preset of each family of images, at its own depth and narrow: beyond tiny presets."""

from typing import Any

import pytest
import torch

import mereo
from hostile.presets import blank_gradients, largest, second_derivatives, small
from mereo.models.registry import families

pytestmark = pytest.mark.long
every_family = pytest.mark.parametrize("family", sorted(families("images")))


def made(family: str) -> Any:
    """The preset as it starts."""
    name = largest(family)
    torch.manual_seed(0)
    model = mereo.create_model(name, **(small(name) or families()[family].tiny or {}))
    return model.eval()


@every_family
def test_blank_images_give_finite_gradients_at_the_start(family: str) -> None:
    model = made(family)
    assert blank_gradients(model) == []
    model.zero_grad()
    assert blank_gradients(model.train()) == []


@every_family
def test_second_derivatives(family: str) -> None:
    assert second_derivatives(made(family)) < 1e-3


@every_family
def test_half_precision(family: str) -> None:
    model = made(family).half()
    images = torch.rand(2, *model.image_shape).half().requires_grad_()
    scores = model(images)
    scores.float().sum().backward()
    assert scores.dtype == torch.float16 and images.grad is not None
    if not scores.isfinite().all():
        # Deep residual networks whose norms have seen no images grow beyond 65,504, the largest number of float16.
        wide = model.float()(images.detach().float())
        assert wide.abs().max() > 1e3


@every_family
def test_a_folded_copy_answers_the_same(family: str) -> None:
    model = made(family)
    images = torch.rand(17, *model.image_shape)  # more than few, which `mereo predict` folds for
    with torch.no_grad():
        expected, answers = model(images), model.fuse()(images)
    assert (expected - answers).abs().max() <= 1e-3 * expected.abs().max()
