"""Networks without couplings or capsules, registered as a user would, for what must hold for every network of images:
one that gives scores, one that gives maps and one that gives embeddings."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from mereo.models import MODELS, VisionModel, register_model
from mereo.models.registry import ALIASES


class Stages(VisionModel):
    """Convolutions of stride 2, and their mean over the image: images of any size."""

    first_conv = "stages.0.0"
    fixed_input_size = False

    def make_stages(self, in_chans: int, img_size: int | tuple[int, int], widths: tuple[int, ...]) -> None:
        sides = (img_size, img_size) if isinstance(img_size, int) else img_size
        self.image_shape, self.num_features = (in_chans, *sides), widths[-1]
        inputs = (in_chans, *widths[:-1])
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(i, o, 3, 2, 1), nn.BatchNorm2d(o), nn.ReLU())
            for i, o in zip(inputs, widths, strict=True)
        )
        self.feature_info = [
            {"num_chs": width, "reduction": 2 ** (i + 1), "module": f"stages.{i}"} for i, width in enumerate(widths)
        ]

    def stage(self, index: int, inputs: Tensor) -> Tensor:
        return self.stages[index](inputs)

    def pool(self, features: Tensor) -> Tensor:
        return features.mean((2, 3))


class PlainCNN(Stages):
    """The stages and a linear classifier."""

    def __init__(
        self,
        num_classes: int = 5,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 16,
        *,
        widths: tuple[int, ...] = (6, 8, 12),
    ) -> None:
        super().__init__()
        self.make_stages(in_chans, img_size, widths)
        self.reset_classifier(num_classes)

    def make_classifier(self) -> nn.Module:
        return nn.Linear(self.num_features, self.num_classes)


class MapCNN(PlainCNN):
    """The stages and a map of scores for each class."""

    output_kind = "maps"
    size_step = (8, 8)

    def make_classifier(self) -> nn.Module:
        return nn.Conv2d(self.num_features, self.num_classes, 1)

    def classify(self, features: Tensor) -> Tensor:
        return F.interpolate(self.head(features), scale_factor=8.0, mode="bilinear")


class EmbeddingCNN(Stages):
    """The stages and a vector of length one."""

    output_kind = "embedding"
    outputs_argument = None

    def __init__(
        self,
        in_chans: int = 3,
        img_size: int | tuple[int, int] = 16,
        *,
        dim: int = 7,
        widths: tuple[int, ...] = (6, 8, 12),
    ) -> None:
        super().__init__()
        self.make_stages(in_chans, img_size, widths)
        self.dim = dim
        self.head = self.make_classifier()

    def make_classifier(self) -> nn.Module:
        return nn.Linear(self.num_features, self.dim)

    def classify(self, features: Tensor) -> Tensor:
        return F.normalize(self.head(self.pool(features)), dim=1)


OTHERS = {"map_cnn": (MapCNN, 1_601), "embedding_cnn": (EmbeddingCNN, 1_627)}
"""The networks that give something else than scores, with their parameters."""


@contextmanager
def registered(name: str = "plain_cnn", module: type[VisionModel] = PlainCNN, **changes: Any) -> Iterator[None]:
    """The network is in the catalogue inside the block."""
    before, aliases = dict(MODELS), dict(ALIASES)
    how = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4), "interpolation": "bicubic", "crop_pct": 0.9}
    how |= {"source": "https://example.org/networks/plain", "parameters": 1_601, "tiny": {}, "family": name, **changes}
    try:
        register_model(name, module, "Convolutions and a linear classifier.", **how)
        yield
    finally:
        for table, kept in ((MODELS, before), (ALIASES, aliases)):
            table.clear()
            table.update(kept)
