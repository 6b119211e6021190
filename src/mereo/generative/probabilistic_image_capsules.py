"""Probabilistic capsules on pixels: parents, leaves under them, and templates that the leaves place in an image.

Source: Smith, Schut, Gal, van der Wilk 2020, arXiv:2004.03553; sizes and the encoder are ours.
Cost: a bound costs one bound of `PoseTree`, and one warped template for each leaf and sample.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from mereo.errors import UsageError, check_positive
from mereo.generative.belief_ascent import ascend
from mereo.generative.latent_leaves import any_parent, leaf_bound, leaf_routing
from mereo.generative.pose_tree import LARGEST, POSE, PoseBelief, PoseTree
from mereo.generative.probabilistic_capsules import SetEncoder
from mereo.generative.template_renderer import TemplateRenderer

LEAF_SCALE = 0.4
"""Size at which templates start, as a share of the image's."""


class ImageBelief(NamedTuple):
    """q of some images: poses and presences of leaves, (batch, leaves, ...), and of parents, (batch, parents, ...)."""

    leaves: PoseBelief
    parents: PoseBelief


class ImageExplanation(NamedTuple):
    """The leaves and parents of some images.

    Attributes:
        belief: about their poses and presences.
        routing (batch, leaves, parents + 1): the probability of each parent; none first, for an absent leaf.
        elbo (batch,): the evidence lower bound.
        trace (batch, steps + 1): the bound during test-time optimisation, from the encoder's on; empty without it.
        parts (batch, leaves, channels, height, width): what each leaf adds to the image, at its mean pose, times its
            presence. Their sum is the reconstruction.
    """

    belief: ImageBelief
    routing: Tensor
    elbo: Tensor
    trace: Tensor
    parts: Tensor


