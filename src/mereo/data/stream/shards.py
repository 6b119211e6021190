"""Writes shards: packs the images of a folder into tar files, to be read one by one or in sequence."""

import contextlib
import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from mereo.data.decode import decode_mask
from mereo.data.encoded import FileSplit
from mereo.data.layout import read_layout
from mereo.data.layout_options import LayoutOptions
from mereo.data.stream.tar_index import IMAGES, MASK
from mereo.errors import UsageError, check_positive
from mereo.files import write_atomically

SHARD_BYTES = 2**28


def write_shards(
    folder: str | Path,
    target: str | Path,
    *,
    shard_bytes: int = SHARD_BYTES,
    seed: int = 0,
    options: LayoutOptions | None = None,
) -> list[Path]:
    """Pack a folder of images, a .zip of one or a table into `target`/<split>-000000.tar and following.

    Images are packed unchanged, in an order shuffled once, so that every shard has images of all classes. A member is
    `<number>.<suffix>` with its label in `<number>.cls`, its several labels or numbers in `<number>.json`, or its mask
    of indices in `<number>.mask.png`; classes.txt has the class names. An interrupted call can be repeated and writes
    the same files.

    Args:
        folder: as for `mereo train --data`.
        target: folder of the shards.
        shard_bytes: a shard is closed before it would grow beyond this.
        seed: of the order.
        options: what is stated of the folder or table: its task and its columns.

    Returns:
        The tar files.
    """
    check_positive(shard_bytes=shard_bytes)
    splits, names, _ = read_layout(Path(folder), options=options)
    target = Path(target)
    if target.is_dir() and any(file.suffix == ".tar" and not _ours(file, tuple(splits)) for file in target.iterdir()):
        raise UsageError(f"target is {str(target)!r}, which has other tar files; give a new folder.")
    written = []
    write_atomically(target / "classes.txt", "".join(f"{name}\n" for name in names))
    for split, part in splits.items():
        for number, content in enumerate(_shards(part, names, shard_bytes, seed)):
            path = target / f"{split}-{number:06d}.tar"
            write_atomically(path, content)
            written.append(path)
    return written


def _ours(file: Path, splits: tuple[str, ...]) -> bool:
    split, _, number = file.stem.rpartition("-")
    return split in splits and number.isdecimal()


def _answer(split: FileSplit, index: int, names: Sequence[str]) -> tuple[str, bytes]:
    """The suffix and the content of the member with the label, the labels, the numbers or the mask of an image."""
    if split.masks is not None:
        from PIL import Image

        with split.masks.open(int(split.numbers[index])) as opened:
            content = opened.read()
        with contextlib.suppress(Exception):  # a damaged mask is packed as it is, and reported when it is read
            stream = io.BytesIO()
            Image.fromarray(decode_mask(io.BytesIO(content), split.colours)).save(stream, "PNG")
            content = stream.getvalue()
        return f"{MASK}png", content
    if (hot := split.fields.get("multi_hot")) is not None:
        labels = [names[place] for place in hot[index].nonzero().flatten().tolist()]
        return "json", json.dumps({"labels": labels}).encode()
    if (values := split.fields.get("values")) is not None:
        numbers = dict(zip(names, values[index].tolist(), strict=True))
        return "json", json.dumps({"values": numbers}).encode()
    return "cls", str(int(split.labels[index])).encode()


def _shards(split: FileSplit, names: Sequence[str], shard_bytes: int, seed: int) -> Iterator[bytes]:
    """The content of each tar file."""
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(seed))
    stream = io.BytesIO()
    archive = tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115
    for key, index in enumerate(order.tolist()):
        with split.open(index) as opened:
            content = opened.read()
        answer = _answer(split, index, names)
        size = len(content) + len(answer[1]) + 4 * tarfile.BLOCKSIZE
        if archive.offset and archive.offset + size > shard_bytes:
            yield _closed(archive, stream)
            stream = io.BytesIO()
            archive = tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115
        suffix = Path(split.name(index)).suffix.lower().removeprefix(".")
        for ending, part in ((suffix if suffix in IMAGES else "jpg", content), answer):
            member = tarfile.TarInfo(f"{key:09d}.{ending}")
            member.size = len(part)
            archive.addfile(member, io.BytesIO(part))
    yield _closed(archive, stream)


def _closed(archive: tarfile.TarFile, stream: io.BytesIO) -> bytes:
    """The content of a tar file, which ends with two empty blocks; `close` writes more of them."""
    end = archive.offset
    archive.close()
    return stream.getvalue()[: end + 2 * tarfile.BLOCKSIZE]
