"""MNIST: handwritten digits."""

from mereo.data.registry import later, register_dataset

FILES = ("MNIST/raw/train-images-idx3-ubyte", "MNIST/raw/train-images-idx3-ubyte.gz")
read = later("mereo.data.idx:read_idx_dataset", name="mnist", kind="MNIST", classes=tuple("0123456789"))
register_dataset(
    "mnist",
    summary="handwritten digits",
    source="LeCun, Bottou, Bengio, Haffner, Proceedings of the IEEE, 1998",
    num_classes=10,
    in_chans=1,
    size=(28, 28),
    splits={"train": 60000, "test": 10000},
    read=read,
    augment=("rotate=15", "shift=2"),
    files=FILES,
)
