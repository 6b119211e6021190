"""Writes shards: packs the images of a folder into tar files, to be read one by one or in sequence."""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import torch

from mereo.data.encoded import FileSplit
from mereo.data.layout import read_layout
from mereo.data.stream.tar_index import IMAGES
from mereo.errors import UsageError, check_positive
from mereo.files import write_atomically

SHARD_BYTES = 2**28


def write_shards(
    folder: str | Path, target: str | Path, *, shard_bytes: int = SHARD_BYTES, seed: int = 0
) -> list[Path]:
    """Pack an image folder or a .zip of one into `target`/<split>-000000.tar and following.

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
    splits, names, _ = read_layout(Path(folder))
    target = Path(target)
    if target.is_dir() and any(file.suffix == ".tar" and not _ours(file, tuple(splits)) for file in target.iterdir()):
        raise UsageError(f"target is {str(target)!r}, which has other tar files; give a new folder.")
    written = []
    write_atomically(target / "classes.txt", "".join(f"{name}\n" for name in names))
    for split, part in splits.items():
        for number, content in enumerate(_shards(part, shard_bytes, seed)):
            path = target / f"{split}-{number:06d}.tar"
            write_atomically(path, content)
            written.append(path)
    return written


def _ours(file: Path, splits: tuple[str, ...]) -> bool:
    split, _, number = file.stem.rpartition("-")
    return split in splits and number.isdecimal()


def _shards(split: FileSplit, shard_bytes: int, seed: int) -> Iterator[bytes]:
    """The content of each tar file."""
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(seed))
    stream = io.BytesIO()
    archive = tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115
    for key, index in enumerate(order.tolist()):
        with split.open(index) as opened:
            content = opened.read()
        if archive.offset and archive.offset + len(content) + 4 * tarfile.BLOCKSIZE > shard_bytes:
            yield _closed(archive, stream)
            stream = io.BytesIO()
            archive = tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115
        suffix = Path(split.name(index)).suffix.lower().removeprefix(".")
        label = str(int(split.labels[index])).encode()
        for ending, part in ((suffix if suffix in IMAGES else "jpg", content), ("cls", label)):
            member = tarfile.TarInfo(f"{key:09d}.{ending}")
            member.size = len(part)
            archive.addfile(member, io.BytesIO(part))
    yield _closed(archive, stream)


def _closed(archive: tarfile.TarFile, stream: io.BytesIO) -> bytes:
    """The content of a tar file, which ends with two empty blocks; `close` writes more of them."""
    end = archive.offset
    archive.close()
    return stream.getvalue()[: end + 2 * tarfile.BLOCKSIZE]
