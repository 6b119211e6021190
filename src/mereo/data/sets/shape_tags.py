"""Shape tags: the images of shape masks with the names of the shapes that are seen, several or one of them."""

from pathlib import Path
from typing import TYPE_CHECKING

from mereo.data.registry import register_dataset
from mereo.data.sets import shape_masks

if TYPE_CHECKING:
    from mereo.data.raw import RawDataset

TAGS = shape_masks.CLASSES[1:]


def read(root: Path, download: bool) -> "RawDataset":
    """A shape is seen if it has a pixel of the mask; shapes that others hide are not."""
    import torch

    from mereo.data.raw import ArraySplit, RawDataset, Request

    splits, masked = {}, shape_masks.read(root, download).splits
    for name, split in masked.items():
        whole = split.read(Request((shape_masks.SIDE, shape_masks.SIDE), 3))
        seen = [(whole.fields["masks"] == number).flatten(1).any(1) for number in range(1, len(TAGS) + 1)]
        fields = {"multi_hot": torch.stack(seen, 1).to(torch.int8)}
        splits[name] = ArraySplit(whole.images, whole.labels, fields=fields)
    return RawDataset(dict(splits), TAGS, 3)


register_dataset(
    "shape_tags",
    summary="discs, squares, triangles and crosses with the names of the shapes in an image; generated when needed",
    source="ours",
    num_classes=len(TAGS),
    in_chans=3,
    size=(shape_masks.SIDE, shape_masks.SIDE),
    splits=shape_masks.COUNTS,
    read=read,
    augment=("flip",),
    fields=("images", "multi_hot"),
)
