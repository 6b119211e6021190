"""The base of all networks: wrong calls, networks without stages, capsules with activations of their own."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mereo.core import Capsules
from mereo.errors import UsageError
from mereo.models import CapsuleClassifier, FeatureMaps, VisionModel
from plain_cnn import PlainCNN


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"indices": 0}, "indices is 0"),
        ({"indices": 4}, "indices is 4"),
        ({"indices": ()}, r"indices is \(\)"),
        ({"indices": (3,)}, r"indices is \(3,\)"),
        ({"indices": (0, -4)}, r"indices is \(0, -4\)"),
        ({"output_fmt": "NHWC"}, "output_fmt is 'NHWC'"),
    ],
)
def test_wrong_requests_for_maps(arguments: dict[str, Any], argument: str) -> None:
    with pytest.raises(UsageError, match=argument):
        PlainCNN().forward_intermediates(torch.rand(1, 3, 16, 16), **arguments)


def test_maps_come_in_the_order_of_the_indices() -> None:
    model = PlainCNN().eval()
    images = torch.rand(2, 3, 16, 16)
    maps = model.forward_intermediates(images, (-1, 0), intermediates_only=True)
    assert [x.shape[1] for x in maps] == [12, 6]
    backbone = FeatureMaps(model, 2)
    assert backbone.feature_info.reduction() == [4, 8]
    assert backbone.feature_info.module_name() == ["stages.1", "stages.2"]
    assert [x.shape for x in backbone(images)] == [(2, 8, 4, 4), (2, 12, 2, 2)]


def test_stages_after_the_last_map_do_not_run() -> None:
    model = PlainCNN().eval()
    model.stages[1].register_forward_hook(lambda *_: pytest.fail("stage 1 ran"))
    model.forward_intermediates(torch.rand(1, 3, 16, 16), (0,), stop_early=True, intermediates_only=True)


@pytest.mark.parametrize(
    ("decays", "argument"), [((-0.1, 1.0), "weight_decay is -0.1"), ((0.0, 0.0), "layer_decay is 0"), ((0, 1.5), "1.5")]
)
def test_wrong_decays(decays: tuple[float, float], argument: str) -> None:
    with pytest.raises(UsageError, match=argument):
        PlainCNN().parameter_groups(*decays)


def test_groups_of_parameters() -> None:
    model = PlainCNN()
    weights, vectors = (g["names"] for g in sorted(model.parameter_groups(0.1), key=lambda g: -g["weight_decay"]))
    assert weights == ["stages.0.0.weight", "stages.1.0.weight", "stages.2.0.weight", "head.weight"]
    assert "head.bias" in vectors and "stages.0.1.weight" in vectors
    depth = model.group_matcher()
    assert [depth(name) for name in weights] == [0, 1, 2, 3]
    model.stages[0].requires_grad_(False)
    assert all("stages.0" not in name for group in model.parameter_groups(0.1) for name in group["names"])


class Unstaged(VisionModel):
    """A network that is not a sequence of stages."""

    def __init__(self, num_classes: int = 2) -> None:
        super().__init__()
        self.image_shape, self.num_features = (1, 4, 4), 16
        self.reset_classifier(num_classes)

    def make_classifier(self) -> nn.Module:
        return nn.Linear(16, self.num_classes)

    def forward_features(self, images: Tensor) -> Tensor:
        self.check_images(images)
        return images


def test_a_network_need_not_be_stages() -> None:
    model = Unstaged()
    assert model(torch.rand(3, 1, 4, 4)).shape == (3, 2)
    assert set(model.layer_depths().values()) == {0}
    for call in (lambda: model.forward_intermediates(torch.rand(1, 1, 4, 4)), model.set_grad_checkpointing):
        with pytest.raises(UsageError, match="Unstaged has no stages"):
            call()


class Gaussians(CapsuleClassifier):
    """Class capsules whose activations are probabilities of their own, not lengths."""

    scores_are_lengths = False

    def __init__(self, num_classes: int = 2) -> None:
        super().__init__()
        self.image_shape, self.num_features = (1, 4, 4), 16
        self.reset_classifier(num_classes)

    def make_classifier(self) -> nn.Module:
        return nn.Linear(16, 4 * self.num_classes)

    def forward_features(self, images: Tensor) -> Tensor:
        return images

    def route(self, features: Tensor) -> Tensor:
        return self.head(self.pool(features)).unflatten(1, (self.num_classes, 4))

    def class_capsules(self, features: Tensor) -> Capsules:
        poses = self.route(features)
        return Capsules(poses[..., 1:], poses[..., 0].sigmoid())


def test_capsules_may_have_activations_of_their_own() -> None:
    model, images = Gaussians(), torch.rand(3, 1, 4, 4)
    capsules = model.capsules(images)
    assert capsules.pose.shape == (3, 2, 3) and torch.equal(model(images), capsules.activation)
    assert model.decoder is None


def test_features_of_several_tensors_are_pooled_side_by_side() -> None:
    model = Unstaged().double()
    model.reset_classifier(3)
    assert model.head.weight.dtype == torch.float64
    model.reset_classifier(0)
    pair = (torch.zeros(2, 3, 4), torch.ones(2, 4))
    assert model.forward_head(pair).tolist() == [[0.0] * 12 + [1.0] * 4] * 2
