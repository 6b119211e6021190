"""Detection: the boxes of the objects of an image, with their classes.

Source of the loss: Tian, Shen, Chen, He 2019, arXiv:1904.01355 (FCOS), sections 3.1 to 3.3.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.data import Batch
from mereo.data.layout_options import LayoutOptions
from mereo.errors import UsageError, check_fraction, check_probability
from mereo.files import write_atomically
from mereo.layers.bridge import Bridge
from mereo.tasks.average_precision import match, pack, summarise, unpack
from mereo.tasks.base import Metrics, Objective, Seen, Settings, Task, register_task
from mereo.tasks.box_pictures import draw_boxes
from mereo.tasks.explained import Explained, Others
from mereo.tasks.interval import resampled

MOST = 100
"""Detections of an image that are kept, as COCO counts them."""
_REACH, _RADIUS, _CANDIDATES = 4, 1.5, 400
_ROUNDS = 25
"""An odd number, after which no box counts that a surer one covers."""
DOCUMENT = "detections.json"


@dataclass(frozen=True)
class DetectionOptions:
    """Which boxes count as detections.

    Args:
        least_score: of a detection; its score is the root of class probability times centreness.
        overlap: above this IoU with a surer detection of the same class a box is left out.
        pictured: least score of a detection in pictures and in what is printed.
    """

    least_score: float = 0.05
    overlap: float = 0.6
    pictured: float = 0.5

    def __post_init__(self) -> None:
        check_probability(least_score=self.least_score, pictured=self.pictured)
        check_fraction(overlap=self.overlap)


class CellTargets:
    """What each cell is to predict.

    Attributes:
        labels: the class of the object of each cell, -1 for background: int64 (batch, cells).
        boxes: its box in pixels (batch, cells, 4).
        central: its centreness (batch, cells).
    """

    def __init__(self, places: Tensor, strides: Tensor, boxes: Tensor, labels: Tensor) -> None:
        """A cell is of an object if it lies in its box and near its centre, and if the box has the size of its level.

        Of several objects the smallest counts.

        Args:
            places, strides: of the cells, see `Detector.cells`.
            boxes, labels: of the objects: corners in pixels, and classes, -1 for none.
        """
        x, y = places.unbind(-1)
        left, top, right, bottom = boxes.unsqueeze(2).unbind(-1)  # (batch, objects, 1)
        ends = torch.stack((x - left, y - top, right - x, bottom - y), -1)  # (batch, objects, cells, 4)
        near = _RADIUS * strides
        central = ((x - (left + right) / 2).abs() <= near) & ((y - (top + bottom) / 2).abs() <= near)
        reach = ends.amax(-1)
        fits = (reach <= _REACH * strides) | (strides == strides.max())
        fits &= (reach > _REACH * strides / 2) | (strides == strides.min())
        good = (ends.amin(-1) > 0) & central & fits & (labels >= 0).unsqueeze(-1)
        areas = ((right - left) * (bottom - top)).expand_as(reach).masked_fill(~good, torch.inf)
        least, place = areas.min(1)
        there = least.isfinite()
        self.labels = labels.gather(1, place).masked_fill(~there, -1)
        self.boxes = boxes.take_along_dim(place.unsqueeze(-1), 1)
        own = ends.take_along_dim(place[:, None, :, None], 1).squeeze(1).clamp(min=0)
        pairs = torch.stack((own[..., ::2], own[..., 1::2]), -2)  # left with right, top with bottom
        shares = pairs.amin(-1) / pairs.amax(-1).clamp(min=1e-6)
        self.central = shares.prod(-1).sqrt().masked_fill(~there, 0)


def detection_loss(outputs: Tensor, targets: CellTargets, size: tuple[int, int]) -> Tensor:
    """Focal loss of the classes, GIoU loss of the boxes and cross-entropy of the centreness.

    L = (sum_cells focal + sum_objects centreness (1 - GIoU) / mean centreness + sum_objects BCE(centreness)) / cells of
    objects

    Shapes: outputs (batch, cells, 5 + classes), see `Detector`; size (height, width) of the images.
    """
    from torchvision.ops import generalized_box_iou_loss, sigmoid_focal_loss

    there = targets.labels >= 0
    count = there.sum().clamp(min=1)
    outputs = outputs.float()
    true = F.one_hot(targets.labels.clamp(min=0), outputs.shape[-1] - 5) * there.unsqueeze(-1)
    focal = sigmoid_focal_loss(outputs[..., 5:], true.float(), reduction="sum")
    pixels = outputs[..., :4] * outputs.new_tensor((size[1], size[0], size[1], size[0]))
    # Cells of the background count 0, and are given a box of their own, so that shapes do not depend on the data.
    apart = generalized_box_iou_loss(pixels, torch.where(there.unsqueeze(-1), targets.boxes, pixels.detach()))
    placed = (apart * targets.central).sum() / (targets.central.sum() / count).clamp(min=1e-6)
    binary = F.binary_cross_entropy_with_logits(outputs[..., 4], targets.central, reduction="none")
    return (focal + placed + (binary * there).sum()) / count


class DetectionObjective(Objective):
    """A detector and its loss, with the losses of the keypoints of a bridge."""

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        outputs = self.model(batch.images)
        assert batch.boxes is not None and batch.box_labels is not None
        for module in self.model.modules():
            if isinstance(module, Bridge):
                module.add_losses(batch.boxes, batch.box_labels, self.model.strides)
        return self.loss(outputs, batch), outputs

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        assert batch.boxes is not None and batch.box_labels is not None
        height, width = batch.images.shape[-2:]
        places, strides = self.model.cells(height, width)
        targets = CellTargets(places, strides, batch.boxes, batch.box_labels)
        return detection_loss(outputs, targets, (height, width))


def _class_scores(outputs: Tensor) -> Tensor:
    """The root of class probability times centreness, stable for large logits: (..., 5 + classes) -> (..., classes)."""
    return ((F.logsigmoid(outputs[..., 5:]) + F.logsigmoid(outputs[..., 4:5])) / 2).exp()


def detect(outputs: Tensor, options: DetectionOptions) -> Tensor:
    """The detections of each image, the surest first: corners in shares of the image, score, class; -1 for none.

    Shapes: outputs (batch, cells, 5 + classes) -> (batch, 100, 6).
    """
    from torchvision.ops import batched_nms

    found = outputs.new_full((len(outputs), MOST, 6), 0.0)
    found[..., 5] = -1
    for row, candidates in enumerate(zip(*_candidates(outputs), strict=True)):
        sure = candidates[1] >= options.least_score
        boxes, scores, labels = (each[sure] for each in candidates)
        kept = batched_nms(boxes, scores, labels, options.overlap)[:MOST]
        found[row, : len(kept)] = torch.cat((boxes, scores.unsqueeze(1), labels.unsqueeze(1)), 1)[kept]
    return found


def _candidates(outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes (batch, n, 4), scores and classes (batch, n) of the surest cells, in falling order."""
    scores = (outputs[..., 5:].sigmoid() * outputs[..., 4:5].sigmoid()).sqrt().flatten(1)
    best, index = scores.topk(min(_CANDIDATES, scores.shape[1]), 1)
    classes = outputs.shape[-1] - 5
    boxes = outputs[..., :4].clamp(0, 1).gather(1, (index // classes).unsqueeze(2).expand(-1, -1, 4))
    return boxes, best, index % classes


def detect_in_rounds(outputs: Tensor, options: DetectionOptions) -> Tensor:
    """The detections as `detect` gives them, by operations whose number does not depend on the images, for exporting.

    In each round a box counts unless a surer one of its class that counted in the round before covers it. From all
    boxes, after n rounds, what is left out or kept is final for chains of up to n boxes that cover each other.

    Shapes: as of `detect`.
    """
    boxes, scores, labels = _candidates(outputs)
    one, other = boxes.unsqueeze(2), boxes.unsqueeze(1)
    sides = torch.minimum(one[..., 2:], other[..., 2:]) - torch.maximum(one[..., :2], other[..., :2])
    common, areas = sides.clamp(min=0).prod(3), (boxes[..., 2:] - boxes[..., :2]).prod(2)
    covers = common > options.overlap * (areas.unsqueeze(2) + areas.unsqueeze(1) - common)
    covers &= (labels.unsqueeze(2) == labels.unsqueeze(1)) & torch.ones_like(covers[0]).tril(-1)
    sure = kept = scores >= options.least_score
    for _ in range(_ROUNDS):
        kept = sure & ((covers.float() @ kept.float().unsqueeze(2)).squeeze(2) == 0)
    best, place = torch.where(kept, scores, -1).topk(min(MOST, scores.shape[1]), 1)
    rows = torch.cat((boxes, scores.unsqueeze(2), labels.unsqueeze(2).to(boxes)), 2)
    none = F.pad(boxes.new_full((1, 1, 1), -1.0), (5, 0))
    rows = torch.where(best.unsqueeze(2) < 0, none, rows.gather(1, place.unsqueeze(2).expand(-1, -1, 6)))
    return torch.cat((rows, none.expand(rows.shape[0], MOST - rows.shape[1], 6)), 1)


class DetectionMetrics(Metrics):
    """Average precision over ten overlaps, AP, and at the overlaps 0.5 and 0.75, as COCO defines them.

    Args:
        num_classes: how many there are.
        options: which boxes count as detections.
    """

    def __init__(self, num_classes: int, options: DetectionOptions) -> None:
        super().__init__()
        self.num_classes, self.options = num_classes, options

    def update(self, outputs: Tensor, batch: Batch) -> None:
        self.count(detect(outputs, self.options), batch)

    def count(self, found: Tensor, batch: Batch) -> None:
        """Update with the detections of one batch, as `detect` gives them."""
        assert batch.boxes is not None and batch.box_labels is not None
        height, width = batch.images.shape[-2:]
        shares = batch.boxes / batch.boxes.new_tensor((width, height, width, height))
        correct = match(found[..., :4], found[..., 5].long(), shares, batch.box_labels)
        known = F.one_hot(batch.box_labels.clamp(min=0), self.num_classes) * (batch.box_labels >= 0).unsqueeze(-1)
        self.keep(found[..., 4], found[..., 5], pack(correct), known.sum(1))

    def _columns(self) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
        if not self.rows:
            return None
        scores, labels, bits, counts = torch.cat(self.rows).split((MOST, MOST, MOST, self.num_classes), 1)
        return scores, labels, unpack(bits), counts

    def compute(self) -> dict[str, float]:
        columns = self._columns()
        return dict.fromkeys(("ap", "ap50", "ap75"), 0.0) if columns is None else summarise(*columns)

    def intervals(self) -> dict[str, tuple[float, float]]:
        """By drawing the images again with replacement."""
        columns = self._columns()
        if columns is None:
            return {}
        images = len(columns[0])
        return resampled(images, lambda places: summarise(*columns, torch.bincount(places, minlength=images)))


@register_task
class Detection(Task):
    """The boxes of the objects of an image and their classes, learned from images with boxes."""

    name = "detection"
    requires = ("images", "boxes", "box_labels")
    output_kinds = ("boxes",)
    chooses = ("ap", "max")
    is_share = True
    Options = DetectionOptions
    example_model = "detector_small"
    example_data = "shape_boxes"
    finished_as = "detections"
    settings: ClassVar[Mapping[str, Any]] = {"batch_size": 16}
    example_settings: ClassVar[Mapping[str, Any]] = {"img_size": 64, "epochs": 12}
    train_metrics = False
    evaluated_at_once = 16
    most_drawn = 12

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.class_names

    @property
    def cell_names(self) -> tuple[str, ...]:
        return tuple(f"number of {name}" for name in self.class_names)

    def read_as(self, layout: LayoutOptions) -> LayoutOptions:
        return layout._replace(task=self.name, follows=False, names=self.class_names)

    def objective(self, model: nn.Module, settings: Settings) -> DetectionObjective:
        for name in ("mixup", "cutmix", "label_smoothing"):
            if getattr(settings, name):
                raise UsageError(f"{name} is {getattr(settings, name)}, which changes labels of images, and boxes have"
                                 " their own; leave it out.")  # fmt: skip
        if not hasattr(model, "cells"):
            raise UsageError(f"model is {type(model).__name__}, which has no cells; give {self.example_model}.")
        return DetectionObjective(model)

    def metrics(self) -> DetectionMetrics:
        return DetectionMetrics(len(self.class_names), self.options)

    def kept(self, outputs: Tensor) -> Tensor:
        """The detections: (batch, 100, 6), see `detect`."""
        return detect(outputs, self.options)

    def finish(self, model: nn.Module, scores: Tensor) -> Tensor:
        """The detections, see `detect_in_rounds`."""
        return detect_in_rounds(scores, self.options)

    def outputs_in_words(self) -> str:
        return (
            "For each cell the outputs are a box (left, top, right, bottom in shares of the image), the logit of its"
            " centreness and the logits of the classes; overlapping boxes are not removed."
        )

    def _named(self, label: float) -> str:
        return self.class_names[int(label)] if int(label) < len(self.class_names) else str(int(label))

    def predict(self, outputs: Tensor, top: int = 3) -> list[dict[str, Any]]:
        """The detections that are sure enough, the surest first, with boxes in shares of the image."""
        rows = []
        for image in outputs:
            sure = image[(image[:, 5] >= 0) & (image[:, 4] >= self.options.pictured)].tolist()
            rows.append({"objects": [{"label": self._named(row[5]), "score": row[4], "box": row[:4]} for row in sure]})
        return rows

    def explained(self, outputs: Tensor, target: str | None = None, others: Others | None = None) -> Explained:
        """The score of a box: of the surest one, of one by its rank (box:2), or of the surest of a class."""
        kind, _, rank = (target or "box:1").partition(":")
        by_rank = kind == "box" and rank.isdecimal() and 0 < int(rank) <= MOST and target not in self.class_names
        number = None if by_rank else self.class_number(target or "")
        seen = outputs if number is None else torch.cat((outputs[..., :5], outputs[..., 5 + number, None]), -1)
        found = detect(seen, replace(self.options, least_score=0.0))[:, int(rank) - 1 if by_rank else 0]
        if bool((found[:, 5] < 0).any()):
            raise UsageError(f"target is {target!r}, and an image has fewer boxes; give box:1, the surest one.")
        labels = found[:, 5].long() if number is None else torch.full_like(found[:, 5].long(), number)
        scores = _class_scores(outputs).gather(2, labels.view(-1, 1, 1).expand(-1, outputs.shape[1], 1))
        apart = torch.cat((outputs[..., :4].clamp(0, 1), scores), 2) - found[:, None, :5]
        each, cells = torch.arange(len(outputs), device=outputs.device), apart.abs().sum(2).argmin(1)
        named = zip(labels.tolist(), found[:, 4].tolist(), strict=True)
        return Explained(
            lambda changed: _class_scores(changed[each, cells]).gather(1, labels.unsqueeze(1)).squeeze(1),
            "boxes",
            [f"{self._named(label)} {score:.2f}" for label, score in named],
            boxes=found[:, :4],
        )

    def cells(self, outputs: Tensor) -> list[list[str | float]]:
        """The number of objects of each class that are sure enough."""
        labels = [[each["label"] for each in row["objects"]] for row in self.predict(outputs)]
        return [[found.count(name) for name in self.class_names] for found in labels]

    def write(self, outputs: Tensor, names: Sequence[str], folder: Path, seen: Sequence[Seen]) -> list[Path]:
        """One COCO document of all detections, in pixels of the stored images."""
        document: dict[str, Any] = {"images": [], "annotations": [], "categories": []}
        classes = self.class_names or tuple(map(str, range(int(outputs[..., 5].max()) + 1)))
        document["categories"] = [{"id": number, "name": name} for number, name in enumerate(classes)]
        for number, (image, name, part) in enumerate(zip(outputs.cpu(), names, seen, strict=True)):
            top, left, height, width = part.box
            document["images"].append({"id": number, "file_name": name, "height": part.size[0], "width": part.size[1]})
            for x0, y0, x1, y1, score, label in image[image[:, 5] >= 0].tolist():
                box = [left + x0 * width, top + y0 * height, (x1 - x0) * width, (y1 - y0) * height]
                rounded = [round(value, 2) for value in box]
                document["annotations"].append(
                    {
                        "id": len(document["annotations"]) + 1, "image_id": number, "category_id": int(label),
                        "bbox": rounded, "area": round(box[2] * box[3], 2), "iscrowd": 0, "score": round(score, 4),
                    }
                )  # fmt: skip
        write_atomically(folder / DOCUMENT, json.dumps(document).encode())
        return [folder / DOCUMENT]

    def example(self, model: Any, count: int, objects: int = 1) -> Batch:
        device = next(model.parameters()).device
        images = torch.rand(count, *model.image_shape, device=device)
        first = torch.rand(count, 2, 2, device=device) / 2
        sides = images.new_tensor((model.image_shape[2], model.image_shape[1]))
        boxes = torch.cat((first, first + 0.25 + first / 2), -1) * sides.repeat(2)
        return Batch(
            images, boxes=boxes, box_labels=torch.randint(max(model.num_classes, 1), (count, 2), device=device)
        )

    @staticmethod
    def _true(batch: Batch) -> list[Tensor]:
        assert batch.boxes is not None and batch.box_labels is not None
        rows = torch.cat((batch.box_labels.unsqueeze(-1).to(batch.boxes), batch.boxes), -1)
        return [each[each[:, 0] >= 0] for each in rows.cpu()]

    def draw_samples(self, batch: Batch, path: Path) -> None:
        batch = batch.pick(slice(0, self.most_drawn))
        draw_boxes(batch.images, {"boxes": self._true(batch)}, self.class_names, path)

    @torch.inference_mode()
    def draw(self, model: nn.Module, batch: Batch, prepared: Batch, path: Path) -> None:
        """Draw images with their boxes, if there are any, and with the predictions that are sure enough."""
        batch, prepared = (each.pick(slice(0, self.most_drawn)) for each in (batch, prepared))
        found = detect(self.apply(model, prepared), self.options).cpu()
        height, width = prepared.images.shape[-2:]
        sides = torch.tensor((width, height, width, height))
        sure = [each[(each[:, 5] >= 0) & (each[:, 4] >= self.options.pictured)] for each in found]
        predicted = [torch.cat((each[:, 5:], each[:, :4] * sides), 1) for each in sure]
        kinds = {} if batch.boxes is None else {"true": self._true(batch)}
        draw_boxes(batch.images, {**kinds, "predicted": predicted}, self.class_names, path)

    def summary(self, figures: Mapping[str, Any], chosen: str) -> list[tuple[str, str]]:
        rows = super().summary(figures, chosen)

        def shown(name: str) -> str:
            low, high = figures.get(f"{name}_low"), figures.get(f"{name}_high")
            ends = "" if low is None or high is None else f" ({self.show(low)} to {self.show(high)})"
            return f"{self.show(figures[name])}{ends}"

        return [*rows, ("at overlaps", f"AP50 {shown('ap50')}, AP75 {shown('ap75')}")]
