"""The maps of a frozen backbone for its heads, computed once: maps averaged over the patches that the heads read."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.data import Batch
from mereo.data.images import BatchOptions, Images
from mereo.data.tensor_set import TensorSet
from mereo.errors import UsageError
from mereo.inference.evaluate import normalise
from mereo.inference.mode import evaluating
from mereo.models.on_backbone import OnBackbone
from papers.common.fitting import batches


class AveragedMaps(TensorSet):
    """The maps of images, averaged over equal patches; a batch has them as `images`, a row of numbers for each.

    Patches that divide a map keep its mean and the means of its patches, so that heads which read only those compute
    the same on these maps as on the backbone's own.

    Args:
        maps: (images, channels, rows, columns) each.
        labels: int64 (images,).
        class_names: of the labels.
    """

    of_samples = ("rows", "labels")

    def __init__(self, maps: Sequence[Tensor], labels: Tensor, class_names: tuple[str, ...]) -> None:
        self.shapes = [tuple(x.shape[1:]) for x in maps]
        self.rows, self.labels, self.class_names = torch.cat([x.flatten(1) for x in maps], 1), labels, class_names

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return (1, 1, self.rows.shape[1])

    @property
    def strata(self) -> Tensor:
        return self.labels

    def unpack(self, rows: Tensor) -> list[Tensor]:
        """The maps (batch, channels, rows, columns) of the `images` of a batch."""
        sizes = [torch.Size(shape).numel() for shape in self.shapes]
        parts = rows.split(sizes, 1)
        return [part.unflatten(1, shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def make_batch(self, indices: Tensor, options: BatchOptions) -> Batch:
        if options.augmentation is not None or options.crop is not None:
            raise UsageError("maps that were computed once cannot be augmented or cropped; leave both out.")
        batch = Batch(self.rows[indices], self.labels[indices]).pick(options.share)
        return batch if options.device is None else batch.to(options.device)


@torch.no_grad()
def averaged_maps(
    model: OnBackbone, images: Images, cells: Sequence[int], device: torch.device, batch_size: int = 50
) -> AveragedMaps:
    """The maps of a model's backbone, averaged over `cells` x `cells` patches.

    Args:
        model: a network on a backbone.
        images: for it.
        cells: of each map, patches a side; they must divide the map.
        device: of the model.
        batch_size: images that are read at a time.
    """
    cfg, kept, labels = model.pretrained_cfg, [], []
    with evaluating(model):
        for batch in batches(images, batch_size, device):
            maps = model.backbone(normalise(batch.images, cfg["mean"], cfg["std"]))
            for x, count in zip(maps, cells, strict=True):
                if x.shape[2] % count or x.shape[3] % count:
                    raise UsageError(
                        f"cells is {tuple(cells)}, and {count} patches a side do not divide a map of {x.shape[2]} x"
                        f" {x.shape[3]}."
                    )
            kept.append([F.adaptive_avg_pool2d(x, count) for x, count in zip(maps, cells, strict=True)])
            labels.append(batch.labels)
    return AveragedMaps([torch.cat(parts) for parts in zip(*kept, strict=True)], torch.cat(labels), images.class_names)
