"""CapsNet without labels: latent capsules compete, and the few winners rebuild the image.

Source: Rawlinson, Ahmed, Kowadlo 2018, arXiv:1804.06094, and the authors' code (Cerenaut/sparse-unsupervised-capsules).
Cost: as CapsNet with 16 parents; a training step at 28x28 keeps 151 MB of votes for 128 images.
"""

from functools import partial
from typing import NamedTuple

from torch import Tensor, nn

from mereo.core.initialise import start_as_capsnet
from mereo.core.shapes import image_size
from mereo.errors import UsageError, check_positive
from mereo.layers.capsules import FullyConnectedDecoder, PaddedConv2d, PrimaryCapsules, primary_grid
from mereo.mechanisms.routing import CompetingCapsules
from mereo.models.base import VisionModel
from mereo.models.registry import register_model


class Rebuilt(NamedTuple):
    """The output of a `SparseCapsNet`.

    Attributes:
        images (batch, channels, height, width): in (0, 1), rebuilt from the weighted capsules.
        poses (batch, capsules, pose): of the latent capsules, before they are weighted.
        mask (batch, capsules): the weight of each.
    """

    images: Tensor
    poses: Tensor
    mask: Tensor


class SparseCapsNet(VisionModel):
    """Latent capsules that are trained to rebuild images, and a linear classifier of all of them.

    image -> conv 9x9, ReLU -> conv 9x9 stride 2, squash -> routing -> latent capsules v;
    scores = linear(v), rebuilt image = decoder(weights by rank * v)

    The task "reconstruction" trains all but the classifier, without labels; a classifier is then fitted to the frozen
    capsules: `mereo train --weights RUN --freeze backbone`.

    Args:
        num_classes, in_chans, img_size: as in timm; the image must survive both convolutions (at least 17).
        conv_channels: of the first convolution.
        primary_types, primary_dim: kinds of primary capsules at a position, and their pose size.
        latent_capsules, latent_dim: how many latent capsules there are, which have nothing to do with classes, and
            their pose size.
        routing_steps: passes of routing.
        mask, score, winners: which latent capsules are decoded, see `CompetingCapsules`.

    Shapes: images (batch, in_chans, height, width) -> scores (batch, num_classes); features
        (batch, latent_capsules, latent_dim), not weighted.

    Deviates: the linear classifier is ours; the authors fit a support vector machine to the features.

    Reference: arXiv:1804.06094. The competition equals loops, and its mask of labels makes the network CapsNet, with
        the same loss and gradients; the authors' code runs on TensorFlow 1 only and was not run.
    """

    first_conv = "conv"
    channels_last = False
    unscored_parts = ("decoder",)

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 1,
        img_size: int | tuple[int, int] = 28,
        *,
        conv_channels: int = 256,
        primary_types: int = 32,
        primary_dim: int = 8,
        latent_capsules: int = 16,
        latent_dim: int = 16,
        routing_steps: int = 3,
        mask: str = "weighted-routing",
        score: str = "types",
        winners: int = 0,
    ) -> None:
        super().__init__()
        check_positive(conv_channels=conv_channels, primary_types=primary_types, primary_dim=primary_dim)
        check_positive(latent_capsules=latent_capsules, latent_dim=latent_dim)
        self.image_shape = (in_chans, *image_size(img_size))
        places = primary_grid(*self.image_shape[1:], primary_types)
        self.conv = PaddedConv2d(in_chans, conv_channels, 9, same=False)
        self.primary = PrimaryCapsules(conv_channels, primary_types, primary_dim)
        self.latent = CompetingCapsules(
            primary_types * places.rows * places.columns, latent_capsules, primary_dim, latent_dim, types=primary_types,
            steps=routing_steps, mask=mask, score=score, winners=winners,
        )  # fmt: skip
        self.latent.routing.coupling.senders = places
        self.decoder = FullyConnectedDecoder(latent_capsules * latent_dim, self.image_shape)
        start_as_capsnet(self.conv, std=0.05)
        start_as_capsnet(self.primary, self.latent, self.decoder)
        self.num_features = latent_capsules * latent_dim
        self.feature_info = [{"num_chs": conv_channels, "reduction": 1, "module": "conv"}]
        self.reset_classifier(num_classes)

    def make_classifier(self) -> nn.Module:
        return nn.Linear(self.num_features, self.num_classes)

    def stage(self, index: int, inputs: Tensor) -> Tensor:
        return self.conv(inputs).relu_()

    def neck(self, maps: list[Tensor]) -> Tensor:
        """The latent capsules, not weighted: (batch, latent_capsules, latent_dim)."""
        children = self.primary(maps[0])
        if self.latent.gates.watched and self.latent.mask != "label":
            return self.latent.compete(children).poses
        return self.latent.routing(children)

    def rebuild(self, images: Tensor, labels: Tensor | None = None) -> Rebuilt:
        """The images that the decoder makes of the weighted latent capsules; in training mode wins are counted.

        Args:
            labels: int64 (batch,), for mask="label".

        Shapes: images (batch, in_chans, height, width); see `Rebuilt`.
        """
        maps = self._maps(images, [0])
        if self.latent.mask == "label" and labels is not None and labels.dim() != 1:
            raise UsageError(f"labels are {tuple(labels.shape)} with mask 'label'; give one label an image.")
        latent = self.latent.compete(self.primary(maps[0]), labels)
        return Rebuilt(self.decoder(latent.masked.flatten(1)), latent.poses, latent.mask)


_register = partial(register_model, module=SparseCapsNet, source="arXiv:1804.06094")

_register(
    "sparse_caps_mnist",
    summary="16 latent capsules that compete to rebuild 28x28 grey images, and a linear classifier of them.",
    parameters=9_152_282,
    recipe="sparse_caps",
    tiny={"img_size": 19, "conv_channels": 8, "primary_types": 2, "primary_dim": 4, "latent_capsules": 5},
    variants={"two winners": {"winners": 2, "score": "official", "latent_dim": 6, "routing_steps": 2}},
)
_register(
    "sparse_caps_affnist",
    summary="The same for 40x40 images, such as digits padded by 6 pixels and shifted by up to 6.",
    parameters=17_066_570,
    recipe="sparse_caps_affnist",
    img_size=40,
)
