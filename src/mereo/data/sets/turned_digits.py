"""Turned digits: the digits of the package, enlarged and turned by a random angle, which is to be predicted."""

from pathlib import Path
from typing import TYPE_CHECKING

from mereo.data.registry import register_dataset
from mereo.data.sets import digits

if TYPE_CHECKING:
    from mereo.data.raw import RawDataset

SIDE, SEED, LARGEST = 16, 0, 60.0
"""Side of an image, and the largest angle in degrees to either side."""
SPLITS = {"train": 1438, "test": 359}


def read(root: Path, download: bool) -> "RawDataset":
    """Angles are drawn evenly, counted counter-clockwise; what turning leaves open is black."""
    import torch
    import torch.nn.functional as F

    from mereo.data.geometric import rotation, transform
    from mereo.data.raw import ArraySplit, RawDataset, Request

    splits = {}
    for number, (name, split) in enumerate(digits.read(root, download).splits.items()):
        whole = split.read(Request((8, 8), 1))
        degrees = torch.rand(len(split), generator=torch.Generator().manual_seed(SEED + number)) * 2 * LARGEST - LARGEST
        large = F.interpolate(whole.images / 255, (SIDE, SIDE), mode="bilinear", align_corners=False)
        turned = transform(large, rotation(degrees.deg2rad()))
        pixels = (255 * turned.clamp(0, 1)).round().to(torch.uint8)
        splits[name] = ArraySplit(pixels, torch.zeros_like(whole.labels), fields={"values": degrees.unsqueeze(1)})
    return RawDataset(dict(splits), ("degrees",), 1)


register_dataset(
    "turned_digits",
    summary="digits turned by up to 60 degrees, with the angle; made from the digits of the package",
    source="ours, from the digits",
    num_classes=1,
    in_chans=1,
    size=(SIDE, SIDE),
    splits=SPLITS,
    read=read,
    augment=(),
    fields=("images", "values"),
)
