from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import mereo
from mereo.models import CapsuleClassifier

MODELS = {
    "three scales": ("mspcaps_tiny", {"channels": (4, 8, 8), "in_chans": 1}),
    "unshared, over senders": (
        "mspcaps_tiny",
        {"channels": (4, 8, 8), "in_chans": 1, "share_weights": False, "coupling_over": "senders"},
    ),
    "two scales": ("mspcaps_tiny", {"channels": (4, 8, 8), "in_chans": 3, "scales": (0, 2)}),
    "one scale": ("mspcaps_tiny", {"channels": (4, 8, 8), "in_chans": 2, "scales": (1,), "img_size": (24, 40)}),
    "dynamic": ("mspcaps_tiny", {"channels": (4, 8, 8), "in_chans": 1, "routing": "dynamic"}),
    "capsnet": (
        "capsnet",
        {"conv_channels": 4, "primary_types": 2, "primary_dim": 4, "class_dim": 4, "img_size": (21, 27), "leaky": True},
    ),
    "capsnet, biased, same": (
        "capsnet",
        {
            "conv_channels": 4, "primary_types": 2, "img_size": 12, "padding": "same", "capsule_bias": True,
            "decoder": False, "num_classes": 2,
        },
    ),
    "capsnet, middle": (
        "capsnet_middle",
        {"conv_channels": 4, "primary_types": 2, "primary_dim": 4, "middle_capsules": 5, "img_size": (21, 27)},
    ),
    "sets of children": (
        "ms_capsnet_small",
        {"stem_kernel": 5, "channels": 4, "types": 2, "dims": (2, 3, 4), "class_dim": 4, "img_size": (17, 20)},
    ),
    "one set, over senders": (
        "ms_capsnet_small",
        {
            "stem_kernel": 5, "channels": 4, "types": 1, "branches": ("middle",), "class_dim": 4, "img_size": (17, 20),
            "variant": "public",
        },
    ),
    "efficient": ("efficient_capsnet", {"stem": ((5, 8, 2), (3, 16, 2)), "img_size": 20, "num_classes": 3}),
}  # fmt: skip


def make_model(kind: str, **changes: object) -> CapsuleClassifier:
    name, arguments = MODELS[kind]
    torch.manual_seed(0)
    model = mereo.create_model(name, **{**arguments, **changes})
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def random_images(model: CapsuleClassifier, count: int = 2) -> Tensor:
    return torch.rand(count, *model.image_shape, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def make() -> Callable[..., CapsuleClassifier]:
    """make(kind, **changes): a small model of one of the kinds above, in evaluation mode."""
    return make_model


@pytest.fixture
def some_images() -> Callable[..., Tensor]:
    """some_images(model, count=2): images that the model takes, the same every time."""
    return random_images


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> CapsuleClassifier:
    return make_model(request.param)


@pytest.fixture(
    params=["three scales", "one scale", "dynamic", "capsnet, middle", "sets of children", "efficient"],
)
def drawn_model(request: pytest.FixtureRequest) -> CapsuleClassifier:
    """A model of each form of tree: with witnesses, two channels, two routings, a layer between, sets, no places."""
    return make_model(request.param)
