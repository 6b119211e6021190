"""A generative capsule network for constellations: objects are parents with several parts in a capsule mixture.

Source: Kiefer, Millidge, Tschantz, Buckley 2022, arXiv:2209.02567, eq. 7; inverted by `mereo.generative.inversion`.
Cost: of a start, images * slots * parts a sweep, and one inverse an object.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mereo.errors import check_positive
from mereo.generative.inversion import invert
from papers.common.constellations import similarity_basis
from papers.constellations.random_start import random_responsibilities

BROAD = 0.15
"""Starts settle with a sigma of at least this before they do with the network's: with a small one most never move."""
CLUTTER_SIGMA = 3**-0.5
"""Of a point that belongs to no object: normal, with the variance of the uniform in [-1, 1] x [-1, 1]."""


class Explanation(NamedTuple):
    """The explanation of some images by a network.

    Attributes:
        responsibilities (images, slots, parts), with one more column for clutter; rows of absent points are 0.
        mean (images, objects, pose), covariance (images, objects, pose, pose): beliefs about the objects' poses.
        elbo (images,): the evidence lower bound.
    """

    responsibilities: Tensor
    mean: Tensor
    covariance: Tensor
    elbo: Tensor

    def or_better(self, other: "Explanation") -> "Explanation":
        """For each image what has the higher bound."""
        better = other.elbo > self.elbo
        pairs = zip(self, other, strict=True)
        return Explanation(*(torch.where(better.view(-1, *(1,) * (a.dim() - 1)), b, a) for a, b in pairs))


@dataclass(frozen=True)
class ConstellationCapsNet:
    """Points as independent parts of objects with unknown poses: a capsule mixture without directions.

    z_i ~ uniform over the parts,   y_k ~ N(0, I),   x_i | z_i = n ~ N(F(p_n) y_owner(n), sigma^2 I)

    Attributes:
        templates (parts, 2): p_n, the position of a part in its object.
        owner (parts,): the object of each part.
        sigma: standard deviation of a coordinate around its place.
        clutter: whether points may belong to no object: one component more, as likely as each part.

    Deviates: kappa is 0, for the direction of a point from the middle of the image is no property of it. Proportions of
        the parts are equal and not learned: learned ones raise the bound most by giving all points to one object.

    Reference: arXiv:2209.02567, eq. 7, with parents of several parts.
    """

    templates: Tensor
    owner: Tensor
    sigma: float = BROAD
    clutter: bool = False

    def __post_init__(self) -> None:
        check_positive(sigma=self.sigma)

    @property
    def objects(self) -> int:
        """How many objects there are."""
        return int(self.owner.max()) + 1

    @property
    def basis(self) -> Tensor:
        """F_n: (parts, 2, pose)."""
        return similarity_basis(self.templates)

    def random_start(self, mask: Tensor, generator: torch.Generator) -> Tensor:
        """Random responsibilities, (images, slots, parts), with one more column for clutter."""
        return random_responsibilities(mask, len(self.owner) + self.clutter, generator, sharp=self.clutter)

    def settle(self, points: Tensor, mask: Tensor, start: Tensor, *, sigma: float, sweeps: int) -> Explanation:
        """From given responsibilities by `sweeps` sweeps, with this sigma.

        Shapes: points (images, slots, 2), mask (images, slots), start (images, slots, parts [+ 1]).
        """
        basis, owner, spread = self.basis, self.owner, self.templates.new_full(self.owner.shape, sigma)
        if self.clutter:
            # An object whose only part is in the middle whatever its pose.
            basis = torch.cat((basis, torch.zeros_like(basis[:1])))
            owner = torch.cat((owner, owner.new_tensor([self.objects])))
            spread = torch.cat((spread, spread.new_tensor([CLUTTER_SIGMA])))
        start = start.masked_fill(~mask.unsqueeze(-1), 1 / start.shape[-1])
        inversion = invert(points, basis, sigma=spread, owner=owner, mask=mask, start=start, sweeps=sweeps)
        # Its bound counts a direction of every point, uniform on the circle; points have none.
        elbo = inversion.elbo + mask.sum(1) * math.log(2 * math.pi)
        objects = slice(self.objects)
        return Explanation(
            inversion.responsibilities, inversion.mean[:, objects], inversion.covariance[:, objects], elbo
        )

    def explain(
        self, points: Tensor, mask: Tensor, generator: torch.Generator, *, starts: int = 5, sweeps: int = 20
    ) -> Explanation:
        """The best of several random starts, image by image: each settles broadly first and then with sigma.

        Shapes: points (images, slots, 2), mask (images, slots); see `Explanation`.
        """
        check_positive(starts=starts, sweeps=sweeps)
        best: Explanation | None = None
        for _ in range(starts):
            r = self.random_start(mask, generator)
            if self.sigma < BROAD:
                r = self.settle(points, mask, r, sigma=BROAD, sweeps=sweeps).responsibilities
            explanation = self.settle(points, mask, r, sigma=self.sigma, sweeps=sweeps)
            best = explanation if best is None else best.or_better(explanation)
        assert best is not None
        return best

    def labels(self, explanation: Explanation) -> Tensor:
        """The object of each point's likeliest part; for clutter, one more than the last object: (images, slots)."""
        owner = torch.cat((self.owner, self.owner.new_tensor([self.objects])))
        return owner[explanation.responsibilities.argmax(-1)]
