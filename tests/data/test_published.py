"""Datasets by name, from small files in their layouts; nothing is downloaded."""

import gzip
import os
import pickle
import sys
from collections.abc import Callable
from hashlib import md5
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision import datasets

from mereo.data import DATASETS, dataset_info, list_datasets, load_splits
from mereo.errors import MereoError, UsageError

MakeMnist = Callable[..., Path]


def write_cifar(root: Path, protocol: int = 2) -> np.ndarray:
    """The files of CIFAR-10 with 20 images each, all the same."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    rows = np.random.default_rng(0).integers(0, 256, (20, 3072), dtype=np.uint8)
    batch = {"data": rows, "labels": [index % 10 for index in range(20)]}
    for name in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"):
        (folder / name).write_bytes(pickle.dumps(batch, protocol))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}, protocol))
    return rows


def test_digits_travel_with_the_package() -> None:
    splits = load_splits("digits", img_size=8, validation_fraction=0)
    assert {"train": len(splits.train), "test": len(splits.test)} == DATASETS["digits"].splits
    test = splits.test.batch(torch.arange(len(splits.test)))
    train = splits.train.batch(torch.arange(len(splits.train)))
    total = train.labels.bincount() + test.labels.bincount()
    assert total.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (test.labels.bincount() - 0.2 * total).abs().max() < 1
    assert train.images.min() == 0
    assert train.images.max() == 1
    assert len((train.images * 255).round().unique()) == 17


def test_digits_are_those_of_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.datasets")
    whole = sklearn.load_digits()
    splits = load_splits("digits", img_size=8, validation_fraction=0)
    pixels = torch.cat([part.batch(torch.arange(len(part))).images for part in (splits.train, splits.test)])
    theirs = torch.from_numpy(whole.images / 16).flatten(1)
    assert torch.allclose(pixels.flatten(1).double().sum(0), theirs.sum(0), atol=2)


@pytest.mark.parametrize(("name", "kind"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_mnist_and_its_like(make_mnist: MakeMnist, name: str, kind: str) -> None:
    splits = load_splits(name, root=make_mnist(kind), img_size=32, in_chans=3, validation_fraction=0.25)
    assert [len(splits.train), len(splits.validation or ()), len(splits.test)] == [30, 10, 20]
    assert splits.train.image_shape == (3, 32, 32)
    assert len(splits.class_names) == dataset_info(name).num_classes
    assert splits.class_names[9] == ("9" if name == "mnist" else "Ankle boot")


def test_multimnist_is_made_from_mnist(make_mnist: MakeMnist) -> None:
    root = make_mnist()
    splits = load_splits("multimnist", root=root, img_size=36, pairs_per_image=5, seed=3)
    assert [len(splits.train), len(splits.validation or ()), len(splits.test)] == [36, 4, 100]
    batch = splits.test.batch(torch.arange(3))
    assert batch.images.shape == (3, 1, 36, 36)
    assert batch.labels.shape == (3, 2)
    other = load_splits("multimnist", root=root, img_size=36, seed=4)
    assert torch.equal(other.test.batch(torch.arange(3)).images, batch.images)
    with pytest.raises(UsageError, match="above 8"):
        load_splits("multimnist", root=root, img_size=8)


def test_svhn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scipy_io = pytest.importorskip("scipy.io")
    (tmp_path / "SVHN").mkdir()
    entries = {}
    random = np.random.default_rng(0)
    for split, count in (("train", 30), ("test", 20)):
        path = tmp_path / "SVHN" / f"{split}_32x32.mat"
        labels = (np.arange(count) % 10 + 1)[:, None].astype(np.uint8)
        scipy_io.savemat(path, {"X": random.integers(0, 256, (32, 32, 3, count), dtype=np.uint8), "y": labels})
        entries[split] = ["none", path.name, md5(path.read_bytes(), usedforsecurity=False).hexdigest()]
    monkeypatch.setattr(datasets.SVHN, "split_list", entries)
    splits = load_splits("svhn", root=tmp_path, img_size=32, validation_fraction=0, download=False)
    assert splits.train.image_shape == (3, 32, 32)
    assert splits.test.batch(torch.arange(20)).labels.tolist() == [*range(1, 10), 0] * 2


def test_svhn_without_scipy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(MereoError, match="pip install scipy"):
        load_splits("svhn", root=tmp_path, img_size=32)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_cifar_from_pickles(tmp_path: Path, protocol: int) -> None:
    rows = write_cifar(tmp_path, protocol=protocol)
    splits = load_splits("cifar10", root=tmp_path, img_size=32, validation_fraction=0, download=False)
    images = splits.train.batch(torch.arange(100)).images
    assert torch.equal(images[:20], torch.from_numpy(rows).view(20, 3, 32, 32) / 255)
    assert (len(splits.test), splits.class_names) == (20, tuple("abcdefghij"))


class Hostile:
    """A pickle of it calls `os.mkdir`."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("ran",)


