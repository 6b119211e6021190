"""The small residual networks for CIFAR-10: three stages of basic blocks without parameters in the shortcuts.

Source: He, Zhang, Ren, Sun 2016, arXiv:1512.03385, section 4.2.
Cost at 32x32: 41 M multiply-adds an image for 20 layers, 14 M more for every 6 layers.
"""

from functools import partial
from typing import Any

from torch import Tensor, nn

from mereo.core.shapes import image_size
from mereo.errors import UsageError, check_positive
from mereo.layers import BasicBlock, ConvNorm
from mereo.mechanisms.slots import NO_ARGUMENTS, needs_size
from mereo.models.base import VisionModel
from mereo.models.registry import register_model


class CifarResNet(VisionModel):
    """Classify small images with residual blocks.

    image -> conv 3x3, BN, ReLU -> 3 stages of blocks, all but the first with stride 2 -> mean -> linear

    Args:
        num_classes, in_chans, img_size: as in timm; images of any size.
        blocks: in each stage; the network has 6 blocks + 2 layers.
        widths: channels of the stages, ascending; 3 stages in the paper.
        stem_stride: of the first convolution; 1 in the paper.
        mechanism: name of a mechanism at the end of every residual branch, such as "squeeze_excite", one of
            `mereo.list_mechanisms(interface="maps")` or "tokens"; None for none. Mechanisms that are made for a size of
            maps take images of `img_size` only.
        mechanism_args: arguments of its constructor that the network does not fill in.

    Shapes: images (batch, in_chans, height, width) -> scores (batch, num_classes).

    Deviates: a `stem_stride` above 1, for larger images, is ours: its kernel is 2 stem_stride - 1 wide, so that it
        sees every pixel.

    Reference: arXiv:1512.03385, section 4.2 and table 6.
    """

    first_conv = "stem.0"
    fixed_input_size = False
    usual_rate = 7e-3

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 32,
        *,
        blocks: int = 3,
        widths: tuple[int, ...] = (16, 32, 64),
        stem_stride: int = 1,
        mechanism: str | None = None,
        mechanism_args: dict[str, Any] = NO_ARGUMENTS,
    ) -> None:
        super().__init__()
        if not widths:
            raise UsageError("widths is (); give the channels of each stage.")
        check_positive(blocks=blocks, widths=min(widths), stem_stride=stem_stride)
        self.image_shape, self.num_features = (in_chans, *image_size(img_size)), widths[-1]
        self.stem = ConvNorm(in_chans, widths[0], max(3, 2 * stem_stride - 1), stem_stride, activation=nn.ReLU)
        self.stages = nn.ModuleList()
        for i, outputs in enumerate(widths):
            rows, columns = (-(-side // (stem_stride * 2**i)) for side in self.image_shape[1:])
            make = partial(BasicBlock, mechanism=mechanism, mechanism_args=mechanism_args, size=(rows, columns))
            first = make(widths[max(i - 1, 0)], outputs, 1 if i == 0 else 2)
            self.stages.append(nn.Sequential(first, *(make(outputs, outputs, 1) for _ in range(blocks - 1))))
        self.fixed_input_size = mechanism is not None and needs_size(mechanism)  # type: ignore[misc]
        self.feature_info = [
            {"num_chs": width, "reduction": stem_stride * 2**i, "module": f"stages.{i}"}
            for i, width in enumerate(widths)
        ]
        for module in self.modules():
            if isinstance(module, ConvNorm):
                nn.init.kaiming_normal_(module[0].weight, nonlinearity="relu")  # type: ignore[arg-type]
        self.reset_classifier(num_classes)

    def pool(self, features: Tensor) -> Tensor:
        return features.mean((2, 3))

    def make_classifier(self) -> nn.Module:
        return nn.Linear(self.num_features, self.num_classes)


def _register(name: str, layers: int, parameters: int, what: str = "for 32x32 images", **more: Any) -> None:
    register_model(
        name,
        CifarResNet,
        f"Residual network of {layers} layers {what}.",
        source="arXiv:1512.03385",
        parameters=parameters,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.247, 0.2435, 0.2616),
        **more,
    )


_register(
    "resnet20",
    20,
    269_722,
    tiny={"widths": (4, 6, 8), "blocks": 1, "img_size": 16},
    variants={"larger stride": {"stem_stride": 2, "img_size": (21, 26)}},
    aliases=("resnet_cifar",),
)
_register("resnet32", 32, 464_154, blocks=5)
_register("resnet44", 44, 658_586, blocks=7)
_register("resnet56", 56, 853_018, blocks=9)
_register("resnet110", 110, 1_727_962, blocks=18)
_register(
    "resnet20_224", 20, 271_642, "whose first convolution has stride 4, for photographs", img_size=224, stem_stride=4
)
_register(
    "resnet14_64",
    14,
    386_626,
    "whose first convolution has stride 2, half as wide again, for photographs and short trainings",
    img_size=64,
    stem_stride=2,
    widths=(24, 48, 96),
    blocks=2,
    rate=4e-3,
)
_register(
    "resnet8_64",
    8,
    1_193_546,
    "whose first convolution has stride 4, four times as wide, for photographs",
    img_size=64,
    stem_stride=4,
    widths=(64, 128, 256),
    blocks=1,
    rate=3e-3,
)
