"""Constellations: points of a few templates, each translated, rotated and scaled at random; the object of each point is
hidden.

Source: Kosiorek et al. 2019, arXiv:1906.06818; made here as in Nazabal, Williams 2021, arXiv:2103.06676.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mereo.errors import UsageError, unknown

SHAPES: dict[str, tuple[tuple[float, float], ...]] = {
    "square": ((-1, 1), (1, 1), (1, -1), (-1, -1)),
    "triangle": ((1, 2), (3, 1), (3, 3)),
}
"""Corners of the templates by name, before they are centred and scaled."""

CLASSIC = ("square", "triangle", "square")
"""The objects of the published experiment."""


class Templates(NamedTuple):
    """Parts of all objects, one after the other.

    Attributes:
        points (parts, 2): position of a part in its object.
        owner (parts,): the object it belongs to.
    """

    points: Tensor
    owner: Tensor


class Constellations(NamedTuple):
    """Images that are sets of points; slots of a batch that hold none are masked out.

    Attributes:
        points (images, slots, 2): in [-1, 1]; 0 where absent.
        labels (images, slots): the object a point belongs to; clutter has one label more than the objects have.
        mask (images, slots): True where there is a point.
    """

    points: Tensor
    labels: Tensor
    mask: Tensor


def make_templates(shapes: Sequence[str] = CLASSIC) -> Templates:
    """The named shapes, each centred and scaled so that the squares of its coordinates sum to its number of points."""
    if not shapes:
        raise UsageError("shapes is empty; give at least one of " + ", ".join(SHAPES) + ".")
    points, owner = [], []
    for number, name in enumerate(shapes):
        if name not in SHAPES:
            raise unknown("shape", name, SHAPES)
        corners = torch.tensor(SHAPES[name], dtype=torch.float64)
        corners = corners - corners.mean(0)
        points.append(corners * (len(corners) / corners.square().sum()) ** 0.5)
        owner.append(torch.full((len(corners),), number))
    return Templates(torch.cat(points), torch.cat(owner))


def similarity_basis(points: Tensor) -> Tensor:
    """F_n with x = F_n y: the position of the part when its object has the pose y = (t_x, t_y, s cos a, s sin a).

    F_n = [[1, 0, p_x, p_y], [0, 1, p_y, -p_x]]:  moved by t, scaled by s, turned by -a.

    Shapes: points (..., 2) -> (..., 2, 4).
    """
    x, y = points.unbind(-1)
    one, zero = torch.ones_like(x), torch.zeros_like(x)
    return torch.stack((torch.stack((one, zero, x, y), -1), torch.stack((zero, one, y, -x), -1)), -2)


def make_constellations(
    images: int,
    generator: torch.Generator,
    *,
    shapes: Sequence[str] = CLASSIC,
    noise: float = 0.0,
    clutter: int = 0,
) -> Constellations:
    """Draw constellations: x = F(p_n + noise) y_k with y_k ~ N(0, I), for the objects k that the image shows.

    Each object is shown with probability 1/2, but never none. The points of an image are then brought into [-1, 1] by
    its own least and largest coordinate, and points of no object are added, uniform in that square.

    Args:
        images: how many.
        generator: of the random numbers.
        shapes: an object each, see `SHAPES`.
        noise: standard deviation of what moves the points of the templates, whose root mean square is 1.
        clutter: how many points of no object an image has.

    Shapes: slots are the parts of all objects in order, and then the clutter. Coordinates are float64.

    Reference: arXiv:2103.06676, section 5.1.
    """
    if images < 1:
        raise UsageError(f"images is {images}; it must be at least 1.")
    if noise < 0 or clutter < 0:
        raise UsageError(f"noise is {noise} and clutter {clutter}; neither may be below 0.")
    templates = make_templates(shapes)
    objects, device = len(shapes), generator.device

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64, device=device)

    points, owner = (x.to(device) for x in templates)
    # One number a set of objects that is not empty, so that all of these are equally likely.
    sets = torch.randint(1, 1 << objects, (images, 1), generator=generator, device=device)
    mask = (sets >> torch.arange(objects, device=device) & 1).bool()[:, owner]
    moved = points + noise * normal(images, len(points), 2)
    basis = similarity_basis(moved)
    poses = normal(images, objects, basis.shape[-1])[:, owner]
    places = (basis @ poses.unsqueeze(-1)).squeeze(-1)
    low = places.masked_fill(~mask.unsqueeze(-1), torch.inf).amin((1, 2), keepdim=True)
    high = places.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax((1, 2), keepdim=True)
    places = (2 * (places - low) / (high - low) - 1).masked_fill(~mask.unsqueeze(-1), 0)
    stray = 2 * torch.rand(images, clutter, 2, generator=generator, dtype=torch.float64, device=device) - 1
    return Constellations(
        torch.cat((places, stray), 1),
        torch.cat((owner, owner.new_full((clutter,), objects))).expand(images, -1).contiguous(),
        torch.cat((mask, mask.new_ones(images, clutter)), 1),
    )
