"""AA-CapsNet: CapsNet with one layer of self-attention in place of routing, in two readings of its abstract.

Source: Pucci, Micheloni, Martinel 2021, "Self-attention agreement among capsules", ICCV workshops,
https://air.uniud.it/handle/11390/1221110. Only the abstract was available.
Cost at 28x28: 0.21 G multiply-adds an image in the two convolutions. Reading "votes" has 0.28 G more, most
of them attention between 1,152 children.
"""

from functools import partial
from typing import Any

from torch import Tensor, nn

from mereo.core import squash
from mereo.core.shapes import image_size
from mereo.errors import UsageError, check_choice, check_positive
from mereo.layers.capsules import PaddedConv2d, PrimaryCapsules, flat_capsules, primary_grid
from mereo.mechanisms.attention import PositionAttention
from mereo.mechanisms.routing import VoteAttentionRouting
from mereo.models.base import VisionModel
from mereo.models.capsule_classifier import CapsuleClassifier
from mereo.models.registry import register_model

READINGS = ("map", "votes")
SOURCE = "https://air.uniud.it/handle/11390/1221110"
RECONSTRUCTION = "only the abstract was available"


class _Convolutions(VisionModel):
    """The two convolutions of CapsNet, which both readings begin with."""

    first_conv = "conv"
    channels_last = False

    def _build(self, shape: tuple[int, int, int], conv_channels: int, types: int, dim: int) -> None:
        check_positive(conv_channels=conv_channels, primary_types=types, primary_dim=dim)
        self.image_shape, self.primary_dim = shape, dim
        self.places = primary_grid(*shape[1:], types)
        self.senders = types * self.places.rows * self.places.columns
        self.num_features = self.senders * dim
        self.conv = PaddedConv2d(shape[0], conv_channels, 9, same=False)
        self.primary = PrimaryCapsules(conv_channels, types, dim)
        for layer in (self.conv, self.primary.conv):
            nn.init.kaiming_normal_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        self.feature_info = [{"num_chs": conv_channels, "reduction": 1, "module": "conv"}]

    def stage(self, index: int, inputs: Tensor) -> Tensor:
        return self.conv(inputs).relu_()


