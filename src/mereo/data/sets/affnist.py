"""affNIST: MNIST's test digits under affine transformations, for networks trained on MNIST's digits moved about.

Training images are MNIST's, padded to 40 x 40; the augmentation places them at random, as in CapsNet's experiment
(arXiv:1710.09829, section 5.2). Test images are affNIST's.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from mereo.data.registry import register_dataset
from mereo.errors import MereoError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from mereo.data.raw import RawDataset

URL = "https://www.cs.toronto.edu/~tijmen/affNIST/"
SIDE, PAD = 40, 6
FOLDERS = ("affnist/transformed/test_batches", "affnist/test_batches", "affnist")
_LARGEST = 2**31
"""Most bytes of the images of all files together; the published ones have 0.5 GB."""
_LARGEST_FILE = 2**29
"""Most bytes of one file; a published one has 20 MB."""


def read(root: Path, download: bool) -> "RawDataset":
    """From MNIST/raw and every .mat file of affNIST's test batches; the .mat files are not downloaded."""
    import torch
    import torch.nn.functional as F

    from mereo.data.published import ROOT_REMEDY
    from mereo.data.raw import ArraySplit, RawDataset, Request
    from mereo.data.sets import mnist

    folder = next((root / name for name in FOLDERS if any((root / name).glob("*.mat"))), None)
    if folder is None:
        raise MereoError(
            f"affnist was not found: looked for *.mat in {root / FOLDERS[0]}. Get the test batches from {URL} and put"
            f" them there, or {ROOT_REMEDY}."
        )
    digits = mnist.read(root, download)
    train = digits.splits["train"].read(Request((28, 28), 1))
    images, labels, size = [], [], 0
    for path in sorted(folder.glob("*.mat"), key=lambda path: (len(path.name), path.name)):
        pixels, classes = _read_batch(path)
        size += pixels.numel()
        if size > _LARGEST:
            raise UsageError(f"{folder} has more than {_LARGEST} bytes of images; leave some of its files out.")
        images.append(pixels)
        labels.append(classes)
    return RawDataset(
        {
            "train": ArraySplit(F.pad(train.images, [PAD] * 4), train.labels),
            "test": ArraySplit(torch.cat(images), torch.cat(labels)),
        },
        digits.class_names,
        1,
    )


def _read_batch(path: Path) -> "tuple[Tensor, Tensor]":
    import numpy as np

    from mereo.data.published import to_tensors
    from mereo.data.regular import open_regular

    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise MereoError("affnist is stored in .mat files, which only scipy reads; run `pip install scipy`.") from error
    with open_regular(path) as file:
        if path.stat().st_size > _LARGEST_FILE:
            raise UsageError(f"{path} has more than {_LARGEST_FILE} bytes; replace it.")
        try:
            fields = loadmat(file, variable_names=["affNISTdata"], simplify_cells=True).get("affNISTdata")
        except Exception as error:  # SciPy has no error of its own for a damaged file
            raise UsageError(f"{path} is not a MATLAB file that SciPy can read: {error}; replace it.") from error
    fields = fields if isinstance(fields, dict) else {}
    images, labels = (np.asarray(fields.get(name, ())) for name in ("image", "label_int"))
    if images.dtype != np.uint8 or labels.dtype.kind not in "iuf" or images.shape != (SIDE * SIDE, labels.size):
        raise UsageError(f"{path} has no affNISTdata with image, {SIDE * SIDE} bytes for each label_int; replace it.")
    whole = labels.astype(np.int64).ravel()
    if not len(whole) or whole.min() < 0 or whole.max() > 9 or not np.array_equal(whole, labels.ravel()):
        raise UsageError(f"{path} has labels other than the digits 0 to 9; replace it.")
    # One column an image, its rows one after the other.
    return to_tensors(np.array(images.T).reshape(-1, 1, SIDE, SIDE), whole)


register_dataset(
    "affnist",
    summary="handwritten digits: trained on MNIST's placed at random on 40 x 40, tested under affine transformations",
    source="Tieleman, Optimizing neural networks that generate images, 2014; from mnist",
    num_classes=10,
    in_chans=1,
    size=(SIDE, SIDE),
    splits={"train": 60000, "test": 320000},
    read=read,
    augment=(f"shift={PAD}",),
    files=tuple(f"{folder}/*.mat" for folder in FOLDERS),
)
