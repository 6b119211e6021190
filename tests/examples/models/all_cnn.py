"""All-CNN-C: only convolutions, with strides in place of pooling.

Source: Springenberg, Dosovitskiy, Brox, Riedmiller 2015, arXiv:1412.6806, table 1 and section 3.
Cost at 32x32: 281 M multiply-adds an image.
"""

from torch import Tensor, nn

from mereo.core.shapes import image_size
from mereo.errors import check_positive
from mereo.models.base import VisionModel
from mereo.models.registry import register_model


def _convolution(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2), nn.ReLU()]


class AllCNN(VisionModel):
    """Classify with convolutions only.

    image -> 3x (conv 3x3, ReLU) -> 3x (conv 3x3, ReLU) -> conv 3x3, ReLU, conv 1x1, ReLU -> mean -> linear

    Args:
        num_classes, in_chans, img_size: as in timm; images of any size.
        widths: channels of the first three convolutions, the last with stride 2, and of all others.

    Shapes: images (batch, in_chans, height, width) -> scores (batch, num_classes).

    Deviates: every 3x3 convolution is padded, and dropout is left out.

    Reference: arXiv:1412.6806, table 1, model C, with the pooling layers replaced as in table 2.
    """

    first_conv = "stages.0.0"
    fixed_input_size = False

    def __init__(
        self,
        num_classes: int = 10,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 32,
        *,
        widths: tuple[int, int] = (96, 192),
    ) -> None:
        super().__init__()
        check_positive(widths=min(widths))
        first, then = widths
        self.image_shape, self.num_features = (in_chans, *image_size(img_size)), then
        stages = (
            _convolution(in_chans, first) + _convolution(first, first) + _convolution(first, first, stride=2),
            _convolution(first, then) + _convolution(then, then) + _convolution(then, then, stride=2),
            _convolution(then, then) + _convolution(then, then, kernel=1),
        )
        self.stages = nn.ModuleList(nn.Sequential(*layers) for layers in stages)
        self.feature_info = [
            {"num_chs": channels, "reduction": pixels, "module": f"stages.{i}"}
            for i, (channels, pixels) in enumerate(((first, 2), (then, 4), (then, 4)))
        ]
        self.reset_classifier(num_classes)

    def stage(self, index: int, inputs: Tensor) -> Tensor:
        return self.stages[index](inputs)

    def pool(self, features: Tensor) -> Tensor:
        return features.mean((2, 3))

    def make_classifier(self) -> nn.Module:
        return nn.Linear(self.num_features, self.num_classes)


register_model(
    "all_cnn_c",
    AllCNN,
    "Nine convolutions without pooling, for 32x32 colour images.",
    source="arXiv:1412.6806",
    parameters=1_369_738,
    tiny={"img_size": 12, "widths": (6, 8)},
)
