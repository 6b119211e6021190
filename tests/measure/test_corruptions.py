"""Corruptions: what each does to pixels, and that they repeat."""

import pytest
import torch

from mereo.errors import UsageError
from mereo.inference.answers import collect_answers
from mereo.measure import CORRUPTIONS, Corruption, corrupt, corruption_curve


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_every_corruption_keeps_shape_and_range(name, some_pixels):
    images = some_pixels((5, 3, 12, 16))
    assert corrupt(name, images, 0) is images
    for severity in CORRUPTIONS[name].severities[1:]:
        spoilt = corrupt(name, images, severity)
        assert spoilt.shape == images.shape and spoilt.dtype == images.dtype
        assert float(spoilt.min()) >= 0 and float(spoilt.max()) <= 1
        assert not torch.equal(spoilt, images)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_an_image_is_spoilt_the_same_way_in_any_batch(name, some_pixels):
    images, severity = some_pixels((6, 1, 10, 10)), CORRUPTIONS[name].severities[-1]
    whole = corrupt(name, images, severity, torch.arange(6), seed=3)
    part = corrupt(name, images[[4, 1]], severity, torch.tensor([4, 1]), seed=3)
    torch.testing.assert_close(whole[[4, 1]], part)
    other = corrupt(name, images, severity, torch.arange(6), seed=4)
    assert name == "blur" or not torch.equal(whole, other)


def test_a_quarter_turn_is_exact(some_pixels):
    images = some_pixels((8, 1, 9, 9))
    turned = corrupt("rotation", images, 90.0)
    ways = {
        sum((k * torch.isclose(turned[i], images[i].rot90(k, (1, 2)), atol=1e-5).all()).item() for k in (1, 3))
        for i in range(8)
    }
    assert ways == {1, 3}


def test_translation_moves_by_whole_pixels(some_pixels):
    images = torch.zeros(200, 1, 21, 21)
    images[:, :, 10, 10] = 1
    moved = corrupt("translation", images, 20.0)
    places = moved.flatten(1).argmax(1)
    rows, columns = places // 21 - 10, places % 21 - 10
    assert torch.equal(moved.flatten(1).sum(1), torch.ones(200))
    distance = (rows.square() + columns.square()).double().sqrt()
    assert bool(((distance - 4.2).abs() < 0.75).all())
    assert rows.min() < -2 and rows.max() > 2 and columns.min() < -2 and columns.max() > 2


def test_occlusion_covers_the_share(some_pixels):
    images = torch.ones(50, 2, 10, 20)
    covered = corrupt("occlusion", images, 30.0) == 0.5
    assert bool((covered.flatten(1).sum(1) == 2 * 3 * 6).all())
    assert len({tuple(c[0].nonzero()[0].tolist()) for c in covered}) > 10
    assert bool((corrupt("occlusion", images, 100.0) == 0.5).all())


def test_noise_has_its_deviation():
    noise = corrupt("noise", torch.full((20, 1, 50, 50), 0.5), 0.05) - 0.5
    assert float(noise.mean()) == pytest.approx(0, abs=1e-3)
    assert float(noise.std()) == pytest.approx(0.05, rel=0.02)
    assert float((noise.abs() > 0.098).double().mean()) == pytest.approx(0.05, abs=0.005)


def test_blur_keeps_what_is_even_and_spreads_a_point():
    even = torch.full((1, 2, 8, 9), 0.3)
    torch.testing.assert_close(corrupt("blur", even, 10.0), even)
    point = torch.zeros(1, 1, 41, 41)
    point[..., 20, 20] = 1
    spread = corrupt("blur", point, 5.0)[0, 0]
    assert float(spread.sum()) == pytest.approx(1, abs=1e-5)
    places = torch.arange(41.0) - 20
    assert float((spread.sum(0) * places.square()).sum()) == pytest.approx((41 * 0.05) ** 2, rel=0.03)
    assert torch.equal(spread, spread.T)


def test_wrong_use():
    images = torch.zeros(1, 1, 4, 4)
    with pytest.raises(UsageError, match="did you mean 'rotation'"):
        corrupt("rotatoin", images, 1)
    with pytest.raises(UsageError, match="severity"):
        corrupt("blur", images, -1.0)
    with pytest.raises(UsageError, match="not a number"):
        corrupt("blur", images * torch.nan, 1.0)


def test_curves_start_at_the_clean_accuracy(digits_like):
    import mereo

    torch.manual_seed(0)
    model = mereo.create_model("mspcaps_tiny", channels=(4, 8, 8), in_chans=1, img_size=16, num_classes=4)
    clean = collect_answers(model, digits_like)
    black = Corruption("black", "share", (0, 1), 1, lambda images, severity, draws: images * (1 - severity))
    points = corruption_curve(black, model, digits_like, clean, batch_size=7)
    assert points[0].correct == int(clean.correct.sum()) and points[0].total == 40
    # All images are alike in the dark, and ten are of each class.
    assert points[1].correct == 10
    twice = [corruption_curve("noise", model, digits_like, clean, batch_size=b, seed=2) for b in (3, 40)]
    assert twice[0] == twice[1]
    assert points[0].to_dict().keys() == {"amount", "images", "accuracy", "accuracy_low", "accuracy_high"}
