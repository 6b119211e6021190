"""A training small enough for a test: a few digits, a narrow network."""

from collections.abc import Callable
from typing import Any

import pytest

from mereo.training.config import TrainConfig
from mereo.training.report import Report


@pytest.fixture
def small_config(tmp_path) -> Callable[..., TrainConfig]:
    """Makes the configuration of a run of about a second; any field can be changed."""

    def make(**changes: Any) -> TrainConfig:
        fields = {
            "model": "mspcaps_tiny",
            "data": "digits",
            "model_args": {"channels": [4, 8, 8], "img_size": 16, "patch_size": 2},
            "limit": 96,
            "batch_size": 32,
            "epochs": 2,
            "output": str(tmp_path / "runs"),
            "tensorboard": False,
            "device": "cpu",
        }
        return TrainConfig().replace(**{**fields, **changes})

    return make


@pytest.fixture
def silent() -> Report:
    return Report(silent=True)
