"""USPS from files of the published form."""

import bz2
from pathlib import Path

import torch

from mereo.data import load_splits


def write(path: Path, labels: list[int]) -> None:
    """Images of which every value is the label's, from -1 for 0 to 1 for 9."""
    rows = (f"{label + 1} " + " ".join(f"{i + 1}:{label / 4.5 - 1:.4f}" for i in range(256)) for label in labels)
    path.write_bytes(bz2.compress("\n".join(rows).encode()))


def test_labels_and_values_are_those_of_the_files(tmp_path: Path) -> None:
    write(tmp_path / "usps.bz2", [*range(10)] * 4)
    write(tmp_path / "usps.t.bz2", [9, 0, 3])
    splits = load_splits("usps", root=tmp_path, img_size=16)
    batch = splits.test.batch(torch.arange(3))
    assert batch.labels.tolist() == [9, 0, 3] and batch.images.shape == (3, 1, 16, 16)
    torch.testing.assert_close(batch.images.mean((1, 2, 3)), torch.tensor([1.0, 0.0, 1 / 3]), rtol=0, atol=1 / 255)
