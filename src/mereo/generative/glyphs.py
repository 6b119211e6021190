"""Toy images of two glyphs made of strokes, each glyph under an affine pose that its strokes share."""

from typing import NamedTuple

import torch
from torch import Tensor

from mereo.core.shapes import image_size
from mereo.errors import check_positive

STROKES = torch.tensor(
    [
        [[-0.75, -0.45], [-0.15, -0.45]],  # T: the bar,
        [[-0.45, -0.35], [-0.45, 0.45]],  # the stem;
        [[0.15, -0.45], [0.42, 0.4]],  # V: down,
        [[0.75, -0.45], [0.48, 0.4]],  # up.
    ]
)
"""Ends (x, y) of the strokes in an image that spans [-1, 1]^2, y down: (4, 2, 2)."""
OWNER = torch.tensor([0, 0, 1, 1])
"""The glyph of each stroke."""
CENTRES = torch.tensor([[-0.45, 0.0], [0.45, 0.0]])
WIDTH = 0.07
"""Half the width of a stroke."""


class Glyphs(NamedTuple):
    """Images of glyphs.

    Attributes:
        images (images, 1, height, width): in [0, 1].
        poses (images, 2, 6): the affine map of each glyph, the identity where it is drawn as it is.
        present (images, 2): bool, which glyphs there are.
        strokes (images, 4): bool, which strokes there are.
    """

    images: Tensor
    poses: Tensor
    present: Tensor
    strokes: Tensor


def draw_strokes(ends: Tensor, there: Tensor, img_size: int | tuple[int, int]) -> Tensor:
    """Images of strokes with soft edges, the brightest at each pixel.

    Shapes: ends (images, strokes, 2, 2), there bool (images, strokes) -> (images, 1, height, width).
    """
    height, width = image_size(img_size)
    rows, columns = ((2 * torch.arange(side) + 1) / side - 1 for side in (height, width))
    pixels = torch.stack((columns.expand(height, width), rows.unsqueeze(1).expand(height, width)), -1).to(ends)
    start, along = ends[..., 0, None, None, :], (ends[..., 1, :] - ends[..., 0, :])[..., None, None, :]
    from_start = pixels - start
    share = (from_start * along).sum(-1) / along.square().sum(-1).clamp(min=1e-12)
    distance = (from_start - share.clamp(0, 1).unsqueeze(-1) * along).norm(dim=-1)
    soft = 2 / min(height, width)
    strokes = (1 - (distance - WIDTH) / soft).clamp(0, 1) * there[..., None, None]
    return strokes.amax(1, keepdim=True)


def make_glyphs(
    images: int,
    generator: torch.Generator,
    *,
    img_size: int | tuple[int, int] = 16,
    spread: float = 0.1,
    turn: float = 0.25,
    missing: float = 0.3,
) -> Glyphs:
    """Draw a T on the left and a V on the right, each present half of the time, but not both absent.

    Args:
        images: how many.
        generator: of all random numbers.
        img_size: of the images.
        spread: standard deviation of the offset of a glyph and of the log of its size.
        turn: largest rotation of a glyph, in radians.
        missing: probability that a stroke of a present glyph is left out.
    """
    check_positive(images=images)
    sets = torch.randint(1, 4, (images, 1), generator=generator)
    present = (sets >> torch.arange(2) & 1).bool()
    angles = turn * (2 * torch.rand(images, 2, generator=generator) - 1)
    scale = (spread * torch.randn(images, 2, generator=generator)).exp()
    offset = spread * torch.randn(images, 2, 2, generator=generator)
    linear = torch.stack((angles.cos(), -angles.sin(), angles.sin(), angles.cos()), -1).unflatten(-1, (2, 2))
    linear = linear * scale[..., None, None]
    # Glyphs turn and grow about their own centres.
    moved = CENTRES - (linear @ CENTRES.unsqueeze(-1)).squeeze(-1) + offset
    ends = (linear[:, OWNER].unsqueeze(2) @ STROKES.unsqueeze(-1)).squeeze(-1) + moved[:, OWNER].unsqueeze(2)
    there = present[:, OWNER] & (torch.rand(images, len(OWNER), generator=generator) >= missing)
    poses = torch.cat((linear, moved.unsqueeze(-1)), -1).flatten(-2)
    return Glyphs(draw_strokes(ends, there, img_size), poses, present, there)
