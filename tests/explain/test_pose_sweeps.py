"""Pose sweeps: each image is what the decoder makes of one number moved."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import mereo
from mereo.errors import MereoError, UsageError
from mereo.explain import observe, pose_sweeps
from mereo.explain.pose_sweeps import why_no_sweep
from mereo.models import CapsuleClassifier

Make = Callable[..., CapsuleClassifier]
MakeImages = Callable[..., Tensor]


@pytest.mark.parametrize(
    ("kind", "changes"), [("capsnet", {}), ("efficient", {}), ("efficient", {"decoder": "upsampling"})]
)
def test_each_image_is_one_number_moved(kind: str, changes: dict, make: Make, some_images: MakeImages) -> None:
    model = make(kind, **changes)
    observation = observe(model, some_images(model))
    found = pose_sweeps(observation, torch.tensor([2, 0]), reach=0.2, step=0.1)
    assert found.explained.tolist() == [2, 0]
    torch.testing.assert_close(found.offsets, torch.tensor([-0.2, -0.1, 0, 0.1, 0.2]))
    poses = observation.capsules.pose
    assert found.images.shape == (2, poses.shape[-1], 5, *model.image_shape)
    for b, c in enumerate((2, 0)):
        for d in range(poses.shape[-1]):
            for n, offset in enumerate((-0.2, -0.1, 0, 0.1, 0.2)):
                alone = torch.zeros_like(poses[b])
                alone[c] = poses[b, c]
                alone[c, d] += offset
                expected = model.decoder(alone.flatten()[None])[0].detach()
                torch.testing.assert_close(found.images[b, d, n], expected, atol=1e-6, rtol=1e-5)


def test_the_paper_moves_by_a_quarter_in_steps_of_a_twentieth(make: Make, some_images: MakeImages) -> None:
    model = make("capsnet")
    observation = observe(model, some_images(model))
    found = pose_sweeps(observation)
    torch.testing.assert_close(found.offsets, torch.linspace(-0.25, 0.25, 11))
    assert found.explained.equal(observation.capsules.activation.argmax(1))
    still = model.reconstruct(observation.capsules).detach()
    for dimension in range(4):
        torch.testing.assert_close(found.images[:, dimension, 5], still)


def test_refusals(make: Make, some_images: MakeImages) -> None:
    model = make("capsnet")
    observation = observe(model, some_images(model))
    for wrong in ({"reach": 0.0}, {"step": -1.0}, {"step": 0.5}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            pose_sweeps(observation, **wrong)
    bare = make("three scales")
    with pytest.raises(UsageError, match="MSPCaps has no decoder"):
        pose_sweeps(observe(bare, some_images(bare)))
    torch.nn.init.constant_(model.decoder.layers[0].weight, float("nan"))
    with pytest.raises(MereoError, match="decoder"):
        pose_sweeps(observation)


def test_a_decoder_without_class_capsules_is_not_swept() -> None:
    model = mereo.create_model(
        "sparse_caps_mnist", img_size=19, conv_channels=8, primary_types=2, primary_dim=4, latent_capsules=5
    )
    reason = why_no_sweep(model)
    assert reason is not None and "no class capsules" in reason
    with pytest.raises(UsageError, match="no class capsules"):
        pose_sweeps(observe(model, torch.rand(1, *model.image_shape)))
