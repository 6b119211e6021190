"""smallNORB from small files in the format of its publishers, and from hostile ones."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from mereo.data import dataset_info, load_splits
from mereo.data.load import load_size
from mereo.data.sets.smallnorb import STEMS, read_matrix
from mereo.errors import UsageError
from mereo.models import get_model_entry
from norb_files import BYTES, INTEGERS, write_matrix, write_smallnorb


@pytest.mark.parametrize("packed", [False, True])
def test_the_official_files_are_read(tmp_path: Path, packed: bool) -> None:
    written = write_smallnorb(tmp_path / ("smallnorb" if packed else ""), packed=packed)
    splits = load_splits("smallnorb", root=tmp_path, img_size=96, validation_fraction=0, download=False)
    assert splits.class_names == ("animal", "human", "airplane", "truck", "car") and splits.in_chans == 2
    for split in ("train", "test"):
        part, (images, labels, _) = getattr(splits, split), written[split]
        assert np.array_equal(part.images.numpy(), images) and np.array_equal(part.labels.numpy(), labels)


@pytest.mark.parametrize(
    ("options", "train", "test"),
    [
        ("viewpoints=azimuth", {300, 320, 340, 0, 20, 40}, set(range(60, 300, 20))),
        ("viewpoints=azimuth,familiar=true", {300, 320, 340, 0, 20, 40}, {300, 320, 340, 0, 20, 40}),
        ("viewpoints=elevation", {0, 1, 2}, {3, 4, 5, 6, 7, 8}),
        ("viewpoints=elevation,familiar=true", {0, 1, 2}, {0, 1, 2}),
    ],
)
def test_protocols_of_novel_viewpoints(tmp_path: Path, options: str, train: set[int], test: set[int]) -> None:
    written = write_smallnorb(tmp_path, side=4)
    splits = load_splits(f"smallnorb:{options}", root=tmp_path, img_size=4, validation_fraction=0)
    for split, wanted in (("train", train), ("test", test)):
        images, labels, info = written[split]
        place = 10 * info[:, 2] if "azimuth" in options else info[:, 1]
        chosen = np.isin(place, list(wanted))
        part = getattr(splits, split)
        assert 0 < chosen.sum() < len(images)
        assert np.array_equal(part.images.numpy(), images[chosen]) and np.array_equal(part.labels, labels[chosen])


def test_counts_of_the_protocols() -> None:
    assert dataset_info("smallnorb").splits == {"train": 24300, "test": 24300}
    assert dataset_info("smallnorb:viewpoints=azimuth").splits == {"train": 8100, "test": 16200}
    assert dataset_info("smallnorb:viewpoints=elevation,familiar=true").splits == {"train": 8100, "test": 8100}


def test_the_published_recipe_resizes_to_48_and_crops_32(tmp_path: Path) -> None:
    write_smallnorb(tmp_path)
    train = load_splits("smallnorb", root=tmp_path, img_size=32, crop_pct=2 / 3, validation_fraction=0).train
    assert train.image_shape == (2, 48, 48)
    whole = train.batch(torch.arange(3)).images
    assert torch.equal(train.batch(torch.arange(3), crop=(32, 32)).images, whole[:, :, 8:40, 8:40])
    drawn = train.batch(torch.arange(3), crop=(32, 32), generator=torch.Generator().manual_seed(0)).images
    places = [
        (whole[i].unfold(1, 32, 1).unfold(2, 32, 1) == drawn[i][:, None, None]).all(dim=(0, 3, 4)) for i in range(3)
    ]
    assert all(each.any() for each in places) and len({int(each.flatten().int().argmax()) for each in places}) > 1


@pytest.mark.parametrize(
    "name",
    [
        "capsnet_smallnorb",
        "matrix_capsnet_310k",
        "variational_capsnet_tiny",
        "variational_capsnet_small",
        "variational_capsnet_base",
        "self_routing_capsnet_convnet",
        "self_routing_capsnet_smallnet",
    ],
)
def test_networks_for_smallnorb_crop_32_of_48(name: str) -> None:
    assert load_size((32, 32), get_model_entry(name).crop_pct) == (48, 48)


def head(magic: int, *sizes: int, axes: int | None = None) -> bytes:
    return struct.pack(f"<ii{len(sizes)}i", magic, len(sizes) if axes is None else axes, *sizes)


HOSTILE = {
    "empty": b"",
    "another magic": head(0x1E3D4C51, 2, 2, 4, 4) + bytes(64),
    "big-endian": struct.pack(">ii4i", BYTES, 4, 2, 2, 4, 4) + bytes(64),
    "no axes": head(BYTES, 1, 1, 1, axes=0),
    "two billion axes": head(BYTES, 1, 1, 1, axes=2**31 - 1),
    "cut in its header": head(BYTES, 2, 2, 4, 4)[:-2],
    "truncated": head(BYTES, 2, 2, 4, 4) + bytes(63),
    "too long": head(BYTES, 2, 2, 4, 4) + bytes(65),
    "huge": head(BYTES, *[2**31 - 1] * 4) + bytes(64),
    "a little too large": head(BYTES, 2**20, 2, 32, 32) + bytes(64),
    "empty axis": head(BYTES, 0, 2, 4, 4),
    "negative": head(BYTES, -2, -2, 4, 4) + bytes(64),
    "three axes": head(BYTES, 2, 8, 4) + bytes(64),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_hostile_matrices_are_refused(tmp_path: Path, content: bytes, packed: bool) -> None:
    path = tmp_path / ("a.mat.gz" if packed else "a.mat")
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(UsageError, match=r"a\.mat"):
        read_matrix(path, 4)


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.mat.gz"
    whole = gzip.compress(head(BYTES, 2, 2, 4, 4) + bytes(range(64)))
    for content in (b"", b"no archive", whole[: len(whole) // 2], whole[:-6] + b"\0" * 6):
        path.write_bytes(content)
        with pytest.raises(UsageError):
            read_matrix(path, 4)


@pytest.mark.parametrize(
    ("part", "values", "kind"),
    [
        ("cat", np.full(60, 5), INTEGERS), ("cat", np.full(60, -1), INTEGERS), ("cat", np.zeros(59), INTEGERS),
        ("info", np.full((60, 4), 9), INTEGERS), ("info", np.zeros((60, 3)), INTEGERS),
        ("info", np.tile([0, 0, 36, 0], (60, 1)), INTEGERS), ("dat", np.zeros((60, 1, 4, 4)), BYTES),
        ("dat", np.zeros((60, 2, 4, 4)), INTEGERS),
    ],
)  # fmt: skip
def test_files_that_do_not_belong_together_are_refused(
    tmp_path: Path, part: str, values: np.ndarray, kind: int
) -> None:
    write_smallnorb(tmp_path, side=4)
    write_matrix(tmp_path / f"{STEMS['train']}-{part}.mat", values, kind)
    with pytest.raises(UsageError, match=f"-({part}|dat)\\.mat"):
        load_splits("smallnorb", root=tmp_path, img_size=4)
