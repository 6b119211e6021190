"""affNIST from small files written by SciPy in its layout, and damaged ones."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from mereo.data import DATASETS, load_splits
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


def test_no_damaged_file_does_anything_but_raise(make_mnist: MakeMnist) -> None:
    root, random, refused = make_mnist(), np.random.default_rng(0), 0
    path = root / "affnist/1.mat"
    write_batch(path, 2, 0)
    whole = path.read_bytes()
    cases = [b"", b"MATLAB", whole[:127], *(whole[:end] for end in range(130, len(whole), len(whole) // 9))]
    for _ in range(20):
        broken = bytearray(whole)
        broken[int(random.integers(124, 400))] = int(random.integers(256))
        cases.append(bytes(broken))
    for content in cases:
        path.write_bytes(content)
        try:
            load_splits("affnist", root=root, img_size=40)
        except UsageError as error:
            refused += "1.mat" in str(error)
    assert refused > 10