class LeafEncoder(nn.Module):
    """Beliefs about leaves from an image: two convolutions that halve it, and two layers.

    h = ReLU(B flatten(ReLU(conv ReLU(conv image))) + b),   belief = C h + c, around the first poses

    Args:
        image_shape: channels, height and width.
        start: initial means of the poses, (leaves, 6); learned.
        hidden: size of the layer, and twice the channels of the convolutions.

    Shapes: images (batch, channels, height, width) -> `PoseBelief` of (batch, leaves, ...).
    """

    def __init__(self, image_shape: tuple[int, int, int], start: Tensor, hidden: int = 64) -> None:
        super().__init__()
        channels, height, width = image_shape
        cells = -(-height // 4) * -(-width // 4)
        self.first = nn.Conv2d(channels, hidden // 2, 3, stride=2, padding=1)
        self.second = nn.Conv2d(hidden // 2, hidden // 2, 3, stride=2, padding=1)
        self.third = nn.Linear(cells * (hidden // 2), hidden)
        self.start = nn.Parameter(start.clone())
        self.last = nn.Linear(hidden, len(start) * (2 * POSE + 1))
        with torch.no_grad():
            self.last.weight *= 0.1

    def forward(self, images: Tensor) -> PoseBelief:
        maps = self.second(self.first(images).relu()).relu().flatten(1)
        numbers = self.last(self.third(maps).relu()).unflatten(-1, (len(self.start), -1))
        mean, log_std, logits = numbers.split((POSE, POSE, 1), -1)
        return PoseBelief((self.start + mean).clamp(-LARGEST, LARGEST), log_std - 3, logits.squeeze(-1) + 1)


class ProbabilisticImageCapsules(nn.Module):
    """Images made by leaves whose poses have parents: a `PoseTree` over a `TemplateRenderer`, with an encoder.

    ELBO = E_q log N(image; sum_i u_i G_i(A_i), image_std^2) + E_q log p(A, u, s | t, parents) + H(q) - KL(parents)

    A leaf is present, u_i = 1, iff it has a parent. Presences of leaves are summed out in closed form, presences
    of parents by enumeration; entropies, divergences and the tree are exact, see `leaf_bound`. Only the mean of the
    rendered image over poses of leaves is by reparameterised samples. Relations, templates, presences, precisions and
    the encoders are learned by ascent on the bound, without labels.

    Args:
        leaves, parents: how many there are.
        in_chans, img_size, template_size, image_std: as for `TemplateRenderer`.
        hidden: size of the layers of both encoders, even.
        prior_std: of the entries of a parent's pose around the identity.

    Shapes: images (batch, in_chans, height, width); see `ImageExplanation`.

    Deviates: the belief about parents is read from that about leaves by `SetEncoder`, weighted by presence; q(u_i = 1)
        is one number wherever some parent is present. The paper's own choices could not be checked.

    Reference: arXiv:2004.03553. There is no public code; bound and gradients equal loops over leaves and parents.
    """

    def __init__(
        self,
        leaves: int = 4,
        parents: int = 2,
        in_chans: int = 1,
        img_size: int | tuple[int, int] = 16,
        *,
        template_size: int = 8,
        image_std: float = 0.2,
        hidden: int = 64,
        prior_std: float = 0.3,
    ) -> None:
        super().__init__()
        if hidden % 2 or hidden < 2:
            raise UsageError(f"hidden is {hidden}; it must be even and at least 2.")
        self.tree = PoseTree(leaves, parents, prior_std=prior_std)
        self.renderer = TemplateRenderer(leaves, in_chans, img_size, template_size=template_size, image_std=image_std)
        with torch.no_grad():
            # Leaves start small and apart, where all parents expect them.
            start = LEAF_SCALE * self.tree.identity.repeat(leaves, 1)
            start[:, 2::3] = 0.5 * (2 * torch.rand(leaves, 2) - 1)
            self.tree.relation.copy_(start + 0.01 * torch.randn_like(self.tree.relation))
            self.tree.log_precision.fill_(5.0)
        self.leaf_encoder = LeafEncoder(self.renderer.image_shape, start, hidden)
        self.parent_encoder = SetEncoder(leaves, parents, hidden)

    def encode(self, images: Tensor) -> ImageBelief:
        """The encoder's belief about leaves and, from them, about parents."""
        leaves = self.leaf_encoder(self.renderer.check(images))
        return ImageBelief(leaves, self.parent_encoder(leaves.mean, leaves.presence))

    def elbo(
        self, images: Tensor, belief: ImageBelief, *, samples: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        """The evidence lower bound, (batch,), without a normalising constant missing.

        Args:
            samples: of the poses of all leaves, at least 1.
            generator: of the samples.
        """
        check_positive(samples=samples)
        return self._bound(images, belief, self._noise(belief, samples, generator))

    def _noise(self, belief: ImageBelief, samples: int, generator: torch.Generator | None) -> Tensor:
        return self.tree.noise((samples, *belief.leaves.mean.shape), belief.leaves.mean, generator)

    def _bound(self, images: Tensor, belief: ImageBelief, noise: Tensor) -> Tensor:
        """The bound for given noise of leaf poses, (samples, batch, leaves, 6)."""
        leaves, parents = belief
        seen = self.renderer.log_likelihood(images, leaves.mean + leaves.std * noise, leaves.presence).mean(0)
        blank = self.renderer.log_likelihood(images, leaves.mean, torch.zeros_like(leaves.presence))
        share = any_parent(self.tree, parents)
        return share * seen + (1 - share) * blank + leaf_bound(self.tree, leaves, parents)

    def loss(self, images: Tensor, *, samples: int = 1, generator: torch.Generator | None = None) -> Tensor:
        """The mean of the negative bound under the encoder's belief, (); options as for `elbo`."""
        return -self.elbo(images, self.encode(images), samples=samples, generator=generator).mean()

    def forward(
        self, images: Tensor, *, samples: int = 8, generator: torch.Generator | None = None
    ) -> ImageExplanation:
        belief = self.encode(images)
        bound = self.elbo(images, belief, samples=samples, generator=generator)
        return self._explanation(belief, bound, bound.new_zeros(bound.shape[0], 0))

    def optimise(
        self,
        images: Tensor,
        *,
        steps: int = 100,
        lr: float = 0.01,
        samples: int = 8,
        generator: torch.Generator | None = None,
    ) -> ImageExplanation:
        """Improve the encoder's belief about each image by Adam on its bound, with all weights frozen.

        The noise of the samples is drawn once and held, so that bounds compare, and the best belief of each image is
        kept: under that noise the bound is never below the encoder's. Under other noise it is a little lower.

        Args:
            steps, lr: of Adam, at least 1 step.
            samples, generator: as for `elbo`.
        """
        check_positive(samples=samples)
        with torch.no_grad():
            start = self.encode(images)
        noise = self._noise(start, samples, generator)

        def belief(*parts: Tensor) -> ImageBelief:
            return ImageBelief(PoseBelief(*parts[:3]), PoseBelief(*parts[3:]))

        best, highest, trace = ascend(
            lambda *parts: self._bound(images, belief(*parts), noise), (*start.leaves, *start.parents), steps, lr
        )
        with torch.no_grad():
            return self._explanation(belief(*best), highest, trace)

    def _explanation(self, belief: ImageBelief, bound: Tensor, trace: Tensor) -> ImageExplanation:
        leaves, parents = belief
        routing = leaf_routing(self.tree, leaves, parents)
        parts = self.renderer(leaves.mean) * (1 - routing[..., 0, None, None, None])
        return ImageExplanation(belief, routing, bound, trace, parts)


def prob_image_capsules_toy() -> ProbabilisticImageCapsules:
    """The preset for `make_glyphs`: 16 x 16 pixels, 2 parents, 4 leaves with templates of 8 x 8."""
    return ProbabilisticImageCapsules(4, 2, img_size=16, template_size=8)