@pytest.mark.parametrize(
    "content",
    [
        Hostile(),
        {"data": Hostile(), "labels": []},
        {"data": np.array([Hostile(), 1], dtype=object), "labels": [0, 1]},
        {"data": np.zeros((2, 3072), dtype=np.complex128), "labels": [0, 1]},
        {"data": np.zeros((2, 3072), dtype=np.uint8), "labels": [0]},
        [1, 2],
        {},
    ],
    ids=["a call", "a call inside", "objects", "complex numbers", "fewer labels", "a list", "nothing"],
)
def test_a_pickle_of_anything_but_arrays_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: object
) -> None:
    monkeypatch.chdir(tmp_path)
    write_cifar(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(pickle.dumps(content))
    with pytest.raises(MereoError, match="cifar10 cannot be read"):
        load_splits("cifar10", root=tmp_path, img_size=32, download=False)
    assert not (tmp_path / "ran").exists()


def test_cifar_from_a_folder_or_an_archive(
    make_folder: Callable[..., Path], zipped: Callable[..., Path], tmp_path: Path
) -> None:
    folder = make_folder("train/car=4", "train/frog=4", "test/car=2", "test/frog=1", name="cifar10")
    splits = load_splits("cifar10", root=tmp_path, img_size=8, download=False)
    assert (len(splits.test), splits.class_names, splits.in_chans) == (3, ("car", "frog"), 3)
    (tmp_path / "root").mkdir()
    zipped(folder, tmp_path / "root" / "cifar10-jpeg.zip")
    packed = load_splits("cifar10", root=tmp_path / "root", img_size=8, download=False)
    assert torch.equal(packed.test.batch(torch.arange(3)).images, splits.test.batch(torch.arange(3)).images)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("mnist", "train-images-idx3-ubyte"),
        ("multimnist", "t10k-labels-idx1-ubyte"),
        ("fashion_mnist", "FashionMNIST/raw"),
        ("svhn", "train_32x32.mat"),
        ("cifar10", "cifar-10-batches-py"),
    ],
)
def test_missing_files_are_reported_in_one_line(tmp_path: Path, name: str, file: str) -> None:
    with pytest.raises(MereoError, match="MEREO_DATA") as caught:
        load_splits(name, root=tmp_path, img_size=36, download=False)
    message = str(caught.value)
    assert file in message
    assert str(tmp_path) in message
    assert "\n" not in message


def test_a_failed_download_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object) -> None:
        raise RuntimeError("Error downloading:\nno route to host")

    monkeypatch.setattr(datasets.MNIST, "download", fail)
    with pytest.raises(MereoError, match=r"no route to host"):
        load_splits("mnist", root=tmp_path, img_size=28)


