"""Writes shards: packs the images of a folder into tar files, to be read one by one or in sequence."""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from mereo.data.files import FileSplit
from mereo.data.folder import read_layout
from mereo.data.stream.tar_index import IMAGES, TarIndex, index_path, pack
from mereo.errors import UsageError, check_positive
from mereo.files import write_atomically

SHARD_BYTES = 2**28
_RECORD = 512


def write_shards(
    folder: str | Path, target: str | Path, *, shard_bytes: int = SHARD_BYTES, seed: int = 0
) -> list[Path]:
    """Pack an image folder or a .zip of one into `target`/<split>-000000.tar and following, each with an index file.

    Files are packed unchanged, in an order shuffled once, so that every shard has images of all classes. A member is
    `<number>.<suffix>` with its label in `<number>.cls`; classes.txt has the class names. An interrupted call can be
    repeated and writes the same files.

    Args:
        folder: {train, val, test}/<class>/*, or only <class>/*.
        target: folder of the shards.
        shard_bytes: a shard is closed before it would grow beyond this.
        seed: of the order.

    Returns:
        The tar files.
    """
    check_positive(shard_bytes=shard_bytes)
    splits, names = read_layout(Path(folder))
    target = Path(target)
    if target.is_dir() and any(file.suffix == ".tar" and not _ours(file, tuple(splits)) for file in target.iterdir()):
        raise UsageError(f"target is {str(target)!r}, which has other tar files; give a new folder.")
    written = []
    write_atomically(target / "classes.txt", "".join(f"{name}\n" for name in names))
    for split, part in splits.items():
        for number, (content, index) in enumerate(_shards(part, shard_bytes, seed)):
            path = target / f"{split}-{number:06d}.tar"
            write_atomically(path, content)
            write_atomically(index_path(path), pack(index, len(content)))
            written.append(path)
    return written


def _ours(file: Path, splits: tuple[str, ...]) -> bool:
    split, _, number = file.stem.rpartition("-")
    return split in splits and number.isdecimal()


def _shards(split: FileSplit, shard_bytes: int, seed: int) -> Iterator[tuple[bytes, TarIndex]]:
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(seed))
    stream, places, labels = io.BytesIO(), list[tuple[int, int]](), list[int]()
    for key, index in enumerate(order.tolist()):
        file = split.files[index]
        with split.tree.open(file) as opened:
            content = opened.read()
        grown = len(content) + 4 * _RECORD
        if places and stream.tell() + grown > shard_bytes:
            yield _close(stream, places, labels)
            stream, places, labels = io.BytesIO(), [], []
        suffix = Path(file).suffix.lower().removeprefix(".")
        label = int(split.labels[index])
        _append(stream, f"{key:09d}.{suffix if suffix in IMAGES else 'jpg'}", content)
        places.append((stream.tell() - -(-len(content) // _RECORD) * _RECORD, len(content)))
        _append(stream, f"{key:09d}.cls", str(label).encode())
        labels.append(label)
    yield _close(stream, places, labels)


def _append(stream: io.BytesIO, name: str, content: bytes) -> None:
    """One member: header, content, padding."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    stream.write(member.tobuf(tarfile.USTAR_FORMAT))
    stream.write(content + bytes(-len(content) % _RECORD))


def _close(stream: io.BytesIO, places: list[tuple[int, int]], labels: list[int]) -> tuple[bytes, TarIndex]:
    stream.write(bytes(2 * _RECORD))
    where = np.array(places, dtype=np.int64)
    index = TarIndex(where[:, 0].copy(), where[:, 1].copy(), np.array(labels, dtype=np.int64))
    return stream.getvalue(), index
