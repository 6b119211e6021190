"""Leaves as pixels: learned templates, each warped by the pose of its leaf, added up to an image.

Source: Smith, Schut, Gal, van der Wilk 2020, arXiv:2004.03553; how leaves make one image is ours.
Cost: leaves * pixels, four template pixels each.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core.shapes import image_size
from mereo.errors import UsageError, check_positive
from mereo.generative.pose_tree import LARGEST

SMALLEST_AREA = 1e-3
"""Below which the determinant of a pose is raised in size, so that its inverse stays finite."""
OUTSIDE = 10.0
"""Largest coordinate in a template, to which others are clamped; a template spans [-1, 1] and is 0 from 2 on."""

GAIN = 10.0
"""Factor of the templates' logits, so that with one rate of Adam they learn as fast as the encoder."""


def inverse(poses: Tensor) -> Tensor:
    """The inverse of affine poses, six numbers (..., 6) -> (..., 6); determinants near 0 keep their sign and grow."""
    a, b, x, c, d, y = poses.clamp(-LARGEST, LARGEST).unbind(-1)
    area = a * d - b * c
    area = torch.where(area.abs() < SMALLEST_AREA, torch.full_like(area, SMALLEST_AREA).copysign(area.detach()), area)
    return torch.stack((d, -b, b * y - d * x, -c, a, c * x - a * y), -1) / area.unsqueeze(-1)


class TemplateRenderer(nn.Module):
    """Place the template of each leaf in the image by its pose, and add the leaves that are present.

    G_i(p) = T_i(A_i^-1 p),   T_i = sigmoid(10 theta_i);  log p(image | A, u) = log N(image; sum_i u_i G_i, image_std^2)

    T is read bilinearly and is 0 outside of its square. A pose maps the square [-1, 1]^2 of the template to the square
    of the image, as A_i = A_j M_ij requires, so pixels are looked up through its inverse.

    Args:
        leaves: how many there are, each with a template of its own.
        in_chans, img_size: of the images.
        template_size: of the templates, in pixels.
        image_std: standard deviation of the Gaussian noise of a pixel; fixed.

    Shapes: poses (..., leaves, 6) -> parts (..., leaves, channels, height, width).

    Deviates: leaves add up; an image of the paper's own could not be checked. For a sum, and for no maximum, the mean
        of the Gaussian log likelihood over independent presences is closed: see `log_likelihood`. Where strokes cross,
        a sum is brighter than an image is.

    Reference: arXiv:2004.03553.
    """

    def __init__(
        self,
        leaves: int,
        in_chans: int = 1,
        img_size: int | tuple[int, int] = 16,
        *,
        template_size: int = 8,
        image_std: float = 0.2,
    ) -> None:
        super().__init__()
        check_positive(leaves=leaves, in_chans=in_chans, template_size=template_size, image_std=image_std)
        self.image_shape, self.image_std = (in_chans, *image_size(img_size)), image_std
        self.template_logits = nn.Parameter(0.01 * torch.randn(leaves, in_chans, template_size, template_size) - 0.1)

    @property
    def templates(self) -> Tensor:
        """T in (0, 1): (leaves, channels, rows, columns)."""
        return (GAIN * self.template_logits).sigmoid()

    def check(self, images: Tensor) -> Tensor:
        """The images, clamped; UsageError for other shapes."""
        if tuple(images.shape[1:]) != self.image_shape or not images.is_floating_point():
            raise UsageError(
                f"images are {tuple(images.shape)}, {images.dtype}; give floats (batch, {self.image_shape})."
            )
        return images.clamp(-LARGEST, LARGEST)

    def forward(self, poses: Tensor) -> Tensor:
        """The warped templates G_i, whether present or not."""
        leaves, (channels, height, width) = len(self.template_logits), self.image_shape
        if poses.shape[-2:] != (leaves, 6):
            raise UsageError(f"poses are {tuple(poses.shape)}; their last two axes must be {leaves} leaves and 6.")
        lookup = inverse(poses).flatten(0, -3).transpose(0, 1)  # (leaves, images, 6)
        identity = torch.eye(2, 3, dtype=lookup.dtype, device=lookup.device).unsqueeze(0)
        pixels = F.affine_grid(identity, [1, channels, height, width], align_corners=False).flatten(0, 2)
        turn, shift = lookup.unflatten(-1, (2, 3)).split((2, 1), -1)
        grid = (pixels @ turn.mT + shift.mT).clamp(-OUTSIDE, OUTSIDE)  # (leaves, images, height * width, 2)
        # One template looks up the rows of all images at once, so that no template is copied.
        rows = grid.reshape(leaves, -1, width, 2)
        parts = F.grid_sample(self.templates, rows, mode="bilinear", padding_mode="zeros", align_corners=False)
        parts = parts.unflatten(2, (-1, height)).permute(2, 0, 1, 3, 4)
        return parts.reshape(*poses.shape[:-1], channels, height, width)

    def log_likelihood(self, images: Tensor, poses: Tensor, presence: Tensor) -> Tensor:
        """The mean of log p(image | A, u) over independent u_i ~ Bernoulli(presence_i), in closed form.

        E_u |x - sum_i u_i G_i|^2 = |x - sum_i pi_i G_i|^2 + sum_i pi_i (1 - pi_i) |G_i|^2

        Shapes: images (batch, channels, height, width), poses (..., batch, leaves, 6), presence (batch, leaves) ->
            (..., batch).
        """
        images, parts = self.check(images), self(poses)
        share = presence[..., None, None, None]
        spread = (share * (1 - share) * parts.square()).sum(-4)
        errors = ((images - (share * parts).sum(-4)).square() + spread).flatten(-3).sum(-1)
        constant = math.log(self.image_std) + math.log(2 * math.pi) / 2
        return -errors / (2 * self.image_std**2) - math.prod(self.image_shape) * constant
