"""The handwritten digits that are part of the package: 1797 images of 8 x 8 pixels, for tests and first steps."""

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from mereo.data.registry import register_dataset

if TYPE_CHECKING:
    from mereo.data.raw import RawDataset

TEST_FRACTION, TEST_SEED = 0.2, 0
DARKEST = 16


def read(root: Path, download: bool) -> "RawDataset":
    """Values 0 .. 16 spread over 0 .. 255; a stratified fifth, the same in every run, is the test split."""
    import numpy as np
    import torch

    from mereo.data.raw import ArraySplit, RawDataset
    from mereo.data.split import hold_out

    with (
        resources.as_file(resources.files("mereo.data") / "digits.npz") as path,
        np.load(path, allow_pickle=False) as file,
    ):
        values, labels = file["images"].astype(np.int64), file["labels"].astype(np.int64)
    pixels = ((values * 255 + DARKEST // 2) // DARKEST).astype(np.uint8)
    whole = ArraySplit(torch.from_numpy(pixels).unsqueeze(1), torch.from_numpy(labels))
    kept, held = hold_out(whole.labels, TEST_FRACTION, TEST_SEED)
    splits = {"train": whole.take(kept), "test": whole.take(held)}
    return RawDataset(dict(splits), tuple(str(digit) for digit in range(10)), 1)


register_dataset(
    "digits",
    summary="handwritten digits of 8 x 8 pixels, part of the package",
    source="Alpaydin, Kaynak, Optical recognition of handwritten digits, UCI, 1998 (CC BY 4.0)",
    num_classes=10,
    in_chans=1,
    size=(8, 8),
    splits={"train": 1438, "test": 359},
    read=read,
    augment=("rotate=10", "crop=2"),
)
