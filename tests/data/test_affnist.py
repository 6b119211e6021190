"""affNIST from small files written by SciPy in its layout, MATLAB files of version 5, and hostile ones."""

import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from mereo.data import DATASETS, load_splits
from mereo.data import matlab as matlab_module
from mereo.data.matlab import read_matlab
from mereo.errors import UsageError

savemat = pytest.importorskip("scipy.io").savemat
MakeMnist = Callable[..., Path]


def write_batch(path: Path, count: int, seed: int, **changes: object) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    images, labels = random.integers(0, 256, (count, 40, 40), dtype=np.uint8), random.integers(0, 10, count)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "image": images.reshape(count, 1600).T, "label_int": labels[None].astype(np.uint8),
        "label_one_of_n": np.eye(10, dtype=np.uint8)[labels].T, "two_integers": np.zeros((2, count)),
        "human_readable_transform": np.zeros((6, count)), "name": "words",
    } | changes  # fmt: skip
    savemat(path, {"affNISTdata": content}, do_compression=bool(seed % 2))
    return images, labels


def test_it_is_trained_on_padded_mnist_and_tested_on_affnist(make_mnist: MakeMnist) -> None:
    root = make_mnist()
    written = [write_batch(root / f"affnist/test_batches/{n}.mat", 7, n) for n in (1, 2, 10)]
    splits = load_splits("affnist", root=root, img_size=40, validation_fraction=0, download=False)
    assert splits.train.image_shape == (1, 40, 40) and splits.class_names == tuple("0123456789")
    mnist = load_splits("mnist", root=root, img_size=28, validation_fraction=0, download=False).train
    assert torch.equal(splits.train.images[:, :, 6:34, 6:34], mnist.images)
    assert splits.train.images.sum(dtype=torch.int64) == mnist.images.sum(dtype=torch.int64)
    assert np.array_equal(splits.test.images[:, 0].numpy(), np.concatenate([images for images, _ in written]))
    assert np.array_equal(splits.test.labels.numpy(), np.concatenate([labels for _, labels in written]))
    assert DATASETS["affnist"].augment == ("shift=6",)


@pytest.mark.parametrize(
    "changes",
    [
        {"image": np.zeros((1599, 7), np.uint8)}, {"image": np.zeros((1600, 6), np.uint8)},
        {"image": np.zeros((1600, 7))}, {"label_int": np.full((1, 7), 10)}, {"label_int": np.full((1, 7), -1)},
        {"label_int": np.full((1, 7), np.nan)}, {"label_int": "words"},
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_other_contents_are_refused(make_mnist: MakeMnist, changes: dict[str, object]) -> None:
    root = make_mnist()
    write_batch(root / "affnist/1.mat", 7, 0, **changes)
    with pytest.raises(UsageError, match=r"1\.mat"):
        load_splits("affnist", root=root, img_size=40)


@pytest.mark.parametrize("compressed", [False, True])
def test_arrays_are_those_that_were_written(tmp_path: Path, compressed: bool) -> None:
    random = np.random.default_rng(0)
    arrays = {
        kind: random.integers(0, 100, (2, 3, 4)).astype(kind)
        for kind in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8")
    }
    struct = {"a": arrays["u1"], "long_name": arrays["f8"], "text": "no", "inner": {"a": 1}}
    savemat(
        tmp_path / "a.mat",
        {**{f"v_{k}": v for k, v in arrays.items()}, "s": struct, "w": "no"},
        do_compression=compressed,
    )
    read = read_matlab(tmp_path / "a.mat")
    assert set(read) == {*(f"v_{kind}" for kind in arrays), "s"}
    for kind, array in arrays.items():
        assert np.array_equal(read[f"v_{kind}"], array)
    assert set(read["s"]) == {"a", "long_name"}
    assert np.array_equal(read["s"]["a"], arrays["u1"]) and np.array_equal(read["s"]["long_name"], arrays["f8"])


def test_no_damaged_file_does_anything_but_raise(tmp_path: Path) -> None:
    path, random, refused = tmp_path / "a.mat", np.random.default_rng(0), 0
    savemat(path, {"s": {"a": np.arange(6, dtype=np.uint8), "b": np.arange(4.0)}})
    whole = path.read_bytes()
    cases = [b"", b"MATLAB", whole[:127], *(whole[:end] for end in range(130, len(whole), 9))]
    for _ in range(300):
        broken = bytearray(whole)
        broken[int(random.integers(124, len(whole)))] = int(random.integers(256))
        cases.append(bytes(broken))
    for content in cases:
        path.write_bytes(content)
        try:
            read_matlab(path)
        except UsageError:
            refused += 1
    assert refused > 50


def test_a_file_that_unpacks_to_more_than_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.mat"
    savemat(path, {"a": np.zeros(3)})
    packed = zlib.compress(bytes(5_000_000))
    path.write_bytes(path.read_bytes()[:128] + np.array([15, len(packed)], "<u4").tobytes() + packed)
    monkeypatch.setattr(matlab_module, "LARGEST", 1_000_000)
    with pytest.raises(UsageError, match="unpacked"):
        read_matlab(path)
    path.write_bytes(path.read_bytes() + bytes(1_000_000))
    with pytest.raises(UsageError, match="more than 1000000 bytes"):
        read_matlab(path)
