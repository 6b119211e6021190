"""Networks of torchvision with random weights, each with its usual loss, under one interface: `loss` and `count`."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import resnet18
from torchvision.models.detection import ssdlite320_mobilenet_v3_large
from torchvision.models.segmentation import lraspp_mobilenet_v3_large

from mereo.data import Batch
from mereo.tasks.detection import MOST


class Segmenter(nn.Module):
    """LR-ASPP on MobileNetV3, with the cross-entropy of pixels."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.network = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=classes)

    def loss(self, batch: Batch) -> Tensor:
        assert batch.masks is not None
        return F.cross_entropy(self.network(batch.images)["out"], batch.masks, ignore_index=-1)

    def count(self, metrics: Any, batch: Batch) -> None:
        """Update the metrics of the task with the outputs for prepared images."""
        metrics.update(self.network(batch.images)["out"], batch)


class BoxDetector(nn.Module):
    """SSDlite on MobileNetV3, with its own loss."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        how: dict[str, Any] = {"image_mean": [0.0] * 3, "image_std": [1.0] * 3, "num_classes": classes + 1}
        self.network = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, **how)

    def loss(self, batch: Batch) -> Tensor:
        assert batch.boxes is not None and batch.box_labels is not None
        pairs = zip(batch.boxes, batch.box_labels, strict=True)
        targets = [{"boxes": boxes[labels >= 0], "labels": labels[labels >= 0] + 1} for boxes, labels in pairs]
        return torch.stack([*self.network([*batch.images], targets).values()]).sum()

    def count(self, metrics: Any, batch: Batch) -> None:
        height, width = batch.images.shape[-2:]
        found = batch.images.new_zeros(len(batch.images), MOST, 6)
        found[..., 5] = -1
        for row, image in zip(found, self.network([*batch.images]), strict=True):
            scores, order = image["scores"].sort(descending=True)
            shares = image["boxes"][order] / row.new_tensor((width, height, width, height))
            rows = torch.cat((shares, torch.stack((scores, image["labels"][order] - 1.0), 1)), 1)[:MOST]
            row[: len(rows)] = rows
        metrics.count(found, batch)


class Identifier(nn.Module):
    """ResNet-18, with the cross-entropy of the identities; the features before its last layer are compared."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.network = resnet18(num_classes=classes)
        self.last, self.network.fc = self.network.fc, nn.Identity()

    def loss(self, batch: Batch) -> Tensor:
        return F.cross_entropy(self.last(self.network(batch.images)), batch.labels)

    def count(self, metrics: Any, batch: Batch) -> None:
        metrics.update(F.normalize(self.network(batch.images), dim=1), batch)


PLAIN: dict[str, tuple[str, type[Any], int, tuple[str, ...]]] = {
    "segmentation": ("lraspp_mobilenet_v3_large", Segmenter, 224, ("mean_iou", "dice", "boundary_distance")),
    "detection": ("ssdlite320_mobilenet_v3_large", BoxDetector, 320, ("ap", "ap50")),
    "embedding": ("resnet18", Identifier, 128, ("recall_at_1", "mean_average_precision")),
}
"""By task: the name of a network, its class, the side of its images, and what is measured."""
