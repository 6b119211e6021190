"""Small files in the format of smallNORB's publishers."""

import gzip
import struct
from pathlib import Path

import numpy as np

from mereo.data.sets.smallnorb import STEMS

BYTES, INTEGERS = 0x1E3D4C55, 0x1E3D4C54
INSTANCES = {"train": (4, 6, 7, 8, 9), "test": (0, 1, 2, 3, 5)}


def write_matrix(path: Path, values: np.ndarray, kind: int) -> None:
    """One matrix, packed with gzip if the name ends so. The header has at least three sizes."""
    sizes = [*values.shape, *[1] * (3 - values.ndim)]
    head = struct.pack(f"<ii{len(sizes)}i", kind, values.ndim, *sizes)
    content = head + values.astype("<u1" if kind == BYTES else "<i4").tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_smallnorb(folder: Path, count: int = 60, side: int = 96, packed: bool = False) -> dict[str, tuple]:
    """The six files with `count` pairs in each split; returns images, labels and info of each."""
    folder.mkdir(parents=True, exist_ok=True)
    random, written = np.random.default_rng(0), {}
    for split, stem in STEMS.items():
        labels = np.arange(count) % 5
        images = random.integers(0, 128, (count, 2, side, side)).astype(np.uint8)
        images += (20 * labels).astype(np.uint8)[:, None, None, None]
        info = np.stack(
            [
                random.choice(INSTANCES[split], count), random.integers(0, 9, count),
                2 * random.integers(0, 18, count), random.integers(0, 6, count),
            ],
            axis=1,
        )  # fmt: skip
        written[split] = images, labels, info
        for part, values, kind in (("dat", images, BYTES), ("cat", labels, INTEGERS), ("info", info, INTEGERS)):
            write_matrix(folder / f"{stem}-{part}.mat{'.gz' * packed}", values, kind)
    return written
