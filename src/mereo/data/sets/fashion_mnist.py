"""Fashion-MNIST: grey photographs of clothing, in the files of MNIST."""

from mereo.data.registry import later, register_dataset

CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip

register_dataset(
    "fashion_mnist",
    summary="ten kinds of clothing, grey",
    source="Xiao, Rasul, Vollgraf, arXiv:1708.07747",
    num_classes=10,
    in_chans=1,
    size=(28, 28),
    splits={"train": 60000, "test": 10000},
    read=later("mereo.data.idx:read_idx_dataset", name="fashion_mnist", kind="FashionMNIST", classes=CLASSES),
    files=("FashionMNIST/raw/train-images-idx3-ubyte", "FashionMNIST/raw/train-images-idx3-ubyte.gz"),
)
