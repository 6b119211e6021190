"""Which split a file of text belongs to; apart from the reading of text, so that listing data sets needs no PyTorch."""

import hashlib

SPLITS = ("train", "validation", "test")
PARTS = 20
"""Parts of a text: one is for testing, one for choosing the epoch, the others for training."""


def split_of(name: str) -> str:
    """The split of a file, from the SHA-256 of its name."""
    number = int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()[:8], "big") % PARTS
    return "test" if number == 0 else "validation" if number == 1 else "train"
