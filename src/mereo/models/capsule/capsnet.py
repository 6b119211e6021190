"""CapsNet: two wide convolutions, capsules, and routing by agreement to one capsule a class.

Source: Sabour, Frosst, Hinton 2017, arXiv:1710.09829, and the authors' code. Without routing: arXiv:2209.02567.
Cost at 28x28: 201 M multiply-adds an image, 95 % of them in the second convolution.
"""

from functools import partial
from typing import Any

from torch import Tensor, nn

from mereo.core.initialise import start_as_capsnet
from mereo.core.shapes import image_size
from mereo.errors import check_choice, check_not_negative, check_positive
from mereo.layers.capsules import PaddedConv2d, PrimaryCapsules, primary_grid
from mereo.mechanisms.routing import DynamicRouting
from mereo.models.capsule_classifier import CapsuleClassifier
from mereo.models.registry import register_model


class CapsNet(CapsuleClassifier):
    """Capsules with dynamic routing.

    image -> conv 9x9, ReLU -> conv 9x9 stride 2, squash -> routing -> class capsules; scores are their lengths

    Args:
        num_classes, in_chans, img_size: as in timm; the image must survive both convolutions (at least 17 without
            padding).
        conv_channels: of the first convolution.
        primary_types, primary_dim: kinds of primary capsules at a position, and their pose size.
        class_dim: pose size of a class capsule.
        padding: "valid" or "same".
        routing_steps: passes of routing; 0 is no routing at all, see `coupling`.
        coupling: the fixed coupling of `routing_steps=0`, "unit" or "uniform".
        leaky: let votes go to "none of the above".
        learned_prior: learn the logits from which routing starts.
        middle_capsules, middle_dim: capsules of a layer between the primary and the class capsules, routed to like
            these, and their pose size; 0 is no such layer.
        capsule_bias: a bias for the class capsules, which the authors' code has.
        detach_routing: gradients only through the last pass; not the paper's.
        decoder: have a decoder that rebuilds the image from one class capsule.
        init: "default" (PyTorch's convolutions, small uniform transforms) or "official" (truncated normal 0.05 and
            0.1, biases 0.1).

    Shapes: images (batch, in_chans, height, width) -> lengths (batch, num_classes).

    Deviates: nothing in the default; the capsule bias of the authors' code is off, as the counts of the paper are.

    Reference: arXiv:1710.09829, section 4.
    """

    first_conv = "conv"
    channels_last = False

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 1,
        img_size: int | tuple[int, int] = 28,
        *,
        conv_channels: int = 256,
        primary_types: int = 32,
        primary_dim: int = 8,
        class_dim: int = 16,
        padding: str = "valid",
        routing_steps: int = 3,
        coupling: str = "unit",
        leaky: bool = False,
        learned_prior: bool = False,
        middle_capsules: int = 0,
        middle_dim: int = 8,
        capsule_bias: bool = False,
        detach_routing: bool = False,
        decoder: bool = True,
        init: str = "default",
    ) -> None:
        super().__init__()
        check_choice("padding", padding, ("valid", "same"))
        check_choice("init", init, ("default", "official"))
        check_positive(conv_channels=conv_channels, primary_types=primary_types, primary_dim=primary_dim)
        check_positive(class_dim=class_dim, middle_dim=middle_dim)
        check_not_negative(middle_capsules=middle_capsules)
        same = padding == "same"
        self.image_shape = (in_chans, *image_size(img_size))
        self.places = primary_grid(*self.image_shape[1:], primary_types, same=same)
        rows, columns = self.places.rows, self.places.columns
        self.senders, self.sender_dim, self.class_dim = primary_types * rows * columns, primary_dim, class_dim
        self.init, self.with_decoder = init, decoder
        self.routing_options = {
            "steps": routing_steps,
            "coupling": coupling,
            "leaky": leaky,
            "learned_prior": learned_prior,
            "bias": capsule_bias,
            "detach_routing": detach_routing,
        }
        self.grid, self.primary_types = (rows, columns), primary_types
        self.conv = PaddedConv2d(in_chans, conv_channels, 9, same=same)
        self.primary = PrimaryCapsules(conv_channels, primary_types, primary_dim, same=same)
        self.middle = self._routing(middle_capsules, middle_dim) if middle_capsules else None
        if self.middle is not None:
            self.middle.coupling.senders = self.places._replace(feeds=0)
        self._initialise(self.conv, std=0.05)
        self._initialise(self.primary, self.middle)
        if middle_capsules:
            self.senders, self.sender_dim = middle_capsules, middle_dim
        self.num_features = self.senders * self.sender_dim
        self.feature_info = [{"num_chs": conv_channels, "reduction": 1, "module": "conv"}]
        self.reset_classifier(num_classes)

    def _routing(self, receivers: int, receiver_dim: int) -> DynamicRouting:
        options: dict[str, Any] = self.routing_options
        return DynamicRouting(self.senders, receivers, self.sender_dim, receiver_dim, **options)

    def make_classifier(self) -> nn.Module:
        head = self._routing(self.num_classes, self.class_dim)
        head.coupling.senders = self.places if self.middle is None else None
        return head

    def _renew_classifier(self) -> None:
        super()._renew_classifier()
        self._initialise(self.head, self.decoder)

    def _initialise(self, *modules: nn.Module | None, std: float = 0.1) -> None:
        if self.init == "default":
            return
        start_as_capsnet(*modules, std=std)

    def stage(self, index: int, inputs: Tensor) -> Tensor:
        return self.conv(inputs).relu_()

    def neck(self, maps: list[Tensor]) -> Tensor:
        """The primary capsules (batch, types * rows * columns, pose), or the middle ones (batch, middle, pose)."""
        children: Tensor = self.primary(maps[0])
        return children if self.middle is None else self.middle(children)


