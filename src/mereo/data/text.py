"""Text as bytes: its splits, and windows of a length that are served as tokens.

The files of a split stand one after the other, each with a byte of value 0 behind it. Window i of length L holds the
bytes i L to i L + L - 1 as targets and the byte before each as input, 0 before the first. Every byte of a split is
therefore predicted exactly once.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mereo.data.batch import Batch
from mereo.data.images import BatchOptions, Images, identity
from mereo.data.load import Splits, Wanted
from mereo.data.registry import DATASETS, DatasetInfo
from mereo.data.regular import kind_of, open_regular, user_path
from mereo.data.sources import data_root
from mereo.data.text_splits import PARTS, SPLITS, split_of
from mereo.errors import MereoError, UsageError, check_positive
from mereo.runtime.device import copied_to

END = 0
"""The byte behind each file, and before the first byte of a split."""
BYTES = 256
MOST = 2**30
"""Bytes of a folder or file that is read as text."""
_LOOKED_AT = 2**13


class Text(NamedTuple):
    """The bytes of each split.

    Attributes:
        splits: uint8 (bytes,) by name.
        digest: SHA-256 of the names and bytes of all splits.
    """

    splits: Mapping[str, Tensor]
    digest: str


def make_text(splits: Mapping[str, bytes]) -> Text:
    """The splits with their digest."""
    digest = hashlib.sha256()
    for name in SPLITS:
        digest.update(f"{name} {len(splits[name])}\n".encode())
        digest.update(splits[name])
    # A copy, because bytes cannot be written to, which PyTorch warns of.
    return Text(
        {name: torch.from_numpy(np.frombuffer(splits[name], np.uint8).copy()) for name in SPLITS}, digest.hexdigest()
    )


def join_files(files: Iterable[tuple[str, bytes]]) -> Text:
    """Named files, in order, each in the split of its name."""
    parts: dict[str, bytearray] = {name: bytearray() for name in SPLITS}
    for name, content in files:
        parts[split_of(name)] += content + bytes([END])
    return make_text({name: bytes(part) for name, part in parts.items()})


def _read(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read()
    except OSError as error:
        raise MereoError(f"cannot read {path}: {error.strerror or error}.") from error


def _files_in(folder: Path) -> Iterator[tuple[str, bytes]]:
    """The text files of a folder, hidden ones left out: those without a byte of value 0 near their start."""
    size = 0
    for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).as_posix()):
        name = path.relative_to(folder)
        if any(part.startswith(".") for part in name.parts) or kind_of(path) != "file":
            continue
        size += path.stat().st_size
        if size > MOST:
            raise UsageError(f"data is {str(folder)!r}, of more than {MOST:,} bytes; give a smaller folder.")
        content = _read(path)
        if content and END not in content[:_LOOKED_AT]:
            yield name.as_posix(), content


def read_path(path: Path) -> Text:
    """The text of a file or a folder.

    The files of a folder are divided by their names. One file, or a folder with too few files to fill every split,
    is divided in order: the last twentieth is for testing, the one before it for choosing the epoch.
    """
    if kind_of(path) == "folder":
        files = list(_files_in(path))
        text = join_files(files)
        if all(len(part) for part in text.splits.values()):
            return text
        whole = b"".join(content + bytes([END]) for _, content in files)
    elif path.stat().st_size > MOST:
        raise UsageError(f"data is {str(path)!r}, of more than {MOST:,} bytes; give a smaller file.")
    else:
        whole = _read(path)
    part = len(whole) // PARTS
    if part == 0:
        raise UsageError(f"data is {str(path)!r}, with {len(whole)} bytes of text; it needs at least {PARTS}.")
    held = len(whole) - 2 * part
    return make_text({"train": whole[:held], "validation": whole[held : held + part], "test": whole[held + part :]})


def path_info(data: str, root: str | Path | None = None) -> DatasetInfo:
    """Facts about the text of a file or folder; its splits count bytes."""
    path = user_path("data", data)
    for place in (path, data_root(root) / path):
        if kind_of(place) in ("file", "folder"):
            return _info_of(data, place)
    known = ", ".join(name for name, info in sorted(DATASETS.items()) if "tokens" in info.fields)
    raise UsageError(f"data is {data!r}, and there is no such data set, file or folder; give {known} or a path.")


def _info_of(data: str, path: Path) -> DatasetInfo:
    text = read_path(path)
    counts = {name: len(part) for name, part in text.splits.items()}
    return DatasetInfo(
        data, "text as bytes", str(path), BYTES, 1, None, counts, (), fields=("tokens",), path=path,
        load=windows_of(lambda: text), counts="bytes",
    )  # fmt: skip


class TokenWindows(Images):
    """Windows of a stream of bytes, served as tokens.

    With a generator (training), each window is shifted by a random number of bytes below the length; without
    (evaluation), the windows cover every byte once.

    Args:
        stream: the bytes.
        length: of the windows.
        starts: the first byte of each window; None for windows that cover every byte.

    Shapes: stream uint8 (bytes,), starts int64 (n,); batches have tokens int64 (batch, length + 1), of which the first
    is input only, and lengths int64 (batch,) where a window ends with the stream and is padded.
    """

    class_names: tuple[str, ...] = ()
    serves = "tokens"

    def __init__(self, stream: Tensor, length: int, starts: Tensor | None = None) -> None:
        check_positive(length=length)
        if stream.dtype != torch.uint8 or stream.dim() != 1:
            raise UsageError(f"stream is {stream.dtype} of shape {tuple(stream.shape)}; it must be uint8 (bytes,).")
        self.stream, self.length = stream, length
        self.starts = torch.arange(0, len(stream), length) if starts is None else starts

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(1, 1, bytes of a window): what a sample takes in memory."""
        return 1, 1, self.length

    @property
    def strata(self) -> Tensor:
        return torch.zeros_like(self.starts)

    @property
    def content(self) -> bytes:
        """The bytes of all windows, as they are compressed for comparison."""
        stream = self.stream.cpu()
        chosen = [stream[start : start + self.length] for start in self.starts.tolist()]
        return (torch.cat(chosen) if chosen else stream[:0]).numpy().tobytes()

    def describe(self) -> dict[str, Any]:
        """The identity of the data as plain values; it changes if any byte or window changes."""
        return identity(len(self), (self.length,), self.stream, self.starts)

    def to(self, device: torch.device | str) -> "TokenWindows":
        return TokenWindows(self.stream.to(device), self.length, self.starts)

    def subset(self, indices: Tensor) -> "TokenWindows":
        return TokenWindows(self.stream, self.length, self.starts[indices.cpu()])

    def make_batch(self, indices: Tensor, options: BatchOptions) -> Batch:
        """The windows at `indices`; there are no images to crop."""
        generator, share, device = options.generator, options.share, options.device
        starts, last = self.starts[indices.cpu()], max(len(self.stream) - self.length, 0)
        if generator is not None:
            shifts = torch.randint(0, self.length, (len(starts),), generator=generator)
            starts = (starts + shifts).clamp(max=last)
        starts = starts[share]
        # Place t + 1 of a window is the byte at start + t; place 0 is the byte before.
        places = starts.unsqueeze(1) + torch.arange(-1, self.length)
        inside = (places >= 0) & (places < len(self.stream))
        held = places.clamp(0, max(len(self.stream) - 1, 0)).to(self.stream.device)
        tokens = copied_to(torch.where(inside.to(held.device), self.stream[held].long(), END), device)
        lengths = (len(self.stream) - starts + 1).clamp(max=self.length + 1)
        full = bool((lengths == self.length + 1).all())
        return Batch(tokens=tokens, lengths=None if full else lengths.to(tokens.device))


def windows_of(read: Callable[[], Text]) -> Callable[[Wanted], Splits]:
    """How the splits of a text are loaded: as windows of the length that is wanted, the training ones spread evenly."""

    def load(wanted: Wanted) -> Splits:
        assert wanted.length is not None
        windows = {name: TokenWindows(stream, wanted.length) for name, stream in read().splits.items()}
        train = windows["train"]
        if wanted.limit is not None and wanted.limit < len(train):
            train = train.subset(torch.arange(wanted.limit) * (len(train) // wanted.limit))
        return Splits(train, windows["validation"], windows["test"], (), 1, 0)

    return load
