"""Small stand-ins for datasets, in the layouts of the real ones."""

import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from mereo.data import ImageSet
from pictures import picture


@pytest.fixture
def images() -> ImageSet:
    torch.manual_seed(0)
    pixels = torch.randint(0, 256, (20, 3, 7, 6), dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(20) % 4, tuple("abcd"))


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    """make_folder("train/cat=3", "train/dog=2") writes 3 and 2 pictures."""

    def make(*counts: str, name: str = "pictures", channels: int = 3) -> Path:
        root = tmp_path / name
        for place, count in (entry.split("=") for entry in counts):
            folder = root / place
            folder.mkdir(parents=True, exist_ok=True)
            for index in range(int(count)):
                picture(len(place) * 100 + index, channels=channels).save(folder / f"{index:03d}.png")
        return root

    return make


@pytest.fixture
def make_mnist(tmp_path: Path) -> Callable[..., Path]:
    """Write the four files of MNIST or FashionMNIST with few images; returns the root."""

    def make(kind: str = "MNIST", train: int = 40, test: int = 20, side: int = 28) -> Path:
        raw = tmp_path / "root" / kind / "raw"
        raw.mkdir(parents=True)
        random = np.random.default_rng(0)
        for prefix, count in (("train", train), ("t10k", test)):
            pixels = random.integers(0, 256, (count, side, side), dtype=np.uint8)
            labels = (np.arange(count) % 10).astype(np.uint8)
            head = struct.pack(">iiii", 2051, count, side, side)
            (raw / f"{prefix}-images-idx3-ubyte").write_bytes(head + pixels.tobytes())
            (raw / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">ii", 2049, count) + labels.tobytes())
        return tmp_path / "root"

    return make


@pytest.fixture
def zipped() -> Callable[[Path, Path], Path]:
    """Pack a folder into an archive."""

    def pack(folder: Path, target: Path) -> Path:
        with zipfile.ZipFile(target, "w") as archive:
            for path in sorted(folder.rglob("*")):
                archive.write(path, path.relative_to(folder).as_posix())
        return target

    return pack
