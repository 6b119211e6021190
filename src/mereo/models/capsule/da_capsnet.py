"""DA-CapsNet: CapsNet with attention on the first maps and on the capsules, before they are routed.

Source: Huang, Zhou 2020, Scientific Reports 10:11383, doi:10.1038/s41598-020-68453-w. Its equations were not available:
the places of the two layers are the paper's, their computation is ours.
Cost at 28x28: 0.28 G multiply-adds an image, including 0.08 for attention on the 20x20 map.
"""

from functools import partial

from torch import Tensor, nn

from mereo.core import Grid, squash
from mereo.core.shapes import image_size
from mereo.errors import check_choice, check_positive, check_steps
from mereo.layers.capsules import PaddedConv2d, PrimaryCapsules, flat_capsules, primary_grid
from mereo.mechanisms.attention import PositionAttention
from mereo.mechanisms.gate import CapsuleGate, SqueezeExcite
from mereo.mechanisms.routing import DynamicRouting
from mereo.models.capsule_classifier import CapsuleClassifier
from mereo.models.registry import register_model

REDUCTION, LEAST_HIDDEN = 16, 8
"""Channels for each hidden unit of the gate of channels, and its fewest such units: very few may all die."""
SOURCE = "doi:10.1038/s41598-020-68453-w"
RECONSTRUCTION = "the equations were not available"


class DACapsNet(CapsuleClassifier):
    """Dynamic routing of capsules that come from two layers of attention.

    image -> conv 9x9, ReLU -> attention -> conv 9x9 stride 2 -> attention, squash -> routing -> class capsules

    Args:
        num_classes, in_chans, img_size: as in timm; sides of at least 17.
        kind: of both attentions: "self", in which positions attend to positions, or "channel", which scales channels by
            a function of their means.
        caps_attention: of the second one: "kind", or "capsule", which scales each capsule by its share of an attention
            over all of them.
        scale: divide the scores of "self" by the root of the size of the keys, which bounds their growth.
        conv_channels: of the first convolution.
        primary_types, primary_dim: kinds of primary capsules at a position, and their pose size.
        class_dim: pose size of a class capsule.
        routing_steps: passes of routing, at least 1.
        decoder: have a decoder that rebuilds the image from one class capsule.

    Shapes: images (batch, in_chans, height, width) -> lengths (batch, num_classes).

    Deviates: the forms of both layers are ours, as the equations of the paper were not available. With "self" the
        network has the 7 million parameters that other papers report. The optimiser of the recipe is ours too.

    Reference: doi:10.1038/s41598-020-68453-w.
    """

    first_conv = "conv"
    channels_last = False

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 1,
        img_size: int | tuple[int, int] = 28,
        *,
        kind: str = "self",
        caps_attention: str = "kind",
        scale: bool = False,
        conv_channels: int = 256,
        primary_types: int = 32,
        primary_dim: int = 8,
        class_dim: int = 16,
        routing_steps: int = 3,
        decoder: bool = True,
    ) -> None:
        super().__init__()
        check_choice("kind", kind, ("self", "channel"))
        check_choice("caps_attention", caps_attention, ("kind", "capsule"))
        check_positive(conv_channels=conv_channels, primary_types=primary_types, primary_dim=primary_dim)
        check_positive(class_dim=class_dim)
        check_steps(1, routing_steps=routing_steps)
        self.image_shape, self.kind, self.scale = (in_chans, *image_size(img_size)), kind, scale
        self.primary_dim, self.class_dim = primary_dim, class_dim
        self.routing_steps, self.with_decoder = routing_steps, decoder
        self.places = primary_grid(*self.image_shape[1:], primary_types)
        self.senders = primary_types * self.places.rows * self.places.columns
        self.num_features = self.senders * primary_dim
        height, width = self.image_shape[1:]
        self.conv = PaddedConv2d(in_chans, conv_channels, 9, same=False)
        self.conv_attention = self._attention(conv_channels, Grid(height - 8, width - 8, 1, 4.5, 1.0))
        self.primary = PrimaryCapsules(conv_channels, primary_types, primary_dim)
        self.caps_attention = self._capsule_attention(caps_attention)
        self.feature_info = [{"num_chs": conv_channels, "reduction": 1, "module": "conv_attention"}]
        self.reset_classifier(num_classes)

    def _attention(self, channels: int, places: Grid) -> nn.Module:
        if self.kind == "channel":
            return SqueezeExcite(channels, max(channels // REDUCTION, LEAST_HIDDEN))
        layer = PositionAttention(channels, scale=self.scale)
        layer.coupling.senders = layer.coupling.receivers = places
        return layer

    def _capsule_attention(self, caps_attention: str) -> nn.Module:
        if caps_attention == "kind":
            return self._attention(self.places.types * self.primary_dim, self.places._replace(types=1))
        gate = CapsuleGate(self.primary_dim)
        gate.coupling.senders = self.places
        return gate

    def make_classifier(self) -> nn.Module:
        sizes = (self.senders, self.num_classes, self.primary_dim, self.class_dim)
        head = DynamicRouting(*sizes, steps=self.routing_steps)
        head.coupling.senders = self.places
        return head

    def stage(self, index: int, inputs: Tensor) -> Tensor:
        return self.conv_attention(self.conv(inputs).relu_())

    def neck(self, maps: list[Tensor]) -> Tensor:
        """The primary capsules (batch, types * rows * columns, pose)."""
        capsules = self.primary.conv(maps[0])
        if isinstance(self.caps_attention, CapsuleGate):
            return squash(self.caps_attention(flat_capsules(capsules, self.primary_dim)))
        return squash(flat_capsules(self.caps_attention(capsules), self.primary_dim))


_register = partial(register_model, module=DACapsNet, source=SOURCE, reconstruction=RECONSTRUCTION, recipe="da_capsnet")

_register(
    "da_capsnet_28",
    summary="CapsNet with two layers of attention, for 28x28 grey images: 7.0 million parameters and a decoder of 1.4.",
    parameters=8_380_050,
    tiny={"img_size": 20, "conv_channels": 8, "primary_types": 2, "primary_dim": 4, "class_dim": 6},
    variants={
        "channel": {"kind": "channel", "in_chans": 2, "img_size": (19, 22), "decoder": False},
        "capsule": {"caps_attention": "capsule", "scale": True},
    },
)
_register(
    "da_capsnet_32",
    summary="CapsNet with two layers of attention, for 32x32 colour images.",
    parameters=11_913_602,
    in_chans=3,
    img_size=32,
)
