"""Narrow networks, and a short run on the digits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import mereo
from mereo.models import CapsuleClassifier

NARROW: dict[str, dict[str, Any]] = {
    "mspcaps_tiny": {"channels": (4, 8, 8), "in_chans": 1, "img_size": 16, "patch_size": 2},
    "capsnet": {"conv_channels": 4, "primary_types": 2, "img_size": (20, 22), "num_classes": 3},
    "efficient_capsnet": {"stem": ((5, 8, 2), (3, 16, 2)), "img_size": 20, "in_chans": 3, "num_classes": 4},
}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def make() -> Callable[..., CapsuleClassifier]:
    """A narrow network in eval mode, away from its start, with names for its classes."""

    def narrow(name: str, **changes: Any) -> CapsuleClassifier:
        torch.manual_seed(0)
        model = mereo.create_model(name, **{**NARROW[name], **changes})
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
            model(torch.rand(4, *model.image_shape))
        model.class_names = tuple(f"class {i}" for i in range(model.num_classes))
        model.pretrained_cfg |= {"mean": (0.4,) * model.image_shape[0], "std": (0.2,) * model.image_shape[0]}
        return model.eval()

    return narrow


@pytest.fixture(scope="session")
def run(digits_run) -> Path:
    """The folder of a run on the digits."""
    return digits_run


@pytest.fixture
def images() -> Callable[[CapsuleClassifier], Tensor]:
    def make_images(model: CapsuleClassifier) -> Tensor:
        return torch.rand(3, *model.image_shape, generator=torch.Generator().manual_seed(1))

    return make_images
