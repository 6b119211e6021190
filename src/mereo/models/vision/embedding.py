"""Embeddings: the mean of the last map of any backbone, projected and scaled to length one.

Cost: the backbone's.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from mereo.models.on_backbone import OnBackbone
from mereo.models.registry import register_model


class EmbeddingNetwork(OnBackbone):
    """Give each image a vector of length one.

    features = mean(the last map of the backbone),   output = W features + b, divided by its length

    Args:
        num_classes: numbers of the vector.
        in_chans, img_size: as in timm.
        backbone: a network of the catalogue with maps of stages, or "timm:" and a name of timm's.
        backbone_args: its arguments, beyond channels and size of the images.
        frozen: keep the weights of the backbone.

    Shapes: images (batch, in_chans, height, width) -> (batch, num_classes), of length one.
    """

    output_kind: ClassVar[str] = "embedding"
    usual_rate = 3e-3

    def __init__(
        self,
        num_classes: int = 64,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 32,
        *,
        backbone: str = "resnet20",
        backbone_args: Mapping[str, Any] = {},
        frozen: bool = False,
    ) -> None:
        super().__init__()
        self._build_backbone(backbone, (-1,), backbone_args, in_chans, img_size, frozen)
        self.num_features = int(self.feature_info[-1]["num_chs"])
        self.reset_classifier(num_classes)

    def pool(self, features: Tensor) -> Tensor:
        return features.mean((2, 3))

    def classify(self, features: Tensor) -> Tensor:
        return F.normalize(self.head(self.pool(features)), dim=1)

    def make_classifier(self) -> nn.Module:
        return nn.Linear(self.num_features, self.num_classes)


register_model(
    "embedding_resnet20",
    EmbeddingNetwork,
    "Embeddings of 64 numbers on a residual network of 20 layers, for 32x32 images.",
    source="arXiv:2004.11362",
    parameters=273_232,
    tiny={"backbone_args": {"widths": (4, 6, 8), "blocks": 1}, "img_size": 16},
)