class AACapsNet(_Convolutions):
    """Classify capsules that attended to each other over the positions of their map.

    image -> conv 9x9, ReLU -> conv 9x9 stride 2, squash -> maps + gamma attention(maps) -> linear, ReLU -> linear

    Args:
        num_classes, in_chans, img_size: as in timm; sides of at least 17.
        reading: "map" (this class): positions attend to positions, and a classifier reads all capsules; or "votes"
            (`AAVotesCapsNet`): children attend to each other's votes, and class capsules are the means of the results.
        conv_channels: of the first convolution.
        primary_types, primary_dim: kinds of capsules at a position, and their pose size.
        hidden: size between the two linear layers; only for "map".
        class_dim, per_class, reduce: only for "votes".

    Shapes: images (batch, in_chans, height, width) -> logits (batch, num_classes).

    Deviates: of the paper only the abstract was available. The sizes inside and the classifier are ours; with them the
        number of parameters is the 6.6 million that other papers report.

    Reference: Pucci, Micheloni, Martinel 2021, the abstract.
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 1,
        img_size: int | tuple[int, int] = 28,
        *,
        reading: str = "map",
        conv_channels: int = 256,
        primary_types: int = 32,
        primary_dim: int = 8,
        hidden: int = 128,
        class_dim: int = 16,
        per_class: bool = False,
        reduce: str = "mean",
    ) -> None:
        super().__init__()
        check_choice("reading", reading, ("map",))
        check_positive(hidden=hidden)
        if (class_dim, per_class, reduce) != (16, False, "mean"):
            raise UsageError(
                f"class_dim is {class_dim}, per_class {per_class} and reduce {reduce!r}, which reading 'map' does not"
                " have; leave them out, or give reading='votes'."
            )
        self._build((in_chans, *image_size(img_size)), conv_channels, primary_types, primary_dim)
        self.hidden = hidden
        self.attention = PositionAttention(primary_types * primary_dim)
        self.attention.coupling.senders = self.attention.coupling.receivers = self.places._replace(types=1)
        self.reset_classifier(num_classes)

    @classmethod
    def class_for(cls, arguments: Any) -> type[VisionModel]:
        check_choice("reading", arguments["reading"], READINGS)
        return AAVotesCapsNet if arguments["reading"] == "votes" else cls

    def make_classifier(self) -> nn.Module:
        head = nn.Sequential(
            nn.Linear(self.num_features, self.hidden), nn.ReLU(), nn.Linear(self.hidden, self.num_classes)
        )
        for layer in head:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
        return head

    def neck(self, maps: list[Tensor]) -> Tensor:
        """The attended capsules (batch, capsules, pose), by type, row, column; they may be longer than 1."""
        capsules = squash(self.primary.conv(maps[0]).unflatten(1, (-1, self.primary_dim)), 2).flatten(1, 2)
        return flat_capsules(self.attention(capsules), self.primary_dim)


class AAVotesCapsNet(_Convolutions, CapsuleClassifier):
    """Class capsules that are means of votes after the children attended to each other's votes.

    image -> conv 9x9, ReLU -> conv 9x9 stride 2, squash -> votes -> attention between children -> mean, squash

    Args:
        num_classes, in_chans, img_size, reading, conv_channels, primary_types, primary_dim: as for `AACapsNet`.
        hidden: of reading "map"; leave it out.
        class_dim: pose size of a class capsule.
        per_class: the votes for each class attend by themselves.
        reduce: "mean" or "sum" of the votes.

    Shapes: images (batch, in_chans, height, width) -> lengths (batch, num_classes).

    Deviates: as `AACapsNet`; the weights of this form number 6.8 million.

    Reference: Pucci, Micheloni, Martinel 2021, the abstract.
    """

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 1,
        img_size: int | tuple[int, int] = 28,
        *,
        reading: str = "votes",
        conv_channels: int = 256,
        primary_types: int = 32,
        primary_dim: int = 8,
        hidden: int = 128,
        class_dim: int = 16,
        per_class: bool = False,
        reduce: str = "mean",
    ) -> None:
        super().__init__()
        check_choice("reading", reading, ("votes",))
        check_positive(class_dim=class_dim)
        if hidden != 128:
            raise UsageError(f"hidden is {hidden}, which reading 'votes' does not have; leave it out.")
        self._build((in_chans, *image_size(img_size)), conv_channels, primary_types, primary_dim)
        self.class_dim, self.per_class, self.reduce = class_dim, per_class, reduce
        self.reset_classifier(num_classes)

    def make_classifier(self) -> nn.Module:
        sizes = (self.senders, self.num_classes, self.primary_dim, self.class_dim)
        head = VoteAttentionRouting(*sizes, per_class=self.per_class, reduce=self.reduce)
        head.coupling.senders = self.places
        head.attention.coupling.senders = self.places._replace(feeds=0)
        return head

    def neck(self, maps: list[Tensor]) -> Tensor:
        """The primary capsules (batch, types * rows * columns, pose)."""
        return self.primary(maps[0])


_register = partial(register_model, module=AACapsNet, source=SOURCE, reconstruction=RECONSTRUCTION, recipe="aa_capsnet")

_register(
    "aa_capsnet_28",
    summary="Self-attention in place of routing, for 28x28 grey images: 6.6 million parameters.",
    parameters=6_592_971,
    tiny={"img_size": 20, "conv_channels": 8, "primary_types": 2, "primary_dim": 4},
    variants={
        "votes": {"reading": "votes", "in_chans": 2, "img_size": (19, 22), "class_dim": 5},
        "votes, per class": {"reading": "votes", "per_class": True, "reduce": "sum", "class_dim": 5},
    },
)
_register(
    "aa_capsnet_32",
    summary="Self-attention in place of routing, for 32x32 colour images.",
    parameters=7_551_947,
    in_chans=3,
    img_size=32,
)
