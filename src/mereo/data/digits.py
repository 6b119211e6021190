"""The handwritten digits that travel with the package: 1797 images of 8 x 8 pixels, for tests and first steps."""

from importlib import resources

import numpy as np
import torch

from mereo.data.raw import ArraySplit, RawDataset
from mereo.data.split import hold_out

TEST_FRACTION, TEST_SEED = 0.2, 0
DARKEST = 16


def read_digits() -> RawDataset:
    """Values 0 .. 16 spread over 0 .. 255; a stratified fifth, the same in every run, is the test split."""
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