def test_a_download_is_only_tried_for_missing_files(make_mnist: MakeMnist, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(datasets.MNIST, "download")
    assert len(load_splits("mnist", root=make_mnist(), img_size=28).test) == 20


RAW = Path("MNIST", "raw")


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def more_labels(root: Path, by: int) -> None:
    path = root / RAW / "train-labels-idx1-ubyte"
    content = path.read_bytes()
    count = len(content) - 8 + by
    path.write_bytes(content[:4] + count.to_bytes(4, "big") + (content[8:] + bytes(8))[:count])


def claim(path: Path, count: int) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:4] + count.to_bytes(4, "big") + content[8:])


@pytest.mark.parametrize(
    ("damage", "fact"),
    [
        (lambda root: more_labels(root, 3), "40 images, train-labels-idx1-ubyte has 43 labels"),
        (lambda root: more_labels(root, -3), "40 images, train-labels-idx1-ubyte has 37 labels"),
        (lambda root: cut(root / RAW / "train-images-idx3-ubyte", 1000), "holds 984 bytes instead of the 31360"),
        (lambda root: cut(root / RAW / "t10k-labels-idx1-ubyte", 3), "is not an idx file"),
        (lambda root: claim(root / RAW / "t10k-images-idx3-ubyte", 19), "holds more bytes"),
        (lambda root: claim(root / RAW / "t10k-images-idx3-ubyte", 2**32 - 1), "more than the limit"),
        (lambda root: (root / RAW / "t10k-labels-idx1-ubyte").write_bytes(bytes(28)), "is not an idx file"),
        (lambda root: (root / RAW / "t10k-labels-idx1-ubyte").unlink(), "was not found"),
    ],
)
def test_damaged_idx_files_are_refused(make_mnist: MakeMnist, damage: Callable[[Path], None], fact: str) -> None:
    root = make_mnist()
    damage(root)
    with pytest.raises(MereoError, match=fact):
        load_splits("mnist", root=root, img_size=28, download=False)


def test_packed_idx_files_and_no_pickled_ones_are_read(make_mnist: MakeMnist) -> None:
    root = make_mnist()
    wanted = load_splits("mnist", root=root, img_size=28).test.batch(torch.arange(20))
    for path in (root / RAW).iterdir():
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    processed = root / "MNIST" / "processed"
    processed.mkdir()
    for name in ("training.pt", "test.pt"):
        (processed / name).write_bytes(b"damaged")
    packed = load_splits("mnist", root=root, img_size=28).test.batch(torch.arange(20))
    assert torch.equal(packed.images, wanted.images) and torch.equal(packed.labels, wanted.labels)


def test_a_download_reads_no_pickled_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processed = tmp_path / "MNIST" / "processed"
    processed.mkdir(parents=True)
    for name in ("training.pt", "test.pt"):
        (processed / name).write_bytes(b"damaged")
    fetched = []
    monkeypatch.setattr(datasets.MNIST, "download", lambda part: fetched.append(part.raw_folder))
    with pytest.raises(MereoError, match="cannot be read"):  # nothing was fetched
        load_splits("mnist", root=tmp_path, img_size=28)
    assert fetched == [str(tmp_path / RAW)]


def test_the_root_is_read_from_the_environment(make_mnist: MakeMnist, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEREO_DATA", str(make_mnist()))
    assert len(load_splits("mnist", img_size=28).test) == 20


def test_names() -> None:
    assert list_datasets() == sorted(DATASETS)
    assert list_datasets("*mnist") == sorted(name for name in DATASETS if name.endswith("mnist"))
    assert all(info.name == name and info.source for name, info in DATASETS.items())
    with pytest.raises(UsageError, match="did you mean 'mnist'"):
        dataset_info("mnis")
    with pytest.raises(UsageError, match="there is no such folder"):
        load_splits("./nowhere", img_size=8)


def test_a_file_is_not_a_dataset(tmp_path: Path) -> None:
    (tmp_path / "one.png").write_text("")
    with pytest.raises(UsageError, match="must be a folder"):
        dataset_info(tmp_path / "one.png")
