"""A trained network in a folder of its own."""

import pytest

import mereo

SMALL = {
    "data": "digits", "limit": 256, "batch_size": 32, "epochs": 1, "device": "cpu", "tensorboard": False,
    "model_args": {"channels": [4, 8, 8]},
}  # fmt: skip


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """A finished training on a few digits."""
    return mereo.train(**SMALL, output=str(tmp_path_factory.mktemp("runs")), quiet=True)
