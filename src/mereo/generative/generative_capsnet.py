"""GenerativeCapsNet: an image's parts, explained by parents that predict them, learned without labels."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from mereo.core.shapes import conv_out, image_size
from mereo.errors import UsageError, check_positive
from mereo.generative.generative_capsules import GenerativeCapsules
from mereo.generative.inversion import Inversion
from mereo.layers.capsules import PaddedConv2d, PrimaryCapsules

KERNEL = 5
FIELD, STRIDE = 9, 2
"""A part looks at 9x9 pixels; neighbours are 2 pixels apart."""


class Explained(NamedTuple):
    """The result of `GenerativeCapsNet.explain`.

    Attributes:
        parts: the capsules of the encoder, (batch, children, child_dim).
        inversion: which parents explain them; `inversion.mean` (batch, parents, parent_dim) are the parents.
        predicted: the parts as the parents would have them, (batch, children, child_dim).
        rebuilt: the image that the decoder makes of those, (batch, channels, height, width).
    """

    parts: Tensor
    inversion: Inversion
    predicted: Tensor
    rebuilt: Tensor


class GenerativeCapsNet(nn.Module):
    """Image -> parts -> parents by inversion; parents -> parts -> image by prediction.

    encoder: conv 5x5, ReLU, conv 5x5 stride 2, squash; decoder: the same backwards, sigmoid; between them
    `GenerativeCapsules`.

    It is trained in two steps, both without labels: `rebuild_loss`, the parts as an autoencoder, and then, with the
    parts fixed, `elbo` of the parents. Trained together the parts would vanish, because parts that are all zero are
    explained best.

    Args:
        parents, parent_dim: how many wholes, and the size of their poses.
        in_chans, img_size: of the images.
        channels: of the first convolution.
        types, child_dim: kinds of parts at a place, and the size of their poses.
        sweeps, kappa, sparsity: see `GenerativeCapsules`.

    Shapes: images in [0, 1], (batch, in_chans, height, width).

    Ours; the parents follow the model of arXiv:2209.02567, equations 7 and 8.
    """

    def __init__(
        self,
        parents: int = 10,
        in_chans: int = 1,
        img_size: int | tuple[int, int] = 28,
        *,
        parent_dim: int = 16,
        channels: int = 64,
        types: int = 8,
        child_dim: int = 8,
        sweeps: int = 5,
        kappa: float = 1.0,
        sparsity: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive(in_chans=in_chans, channels=channels, types=types)
        self.image_shape = (in_chans, *image_size(img_size))
        sides = self.image_shape[1:]
        if min(sides) < FIELD:
            raise UsageError(f"img_size is {img_size}; its sides must be at least {FIELD}, the field of a part.")
        self.grid = tuple(conv_out(conv_out(side, KERNEL), KERNEL, STRIDE) for side in sides)
        self.types = types
        self.conv = PaddedConv2d(in_chans, channels, KERNEL, same=False)
        self.primary = PrimaryCapsules(channels, types, child_dim, KERNEL, STRIDE)
        # What the stride left out at the lower and right edge.
        rest = ((sides[0] - FIELD) % STRIDE, (sides[1] - FIELD) % STRIDE)
        self.up = nn.ConvTranspose2d(types * child_dim, channels, KERNEL, STRIDE, output_padding=rest)
        self.last = nn.ConvTranspose2d(channels, in_chans, KERNEL)
        self.capsules = GenerativeCapsules(
            types * self.grid[0] * self.grid[1], parents, child_dim, parent_dim,
            sweeps=sweeps, kappa=kappa, sparsity=sparsity,
        )  # fmt: skip

    def parts(self, images: Tensor) -> Tensor:
        """The parts that the encoder sees: (batch, types * rows * columns, child_dim)."""
        if tuple(images.shape[1:]) != self.image_shape:
            raise UsageError(f"images are {tuple(images.shape)}; this network takes (batch, {self.image_shape}).")
        return self.primary(self.conv(images).relu())

    def decode(self, parts: Tensor) -> Tensor:
        """The image of these parts: (batch, children, child_dim) -> (batch, channels, height, width) in (0, 1)."""
        maps = parts.unflatten(1, (self.types, *self.grid)).movedim(-1, 2).flatten(1, 2)
        return self.last(self.up(maps).relu()).sigmoid()

    def rebuild_loss(self, images: Tensor) -> Tensor:
        """Squared error of the image rebuilt from its own parts, summed over pixels, mean over images: ()."""
        return (self.decode(self.parts(images)) - images).square().flatten(1).sum(1).mean()

    def elbo(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        """The bound on the log evidence of the parts, which are held, for each image: (batch,)."""
        with torch.no_grad():
            parts = self.parts(images)
        return self.capsules(parts, mask)

    @torch.no_grad()
    def explain(self, images: Tensor, mask: Tensor | None = None) -> Explained:
        """Which parents explain the parts of these images.

        Args:
            mask: bool (batch, children), True = the part was seen; see `seen`.
        """
        parts = self.parts(images)
        inversion = self.capsules.invert(parts, mask)
        predicted = self.capsules.predict(inversion)
        if mask is not None:
            # An unseen part has no responsibilities; its parents are weighted by the prior of each.
            prior = self.capsules.log_prior.softmax(-1)
            unseen = torch.einsum("mn,mnde,bne->bmd", prior, self.capsules.weight, inversion.mean)
            predicted = torch.where(mask.unsqueeze(-1), predicted, unseen)
        return Explained(parts, inversion, predicted, self.decode(predicted))

    def visible_parts(self, hidden: Tensor) -> Tensor:
        """The parts whose fields have no hidden pixel: bool (batch, height, width) -> (batch, children)."""
        field = nn.functional.max_pool2d(hidden.unsqueeze(1).float(), FIELD, STRIDE) > 0
        return ~field.flatten(1).repeat(1, self.types)

    @torch.no_grad()
    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Sample images: parents from their prior, then parts, then pixels. (count, channels, height, width)."""
        return self.decode(self.capsules.sample(count, generator).poses)
