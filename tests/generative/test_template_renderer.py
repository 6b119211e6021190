"""The renderer against bilinear sampling with loops, its gradients, and the likelihood against all presences."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mereo.errors import UsageError
from mereo.generative import TemplateRenderer
from mereo.generative.pose_tree import affine
from mereo.generative.template_renderer import inverse

D = torch.float64


def renderer(leaves: int = 2, channels: int = 1, img_size: Any = (5, 4), **options: Any) -> TemplateRenderer:
    torch.manual_seed(0)
    own = TemplateRenderer(leaves, channels, img_size, template_size=3, **options).double()
    with torch.no_grad():
        own.template_logits.copy_(0.1 * torch.randn_like(own.template_logits))
    return own


def poses(*sizes: int) -> Tensor:
    return torch.eye(2, 3, dtype=D).flatten() + 0.3 * torch.randn(*sizes, 6, dtype=D)


def sampled(template: Tensor, pose: Tensor, height: int, width: int) -> Tensor:
    """One warped channel, pixel by pixel: the centre of a pixel, its place in the template, its four neighbours."""
    side, image = len(template), torch.zeros(height, width, dtype=D)
    for row, column in itertools.product(range(height), range(width)):
        point = torch.tensor([(2 * column + 1) / width - 1, (2 * row + 1) / height - 1, 1.0], dtype=D)
        x, y, _ = torch.linalg.inv(affine(pose)) @ point
        across, down = ((x + 1) * side - 1) / 2, ((y + 1) * side - 1) / 2
        for r, c in itertools.product(range(side), range(side)):
            weight = (1 - (down - r).abs()).clamp(min=0) * (1 - (across - c).abs()).clamp(min=0)
            image[row, column] += weight * template[r, c]
    return image


@pytest.mark.parametrize("channels", [1, 2])
def test_parts_are_bilinear_samples_of_templates(channels: int) -> None:
    own, given = renderer(2, channels), poses(3, 2, 2)
    parts = own(given)
    assert parts.shape == (3, 2, 2, channels, 5, 4)
    for s, b, i, c in itertools.product(range(3), range(2), range(2), range(channels)):
        torch.testing.assert_close(parts[s, b, i, c], sampled(own.templates[i, c], given[s, b, i], 5, 4))


def test_gradients_of_parts_and_likelihood() -> None:
    own, given = renderer(), poses(2, 2).requires_grad_()
    logits = own.template_logits.detach().clone().requires_grad_()

    def parts(poses: Tensor, logits: Tensor) -> Tensor:
        return torch.func.functional_call(own, {"template_logits": logits}, (poses,))

    assert torch.autograd.gradcheck(parts, (given, logits))
    images, presence = torch.rand(2, 1, 5, 4, dtype=D), torch.rand(2, 2, dtype=D).requires_grad_()
    assert torch.autograd.gradcheck(lambda p, u: own.log_likelihood(images, p, u), (given, presence))


def test_the_identity_shows_the_template_and_a_pose_moves_it_as_it_says() -> None:
    own = renderer(1, 1, 3)
    identity = torch.eye(2, 3, dtype=D).view(1, 1, 6)
    torch.testing.assert_close(own(identity)[0, 0], own.templates[0])
    moved = identity.clone()
    moved[..., 2] = 2 / 3  # one pixel to the right
    expected = torch.nn.functional.pad(own.templates[0], (1, 0))[..., :3]
    torch.testing.assert_close(own(moved)[0, 0], expected)


def test_the_likelihood_is_the_mean_over_all_presences() -> None:
    own, given = renderer(3, image_std=0.4), poses(2, 3)
    images, presence = torch.rand(2, 1, 5, 4, dtype=D), torch.rand(2, 3, dtype=D)
    parts, expected = own(given), torch.zeros(2, dtype=D)
    for there in itertools.product((0.0, 1.0), repeat=3):
        u = torch.tensor(there, dtype=D)
        weight = (u * presence + (1 - u) * (1 - presence)).prod(1)
        made = torch.einsum("i,bichw->bchw", u, parts)
        expected += weight * torch.distributions.Normal(made, 0.4).log_prob(images).sum((1, 2, 3))
    torch.testing.assert_close(own.log_likelihood(images, given, presence), expected)


@pytest.mark.parametrize("entry", [0.0, 1e30, -1e30])
@pytest.mark.parametrize("side", [1, 4])
def test_flat_and_huge_poses_and_images_are_finite(entry: float, side: int) -> None:
    own = TemplateRenderer(2, 1, side, template_size=side)
    given = torch.full((3, 2, 6), entry).requires_grad_()
    bound = own.log_likelihood(torch.full((3, 1, side, side), entry), given, torch.full((3, 2), 0.5))
    bound.sum().backward()
    assert bound.isfinite().all()
    assert given.grad is not None and given.grad.isfinite().all()
    assert own.template_logits.grad is not None and own.template_logits.grad.isfinite().all()


def test_the_inverse_is_that_of_matrices() -> None:
    given = poses(20)
    torch.testing.assert_close(affine(inverse(given)) @ affine(given), torch.eye(3, dtype=D).expand(20, 3, 3))
    assert math.isfinite(inverse(torch.zeros(6)).sum().item())


def test_half_precision_is_close() -> None:
    own = renderer().float()
    given, images, presence = poses(2, 2).float(), torch.rand(2, 1, 5, 4), torch.rand(2, 2)
    exact = own.log_likelihood(images, given, presence)
    half = own.bfloat16().log_likelihood(images.bfloat16(), given.bfloat16(), presence.bfloat16())
    torch.testing.assert_close(half.float(), exact, rtol=0.1, atol=5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: r(torch.zeros(2, 3, 6)), "poses are"),
        (lambda r: r.log_likelihood(torch.zeros(2, 5, 4), torch.zeros(2, 2, 6), torch.zeros(2, 2)), "images are"),
        (lambda r: TemplateRenderer(2, image_std=0.0), "image_std is 0"),
        (lambda r: TemplateRenderer(2, img_size=0), "img_size is 0"),
    ],
)
def test_wrong_arguments(call: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call(renderer())
