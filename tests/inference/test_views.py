"""Test-time augmentation: the same views for every image, from the augmentation of the training."""

import pytest
import torch

import mereo
from mereo.errors import UsageError
from mereo.inference.views import augmented_views, trained_augmentation


def test_an_image_has_the_same_views_in_every_batch() -> None:
    images = torch.rand(5, 1, 12, 12)
    views = augmented_views(["shift=2", "erase=0.9", "flip"])
    together, single = views(images), views(images[3:4])
    assert len(together) == 9
    assert torch.equal(together[0], images)
    assert all(torch.equal(a[3:4], b) for a, b in zip(together, single, strict=True))
    assert any(not torch.equal(view, images) for view in together[1:])


def test_the_augmentation_is_that_of_the_weights_or_of_their_data() -> None:
    model = mereo.create_model("mspcaps_tiny", channels=(4, 8, 8), in_chans=1, img_size=16)
    assert trained_augmentation(model) == ()
    model.metadata = {"data": "mnist"}
    assert trained_augmentation(model)
    model.metadata = {"data": "mnist", "augment": ["flip"]}
    assert trained_augmentation(model) == ("flip",)
    with pytest.raises(UsageError, match="without augmentation"):
        augmented_views(["erase=0.5"])
