"""Images that are in a folder more than once: the same file, or the same picture at another size or quality."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

SIDE = 16
"""Rows and columns of a fingerprint."""
NEAR = 0.025
"""Root mean square difference of two fingerprints, of values in [0, 1], up to which they are of one picture."""
LEAST_CONTRAST = 0.05
"""Standard deviation of a fingerprint below which it is too uniform to distinguish images."""
MOST = 30_000
"""Images that are compared in pairs; of more, only equal files are grouped."""
_CHUNK = 2048


@dataclass(frozen=True)
class Duplicates:
    """Images that show the same.

    Attributes:
        members: their places in the list of images, in order.
        exact: whether the files are equal byte for byte.
    """

    members: tuple[int, ...]
    exact: bool


def content_hash(path: Path) -> str:
    """SHA-256 of the bytes of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprints(images: Tensor) -> Tensor:
    """Small versions of images, as rows. Shapes: (n, channels, height, width) in [0, 1] -> (n, channels * 256)."""
    return F.adaptive_avg_pool2d(images.float(), SIDE).flatten(1).cpu()


def find_duplicates(hashes: Sequence[str], prints: Tensor) -> list[Duplicates]:
    """Groups of images that show the same, larger groups first.

    Near duplicates are those whose fingerprints differ by at most `NEAR`, and what is connected by such pairs.

    Args:
        hashes: of the files.
        prints: their fingerprints.

    Shapes: prints (n, values).
    """
    parent = list(range(len(hashes)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    seen: dict[str, int] = {}
    for i, value in enumerate(hashes):
        parent[i] = seen.setdefault(value, i)
    if 1 < len(prints) <= MOST:
        rich = (prints.std(1) >= LEAST_CONTRAST).nonzero()[:, 0]
        some = prints[rich]
        limit = NEAR * prints.shape[1] ** 0.5
        for start in range(0, len(some), _CHUNK):
            part = some[start : start + _CHUNK]
            # Exact differences: the shorter formula with a product rounds small distances to zero.
            close = torch.cdist(part, some, compute_mode="donot_use_mm_for_euclid_dist") <= limit
            for a, b in close.nonzero().tolist():
                if (first := root(int(rich[start + a]))) != (second := root(int(rich[b]))):
                    parent[max(first, second)] = min(first, second)
    groups: dict[int, list[int]] = {}
    for i in range(len(hashes)):
        groups.setdefault(root(i), []).append(i)
    several = [
        Duplicates(tuple(members), len({hashes[i] for i in members}) == 1)
        for members in groups.values()
        if len(members) > 1
    ]
    return sorted(several, key=lambda group: (-len(group.members), group.members))
