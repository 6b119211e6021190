"""A short run on the digits, and a network without couplings with random weights."""

from pathlib import Path

import pytest
import torch

import mereo
from mereo.training.config import TrainConfig
from mereo.training.engine import train
from mereo.training.report import Report


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> Path:
    """The folder of a run on the digits."""
    config = TrainConfig().replace(
        model="mspcaps_tiny", data="digits", model_args={"channels": [4, 8, 8], "patch_size": 2}, img_size=16,
        limit=300, batch_size=32, epochs=3, lr=5e-3, warmup_epochs=0.0, augment=("none",), tensorboard=False,
        device="cpu", seed=3, output=str(tmp_path_factory.mktemp("runs")), name="small",
    )  # fmt: skip
    return train(config, Report(silent=True)).folder.path


@pytest.fixture(scope="session")
def other(tmp_path_factory) -> Path:
    """Weights of a plain network of three classes, for larger colour images."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "plain.safetensors"
    model = mereo.create_model("resnet20", num_classes=3)
    mereo.save_weights(path, model, class_names=("<b>", "two", "three"))
    return path
