"""U-Net: an encoder whose maps become coarser, and a decoder that joins them again up to the size of the image.

Source: Ronneberger, Fischer, Brox 2015, arXiv:1505.04597.
Cost at 64x64: 136 M multiply-adds an image for the small one.
"""

import itertools
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core.shapes import image_size
from mereo.errors import check_positive
from mereo.layers import BasicBlock, ConvNorm
from mereo.mechanisms.slots import NO_ARGUMENTS, needs_size
from mereo.models.base import VisionModel
from mereo.models.registry import register_model


class UNet(VisionModel):
    """Score the classes of each pixel.

    x_i = block_i(x_(i-1)),   y_L = x_L,   y_i = convs([x_i, resize(y_(i+1))]),   scores = conv 1x1 (y_0)

    Args:
        num_classes, in_chans, img_size: as in timm; images of any size.
        widths: channels of the stages; the maps of each have half the sides of the one before.
        mechanism: name of a mechanism at the end of the residual branch of every stage, one of
            `mereo.list_mechanisms(interface="maps")` or "tokens"; None for none. Mechanisms that are made for a size of
            maps take images of `img_size` only.
        mechanism_args: arguments of its constructor that the network does not fill in.

    Shapes: images (batch, in_chans, height, width) -> scores (batch, num_classes, height, width).

    Deviates: convolutions are padded, so that maps keep their size, and have batch norms; the encoder halves by the
        stride of residual blocks instead of pooling, and the decoder enlarges by interpolation instead of transposed
        convolutions.

    Reference: arXiv:1505.04597, section 2.
    """

    first_conv = "stem.0"
    fixed_input_size = False
    usual_rate = 5.6e-3
    output_kind: ClassVar[str] = "maps"

    def __init__(
        self,
        num_classes: int = 2,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 64,
        *,
        widths: tuple[int, ...] = (16, 32, 48, 64),
        mechanism: str | None = None,
        mechanism_args: dict[str, Any] = NO_ARGUMENTS,
    ) -> None:
        super().__init__()
        check_positive(widths=min(widths, default=0))
        self.image_shape, self.num_features = (in_chans, *image_size(img_size)), widths[0]
        self.stem = ConvNorm(in_chans, widths[0], 3, activation=nn.ReLU)
        entries = [(widths[0], widths[0], 1), *((a, b, 2) for a, b in itertools.pairwise(widths))]
        sizes = [tuple(-(-side // 2**i) for side in self.image_shape[1:]) for i in range(len(widths))]
        self.stages = nn.ModuleList(
            BasicBlock(*entry, mechanism=mechanism, mechanism_args=mechanism_args, size=(size[0], size[1]))
            for entry, size in zip(entries, sizes, strict=True)
        )
        self.fixed_input_size = mechanism is not None and needs_size(mechanism)  # type: ignore[misc]
        self.joins = nn.ModuleList(
            nn.Sequential(
                ConvNorm(fine + coarse, fine, 3, activation=nn.ReLU), ConvNorm(fine, fine, 3, activation=nn.ReLU)
            )
            for fine, coarse in itertools.pairwise(widths)
        )
        self.feature_info = [
            {"num_chs": width, "reduction": 2**i, "module": f"stages.{i}"} for i, width in enumerate(widths)
        ]
        self.neck_inputs = tuple(range(len(widths)))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        self.reset_classifier(num_classes)

    def neck(self, maps: list[Tensor]) -> Tensor:
        joined = maps[-1]
        for fine, join in zip(reversed(maps[:-1]), reversed(self.joins), strict=True):
            larger = F.interpolate(joined, fine.shape[-2:], mode="bilinear", align_corners=False)
            joined = join(torch.cat([fine, larger], 1))
        return joined

    def pool(self, features: Tensor) -> Tensor:
        return features.mean((2, 3))

    def classify(self, features: Tensor) -> Tensor:
        return self.head(features)

    def make_classifier(self) -> nn.Module:
        return nn.Conv2d(self.num_features, self.num_classes, 1)


register_model(
    "unet_small",
    UNet,
    "U-Net of four stages with residual blocks, for the class of each pixel.",
    source="arXiv:1505.04597",
    parameters=229_618,
    mean=0.5,
    std=0.25,
    tiny={"widths": (4, 6, 8), "img_size": 16},
    variants={"odd sides": {"img_size": (13, 18)}},
)
