"""Loading images: streamed from a folder, tar files and Parquet, and from memory, compared with timm's loader.

Every contender decodes the same generated JPEGs of side 256 in order, cuts out the centre of 224, and yields float32 in
[0, 1]; the means of the images are compared. One call is a pass over all of them, so that no loader works ahead while
another is timed, and the size `batch` is the number of images of a pass: the column of rates is images a second.
"""

import tempfile
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mereo.bench.suite import Contender, Mode, Setting, Suite, UnavailableError, Workload
from mereo.data import Batch, Images, load_splits
from mereo.data.decode import decode
from mereo.data.stream import StreamedSet, write_shards

CLASSES, SHARD_BYTES = 10, 2**24
TAKES = "(folder with train/<class>/*.jpg) -> float32 (images,), the mean of each image in the order of the folder"
_KEPT: list[tempfile.TemporaryDirectory[str]] = []


@lru_cache(maxsize=2)
def made_images(count: int, side: int) -> Path:
    """A folder of JPEGs as large as photographs, removed when the process ends."""
    from PIL import Image

    _KEPT.append(tempfile.TemporaryDirectory(prefix="mereo-bench-"))
    folder = Path(_KEPT[-1].name) / "images"
    random = np.random.default_rng(0)
    for index in range(count):
        coarse = random.integers(0, 256, (side // 8 + 1, side // 8 + 1, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)
        pixels = np.asarray(image, dtype=np.int16) + random.integers(-12, 13, (side, side, 3), dtype=np.int16)
        for split in ("train", "test") if index < CLASSES else ("train",):
            path = folder / split / f"class{index % CLASSES}" / f"{index:06d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=90)
    return folder


@lru_cache(maxsize=2)
def _shards(folder: Path) -> Path:
    write_shards(folder, folder.parent / "shards", shard_bytes=SHARD_BYTES)
    return folder.parent / "shards"


@lru_cache(maxsize=2)
def _parquet(folder: Path) -> Path:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UnavailableError("pyarrow is not installed") from None
    target = folder.parent / "tables"
    target.mkdir()
    for split in ("train", "test"):
        files = sorted((folder / split).glob("*/*.jpg"))
        columns = {"image": [file.read_bytes() for file in files], "label": [file.parent.name for file in files]}
        parquet.write_table(pyarrow.table(columns), target / f"{split}.parquet", row_group_size=256)
    return target


def _workers() -> int:
    return torch.get_num_threads()


def _splits(folder: Path, setting: Setting, stream: bool) -> Images:
    """Images stored at the side of the files, of which batches are the centre."""
    images = load_splits(
        str(folder), img_size=setting.size("side"), in_chans=3, validation_fraction=0, stream=stream
    ).train
    if isinstance(images, StreamedSet):
        size = images.image_shape[1:]
        return StreamedSet(images.source, images.class_names, size, 3, workers=_workers(), order="random")
    return images


def _batches(images: Images, setting: Setting, crop: int) -> Iterator[Batch]:
    order = torch.arange(len(images))
    images.prefetch(order)
    for part in order.split(setting.size("step")):
        yield images.batch(part, crop=(crop, crop))


def _ours(setting: Setting, place: Callable[[Path], Path], *, stream: bool = True) -> Callable[[Mode], Workload]:
    """A set of the images at what `place` makes of the folder."""

    def build(mode: Mode) -> Workload:
        folder = made_images(setting.size("batch"), setting.size("side"))
        images = _splits(place(folder), setting, stream)
        order = _in_order_of_folder(images, folder)
        crop = setting.size("crop")
        return Workload(lambda _: torch.cat([b.images.mean((1, 2, 3)) for b in _batches(images, setting, crop)])[order])

    return build


def _in_order_of_folder(images: Images, folder: Path) -> Tensor:
    """Positions of the folder's images in the set; shards are shuffled, so the bytes are compared."""
    if not isinstance(images, StreamedSet):
        return torch.arange(len(images))
    contents = {}
    for index in range(len(images)):
        with images.source.open(index) as stream:
            contents[stream.read()] = index
    files = sorted((folder / "train").glob("*/*.jpg"))
    return torch.tensor([contents[file.read_bytes()] for file in files])


class _Files(torch.utils.data.Dataset[Tensor]):
    """The decoder of this library behind PyTorch's loader."""

    def __init__(self, folder: Path, side: int) -> None:
        self.files, self.side = sorted((folder / "train").glob("*/*.jpg")), side

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        with self.files[index].open("rb") as stream:
            return torch.from_numpy(np.ascontiguousarray(decode(stream, (self.side, self.side), 3)))


def _processes(setting: Setting) -> Callable[[Mode], Workload]:
    def build(mode: Mode) -> Workload:
        folder = made_images(setting.size("batch"), setting.size("side"))
        loader = torch.utils.data.DataLoader(
            _Files(folder, setting.size("side")), setting.size("step"), num_workers=_workers(), persistent_workers=True
        )
        first = (setting.size("side") - setting.size("crop")) // 2
        inner = slice(first, first + setting.size("crop"))
        return Workload(lambda _: torch.cat([(b[..., inner, inner].float() / 255).mean((1, 2, 3)) for b in loader]))

    return build


def timm_loader(folder: Path, crop: int, side: int, batch: int) -> Any:
    """timm's loader for evaluation, in order, without normalisation."""
    try:
        from timm.data import ImageDataset, create_loader
    except ImportError:
        raise UnavailableError("timm is not installed") from None
    return create_loader(
        ImageDataset(str(folder / "train")), (3, crop, crop), batch, is_training=False, use_prefetcher=False,
        interpolation="bilinear", mean=(0.0,) * 3, std=(1.0,) * 3, num_workers=_workers(), crop_pct=crop / side,
        device=torch.device("cpu"), persistent_workers=True,
    )  # fmt: skip


def _timm(setting: Setting) -> Callable[[Mode], Workload]:
    def build(mode: Mode) -> Workload:
        side = setting.size("side")
        loader = timm_loader(made_images(setting.size("batch"), side), setting.size("crop"), side, setting.size("step"))
        return Workload(lambda _: torch.cat([images.mean((1, 2, 3)) for images, _ in loader]))

    return build


def contenders(setting: Setting) -> tuple[Contender, ...]:
    """timm's loader first."""
    return (
        Contender("timm", _timm(setting)),
        Contender("folder", _ours(setting, lambda folder: folder)),
        Contender("shards", _ours(setting, _shards)),
        Contender("parquet", _ours(setting, _parquet)),
        Contender("memory", _ours(setting, lambda folder: folder, stream=False)),
        Contender("folder, processes", _processes(setting)),
    )


DATA = Suite(
    "data",
    "loading JPEGs from a folder, shards, Parquet and memory, and by timm's loader",
    TAKES,
    {"batch": 2000, "side": 256, "crop": 224, "step": 128},
    lambda setting, mode: (made_images(setting.size("batch"), setting.size("side")),),
    contenders,
    lambda setting, mode: None,
    quick={"batch": 64, "side": 64, "crop": 56, "step": 16},
    modes=("forward",),
    memory=(),
)