_register = partial(register_model, module=CapsNet, source="arXiv:1710.09829", recipe="capsnet_paper")

_register(
    "capsnet",
    summary="Dynamic routing between capsules, for 28x28 grey images: 6.8 million parameters and a decoder of 1.4.",
    parameters=8_215_568,
    tiny={"img_size": 19, "conv_channels": 8, "primary_types": 2, "primary_dim": 4, "class_dim": 6},
    variants={
        "uniform": {"routing_steps": 0, "coupling": "uniform", "decoder": False},
        "leaky": {"leaky": True, "padding": "same", "capsule_bias": True, "in_chans": 3, "img_size": (9, 12)},
        "prior": {"learned_prior": True, "init": "official", "routing_steps": 2},
        "middle, one pass": {"middle_capsules": 5, "middle_dim": 4, "routing_steps": 1},
    },
)
_register(
    "capsnet_mnist",
    summary="The same network as capsnet, under the paper's data set.",
    parameters=8_215_568,
)
_register(
    "capsnet_mnist_r1",
    summary="CapsNet with a single pass of routing.",
    parameters=8_215_568,
    routing_steps=1,
)
_register(
    "capsnet_unrouted",
    summary="CapsNet without routing: every vote counts whole.",
    source="arXiv:2209.02567",
    parameters=8_215_568,
    routing_steps=0,
)
_register(
    "capsnet_middle",
    summary="CapsNet with a layer of 16 capsules between 16 types of primary capsules and the classes.",
    source="arXiv:2209.02567",
    parameters=4_696_976,
    recipe="capsnet_routing_study",
    primary_types=16,
    middle_capsules=16,
)
_register(
    "capsnet_multimnist",
    summary="CapsNet for two overlaid digits, 36x36.",
    parameters=11_361_808,
    recipe="capsnet_multimnist",
    img_size=36,
)
_register(
    "capsnet_32",
    summary="CapsNet for 32x32 colour images, the common baseline.",
    parameters=11_749_120,
    in_chans=3,
    img_size=32,
)
_register(
    "capsnet_cifar",
    summary="The paper's CIFAR-10 network: 24x24 crops, 64 types, padding, leaky routing, no decoder.",
    parameters=22_476_448,
    crop_pct=0.75,
    recipe="capsnet_cifar",
    in_chans=3,
    img_size=24,
    primary_types=64,
    padding="same",
    leaky=True,
    capsule_bias=True,
    decoder=False,
)
_register(
    "capsnet_smallnorb",
    summary="CapsNet for smallNORB: two grey views, 32x32 crops of 48x48, five classes.",
    parameters=9_327_104,
    crop_pct=2 / 3,
    num_classes=5,
    in_chans=2,
    img_size=32,
)
_register(
    "capsnet_svhn",
    summary="The paper's smaller network for SVHN: 64 channels, 16 types of 6, class capsules of 8.",
    parameters=4_720_480,
    in_chans=3,
    img_size=32,
    conv_channels=64,
    primary_types=16,
    primary_dim=6,
    class_dim=8,
)
