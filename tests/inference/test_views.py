"""Test-time augmentation: the same views for every image, from the augmentation of the training, and five crops."""

import numpy as np
import pytest
import torch
from PIL import Image

import mereo
from mereo.data import ImageSet
from mereo.errors import UsageError
from mereo.inference.answers import collect_answers
from mereo.inference.evaluate import normalise
from mereo.inference.predict import answer_files
from mereo.inference.views import augmented_views, five_crops, mean_over_views, trained_augmentation


def small(augment=None, **cfg):
    """A network of 16 x 16 images in four classes, in eval mode."""
    torch.manual_seed(0)
    model = mereo.create_model("mspcaps_tiny", channels=(4, 8, 8), in_chans=1, img_size=16, num_classes=4).eval()
    model.metadata = {} if augment is None else {"augment": augment}
    model.pretrained_cfg = {**model.pretrained_cfg, "mean": (0.3,), "std": (0.4,), **cfg}
    return model


def split_of(side, count=6):
    pixels = torch.randint(0, 256, (count, 1, side, side), dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(count) % 4, ("a", "b", "c", "d"))


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


@torch.no_grad()
def scores_by_loop(model, views):
    """The mean of the scores, one view of one image at a time."""
    rows = []
    for place in range(len(views[0])):
        seen = [model(normalise(view[place : place + 1], (0.3,), (0.4,)).double()) for view in views]
        rows.append(sum(seen) / len(seen))
    return torch.cat(rows)


def test_the_mean_over_augmented_views_equals_a_loop() -> None:
    model = small(["shift=2", "rotate=15", "erase=0.5"]).double()
    averaged, images = mean_over_views(model, tta=True), torch.rand(5, 1, 16, 16)
    views = augmented_views(["shift=2", "rotate=15"])(images)
    expected = scores_by_loop(model, views)
    assert len(views) == averaged.count == 9
    with torch.no_grad():
        torch.testing.assert_close(averaged(images.double()), expected, rtol=0, atol=1e-12)
    assert not torch.allclose(expected, model(normalise(images, (0.3,), (0.4,)).double()), atol=1e-4)
    assert averaged.score_kind == model.score_kind and averaged.changes.endswith("as in training (shift=2, rotate=15)")


def test_five_crops_are_those_of_torchvision() -> None:
    functional = pytest.importorskip("torchvision.transforms.functional")
    images = torch.rand(3, 2, 24, 30)
    *corners, centre = functional.five_crop(images, [16, 20])
    made = five_crops((16, 20))(images)
    assert len(made) == 5
    assert all(torch.equal(a, b) for a, b in zip(made, [centre, *corners], strict=True))


def test_the_mean_over_five_crops_equals_a_loop_over_the_stored_images() -> None:
    model, split = small(crop_pct=16 / 21).double(), split_of(21)
    averaged = mean_over_views(model, five_crop=True)
    images, places = split.images / 255, ((2, 2), (0, 0), (0, 5), (5, 0), (5, 5))
    crops = [images[..., top : top + 16, left : left + 16] for top, left in places]
    # The first is what the network sees without views, also of an odd margin.
    assert torch.equal(crops[0], split.batch(torch.arange(6), crop=(16, 16)).images)
    expected = scores_by_loop(model, crops)
    torch.testing.assert_close(collect_answers(averaged, split, batch_size=4).scores.double(), expected)
    assert averaged.changes == "crops of 16 x 16 at the centre and the corners of images of 21 x 21"


@pytest.mark.parametrize("count", [2, 20])
def test_files_are_predicted_over_five_crops(tmp_path, count) -> None:
    model, split = small(crop_pct=16 / 21), split_of(21, count)
    paths = [tmp_path / f"{number}.png" for number in range(count)]
    for path, pixels in zip(paths, split.images, strict=True):
        Image.fromarray(np.asarray(pixels[0])).save(path)
    averaged = mean_over_views(model, five_crop=True)
    (answered,) = answer_files(averaged, paths)
    torch.testing.assert_close(answered.outputs, collect_answers(averaged, split).scores, rtol=1e-4, atol=1e-5)
    assert torch.equal(answered.images, split.batch(torch.arange(count), crop=(16, 16)).images)


def test_views_that_cannot_be_made_are_refused() -> None:
    model = small()
    assert mean_over_views(model) is model
    with pytest.raises(UsageError, match="tta and five_crop are both set; give one"):
        mean_over_views(model, tta=True, five_crop=True)
    with pytest.raises(UsageError, match=r"five_crop is set, and the network takes whole images of 16 x 16.*set tta"):
        mean_over_views(model, five_crop=True)
    with pytest.raises(UsageError, match="tta is set, and these weights were trained without augmentation"):
        mean_over_views(model, tta=True)
    model.metadata = {"task": "reconstruction"}
    with pytest.raises(UsageError, match="five_crop is set, and the outputs of the task reconstruction"):
        mean_over_views(model, five_crop=True)
