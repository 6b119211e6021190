"""A short run on the digits, and a network without couplings with random weights."""

from pathlib import Path

import pytest
import torch

import mereo


@pytest.fixture(scope="session")
def run(digits_run) -> Path:
    """The folder of a run on the digits."""
    return digits_run


@pytest.fixture(scope="session")
def other(tmp_path_factory) -> Path:
    """Weights of a plain network of three classes, for larger colour images."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "plain.safetensors"
    model = mereo.create_model("resnet20", num_classes=3)
    mereo.save_weights(path, model, class_names=("<b>", "two", "three"))
    return path
