"""Segmentation: the class of each pixel of an image.

Source of the overlap loss: Milletari, Navab, Ahmadi 2016, arXiv:1606.04797, section 3.
"""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.data import Batch
from mereo.data.layout_options import LayoutOptions
from mereo.data.motion import IGNORED
from mereo.errors import UsageError, check_not_negative
from mereo.files import write_atomically
from mereo.tasks.base import Metrics, Objective, Seen, Settings, Task, register_task
from mereo.tasks.boundary_distance import boundary_distances
from mereo.tasks.explained import Explained, Others
from mereo.tasks.interval import resampled
from mereo.tasks.mask_pictures import PALETTE, draw_masks

_LEAST_OVERLAP = 1e-6
"""Added to the areas of a class, so that no gradient is infinite where the class is absent."""
_NO_DISTANCE = -1.0
"""Kept in place of an infinite distance."""


@dataclass(frozen=True)
class SegmentationOptions:
    """How a segmentation is trained.

    Args:
        dice_weight: weight of the dice loss, which counts small classes as much as large ones, next to the
            cross-entropy; 0 leaves it out.
    """

    dice_weight: float = 0.5

    def __post_init__(self) -> None:
        check_not_negative(dice_weight=self.dice_weight)


def pixel_loss(scores: Tensor, masks: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """The mean cross-entropy of the pixels that have a class.

    Shapes: scores (batch, classes, height, width), masks int64 (batch, height, width), -1 for no class -> ().
    """
    total = F.cross_entropy(
        scores.float(), masks, ignore_index=IGNORED, reduction="sum", label_smoothing=label_smoothing
    )
    return total / (masks != IGNORED).sum().clamp(min=1)


def dice_loss(scores: Tensor, masks: Tensor) -> Tensor:
    """One minus the overlap of predicted and true areas, averaged over the classes that a batch has.

    L = 1 - mean_c  2 sum_x p_c(x) t_c(x) / (sum_x p_c(x) + sum_x t_c(x)),   p = softmax(scores)

    Shapes: scores (batch, classes, height, width), masks int64 (batch, height, width), -1 for no class -> ().

    Deviates: from arXiv:1606.04797 in that areas are not squared, and sums go over the whole batch.

    Reference: arXiv:1606.04797, section 3.
    """
    known = (masks != IGNORED).unsqueeze(1)
    shares = scores.float().softmax(1) * known
    true = F.one_hot(masks.clamp(min=0), scores.shape[1]).movedim(-1, 1) * known
    axes = (0, 2, 3)
    areas = true.sum(axes)
    overlap = 2 * (shares * true).sum(axes) / (shares.sum(axes) + areas + _LEAST_OVERLAP)
    present = areas > 0
    return 1 - (overlap * present).sum() / present.sum().clamp(min=1)


class SegmentationObjective(Objective):
    """A network and its loss: the cross-entropy of the pixels and, weighted, the dice loss.

    A network that supervises several maps gives them all in training, (batch, maps, classes, height, width): the loss
    is the sum over the maps, and their mean is measured.

    Args:
        model: scores (batch, classes, height, width) of images of that size.
        dice_weight: of the dice loss.
        label_smoothing: of the cross-entropy in training; held-out data is not smoothed.
    """

    def __init__(self, model: nn.Module, dice_weight: float, label_smoothing: float = 0.0) -> None:
        super().__init__(model)
        self.dice_weight, self.label_smoothing = dice_weight, label_smoothing

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        outputs = self.model(batch.images)
        maps = outputs.unbind(1) if outputs.dim() == 5 else (outputs,)
        check_scores(maps[0], batch)
        loss = torch.stack([self._sum(scores, batch, self.label_smoothing) for scores in maps]).sum()
        return loss, outputs.mean(1) if outputs.dim() == 5 else outputs

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return self._sum(outputs, batch, 0.0)

    def _sum(self, scores: Tensor, batch: Batch, label_smoothing: float) -> Tensor:
        assert batch.masks is not None
        loss = pixel_loss(scores, batch.masks, label_smoothing)
        return loss + self.dice_weight * dice_loss(scores, batch.masks) if self.dice_weight else loss


def check_scores(scores: Tensor, batch: Batch) -> None:
    """UsageError unless a network gives scores of each pixel."""
    if scores.dim() != 4 or scores.shape[-2:] != batch.images.shape[-2:]:
        raise UsageError(
            f"model gives {tuple(scores.shape)} for images of {tuple(batch.images.shape)}; the task segmentation needs"
            f" scores of each pixel, as {Segmentation.example_model} gives."
        )


def _areas(labels: Tensor, num_classes: int) -> Tensor:
    """Pixels of each class in each image: int64 (batch, height, width), -1 for no class -> (batch, classes)."""
    classes = num_classes + 1
    cells = labels.flatten(1) + 1 + classes * torch.arange(len(labels), device=labels.device).unsqueeze(1)
    return torch.bincount(cells.flatten(), minlength=len(labels) * classes).view(-1, classes)[:, 1:]


class SegmentationMetrics(Metrics):
    """Mean IoU, mean dice and pixel accuracy, from the areas of the classes in all images; in a final evaluation, the
    distance of boundaries too.

    A mean is over the classes that are in the masks or in the predictions. Pixels without a class are not counted.

    boundary_distance: mean `boundary_distance` over the images and the classes but the first, the background, wherever
    both the mask and the prediction have the class.   boundary_missed: the share of these images and classes, wherever
    either has the class, in which only one has it; MONAI takes this distance as infinite. If that is all of them, the
    distance is the diagonal of the images.

    Args:
        num_classes: how many there are.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__(3 * num_classes)
        self.num_classes, self.diagonal = num_classes, 0.0

    def update(self, outputs: Tensor, batch: Batch) -> None:
        assert batch.masks is not None
        masks, classes = batch.masks, self.num_classes
        if masks.device.type == "cpu" and masks.numel() and int(masks.max()) >= classes:
            raise UsageError(f"masks have the index {int(masks.max())}, and the task has {classes} classes.")
        predicted = outputs.argmax(1).masked_fill(masks == IGNORED, IGNORED)
        right = masks.masked_fill(predicted != masks, IGNORED)
        areas = torch.cat([_areas(each, classes) for each in (right, masks, predicted)], 1)
        self.add(areas.sum(0))
        if self.final:
            self.diagonal = math.hypot(*masks.shape[1:])
            distances = boundary_distances(predicted, masks, classes)
            self.keep(areas, distances.nan_to_num(posinf=_NO_DISTANCE).to(areas.device))

    def _figures(self, areas: Tensor) -> dict[str, float]:
        right, true, predicted = areas.view(3, -1)
        there = true + predicted > 0

        def mean(shares: Tensor) -> float:
            return shares[there].mean().item() if bool(there.any()) else 0.0

        return {
            "mean_iou": mean(right / (true + predicted - right)),
            "dice": mean(2 * right / (true + predicted)),
            "pixel_accuracy": (right.sum() / true.sum().clamp(min=1)).item(),
        }

    def _boundaries(self, rows: Tensor) -> dict[str, float]:
        areas, distances = rows.split((3 * self.num_classes, self.num_classes - 1), 1)
        either = areas.unflatten(1, (3, -1))[:, 1:, 1:].sum(1) > 0
        both = distances != _NO_DISTANCE
        if not bool(both.any()):
            return {"boundary_distance": self.diagonal * bool(either.any()), "boundary_missed": float(either.any())}
        return {
            "boundary_distance": distances[both].mean().item(),
            "boundary_missed": 1 - (both.sum() / either.sum()).item(),
        }

    def compute(self) -> dict[str, float]:
        none = {"boundary_distance": 0.0, "boundary_missed": 0.0}
        boundaries = self._boundaries(torch.cat(self.rows).double()) if self.rows else none
        return self._figures(self.state) | (boundaries if self.final else {})

    def intervals(self) -> dict[str, tuple[float, float]]:
        """By drawing the images anew."""
        rows = torch.cat(self.rows).double() if self.rows else torch.zeros(0, 0)

        def figures(places: Tensor) -> dict[str, float]:
            drawn = rows[places]
            return self._figures(drawn.sum(0)[: 3 * self.num_classes]) | self._boundaries(drawn)

        return resampled(len(rows), figures)


@register_task
class Segmentation(Task):
    """The class of each pixel, learned from images with masks."""

    name = "segmentation"
    requires = ("images", "masks")
    output_kinds = ("maps",)
    chooses = ("mean_iou", "max")
    is_share = True
    Options = SegmentationOptions
    final_cost: ClassVar[float] = 2.5
    example_model = "unet_small"
    larger_sides = (8.0, 6.0, 4.0, 3.0, 2.0, 1.5)
    example_data = "shape_masks"
    settings: ClassVar[Mapping[str, Any]] = {"batch_size": 16}
    example_settings: ClassVar[Mapping[str, Any]] = {"img_size": 32, "epochs": 15}
    evaluated_at_once = 16
    most_drawn = 16
    finished_as = "masks"
    file_column = "mask"

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.class_names

    @property
    def cell_names(self) -> tuple[str, ...]:
        return tuple(f"share of {name}" for name in self.class_names)

    def read_as(self, layout: LayoutOptions) -> LayoutOptions:
        return layout._replace(task=self.name, follows=False, names=self.class_names)

    def objective(self, model: nn.Module, settings: Settings) -> SegmentationObjective:
        for name in ("mixup", "cutmix"):
            if getattr(settings, name):
                raise UsageError(f"{name} is {getattr(settings, name)}, which mixes labels, and masks have none; leave"
                                 " it out.")  # fmt: skip
        return SegmentationObjective(model, self.options.dice_weight, settings.label_smoothing)

    def metrics(self) -> SegmentationMetrics:
        return SegmentationMetrics(len(self.class_names))

    def kept(self, outputs: Tensor) -> Tensor:
        """The class of each pixel: uint8 (batch, height, width)."""
        return outputs.argmax(1).to(torch.uint8)

    def finish(self, model: nn.Module, scores: Tensor) -> Tensor:
        """The class of each pixel, as `kept` gives it."""
        return self.kept(scores)

    def outputs_in_words(self) -> str:
        return "The outputs are logits of the classes of each pixel; the class of a pixel has the highest."

    def predict(self, outputs: Tensor, top: int = 3) -> list[dict[str, Any]]:
        """The share of pixels of each class that occurs in an image."""
        names = self.class_names or tuple(map(str, range(int(outputs.max()) + 1)))
        rows = []
        for pixels in outputs:
            shares = torch.bincount(pixels.flatten().int(), minlength=len(names)) / pixels.numel()
            rows.append({"shares": {names[i]: shares[i].item() for i in shares.nonzero().flatten().tolist()}})
        return rows

    def explained(self, outputs: Tensor, target: str | None = None, others: Others | None = None) -> Explained:
        """The mean logit of a class over the pixels predicted as it, or over all pixels if there are none.

        By default the class with the largest area, other than the first one, which usually is the background.
        """
        predicted = F.one_hot(outputs.argmax(1), outputs.shape[1])
        areas = predicted.float().mean((1, 2))
        areas[:, 0] *= 1e-6
        labels = areas.argmax(1) if target is None else torch.full_like(areas.argmax(1), self.class_number(target))
        each = torch.arange(len(outputs), device=outputs.device)
        masks = predicted[each, ..., labels].bool()
        whole = masks | ~masks.flatten(1).any(1).view(-1, 1, 1)
        names = self.class_names or tuple(map(str, range(outputs.shape[1])))
        rows = zip(labels.tolist(), masks.float().mean((1, 2)).tolist(), strict=True)
        return Explained(
            lambda changed: (changed[each, labels] * whole).sum((1, 2)) / whole.sum((1, 2)), "areas",
            [f"{names[label]} {share:.1%}" if share else f"{names[label]}: no pixel" for label, share in rows],
            masks=masks,
        )  # fmt: skip

    def cells(self, outputs: Tensor) -> list[list[str | float]]:
        """The share of pixels of each class in each image."""
        shares = [row["shares"] for row in self.predict(outputs)]
        return [[round(share.get(name, 0.0), 6) for name in self.class_names] for share in shares]

    def write(self, outputs: Tensor, names: Sequence[str], folder: Path, seen: Sequence[Seen]) -> list[Path]:
        """A PNG with a palette for each image, in its size: the class of each pixel, 255 for pixels cut off."""
        from PIL import Image

        files = []
        for pixels, name, part in zip(outputs, names, seen, strict=True):
            picture = Image.fromarray(part.restore(pixels.cpu()).numpy(), mode="P")
            picture.putpalette(PALETTE.flatten().tolist())
            content = io.BytesIO()
            picture.save(content, "PNG")
            files.append(folder / "masks" / f"{name}.png")
            files[-1].parent.mkdir(exist_ok=True)
            write_atomically(files[-1], content.getvalue())
        return files

    def example(self, model: Any, count: int, objects: int = 1) -> Batch:
        device = next(model.parameters()).device
        images = torch.rand(count, *model.image_shape, device=device)
        masks = torch.randint(max(model.num_classes, 1), (count, *model.image_shape[1:]), device=device)
        return Batch(images, masks=masks)

    def draw_samples(self, batch: Batch, path: Path) -> None:
        assert batch.masks is not None
        draw_masks(batch.images[: self.most_drawn], {"mask": batch.masks[: self.most_drawn]}, self.class_names, path)

    @torch.inference_mode()
    def draw(self, model: nn.Module, batch: Batch, prepared: Batch, path: Path) -> None:
        """Draw images with their masks, if there are any, and with the predictions."""
        batch, prepared = (each.pick(slice(0, self.most_drawn)) for each in (batch, prepared))
        masks = {} if batch.masks is None else {"true": batch.masks}
        masks["predicted"] = self.apply(model, prepared).argmax(1)
        draw_masks(batch.images, masks, self.class_names, path)

    def summary(self, figures: Mapping[str, Any], chosen: str) -> list[tuple[str, str]]:
        rows = super().summary(figures, chosen)
        others = f"dice {self.show(figures['dice'])}, {self.show(figures['pixel_accuracy'])} of the pixels correct"
        if "boundary_distance" not in figures:  # of a run of an earlier version
            return [*rows, ("areas", others)]
        missed = f"{self.show(figures['boundary_missed'])} of the classes of images missed or invented"
        boundaries = f"{figures['boundary_distance']:.2f} pixels apart in the mean; {missed}"
        return [*rows, ("areas", others), ("boundaries", boundaries)]
