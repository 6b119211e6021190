"""Augmentation: laws, slow references, and what the written forms accept."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mereo.data import OPERATIONS, Augmentation, take_window
from mereo.data.efficient_mnist import EfficientMnist, content_margins
from mereo.data.moving import Crop, Flip, Rotate, Shift, Zoom
from mereo.data.photometric import Brightness, Contrast, Hue, Noise, Saturation
from mereo.errors import UsageError

ALL = ["rotate=15", "shift=2", "crop=4", "flip", "zoom=0.25:1", "brightness=0.2", "contrast=0.5:1.5",
       "saturation=0.5:1.5", "hue=0.1", "noise=0.1", "erase=0.5:0.02:0.33", "rand_augment=2:9",
       "efficient_mnist"]  # fmt: skip


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def slow_window(images: Tensor, corners: Tensor, size: tuple[int, int]) -> Tensor:
    out = torch.zeros(*images.shape[:2], *size)
    for n, (top, left) in enumerate(corners.tolist()):
        for y in range(size[0]):
            for x in range(size[1]):
                if 0 <= y + top < images.shape[2] and 0 <= x + left < images.shape[3]:
                    out[n, :, y, x] = images[n, :, y + top, x + left]
    return out


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 6), st.integers(1, 6), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_window_is_the_slow_loop(height: int, width: int, rows: int, columns: int, seed: int) -> None:
    images = torch.rand(3, 2, height, width, generator=generator(seed))
    corners = torch.randint(-7, 8, (3, 2), generator=generator(seed))
    assert torch.equal(take_window(images, corners, (rows, columns)), slow_window(images, corners, (rows, columns)))


def test_shift_moves_down_and_right() -> None:
    images = torch.rand(4, 2, 6, 5)
    shifts = torch.tensor([[0, 0], [2, -1], [-3, 0], [6, 5]])
    shifted = Shift(6).apply(images, shifts)
    assert torch.equal(shifted, slow_window(images, -shifts, (6, 5)))
    assert torch.equal(shifted[1, :, 2:, :-1], images[1, :, :-2, 1:])
    assert shifted[3].eq(0).all()


def test_shift_keeps_the_content_that_stays_inside() -> None:
    images = torch.zeros(50, 1, 12, 12)
    images[:, :, 4:8, 4:8] = torch.rand(50, 1, 4, 4)
    moved = Augmentation((Shift(4),))(images, generator())
    assert torch.allclose(moved.sum(dim=(1, 2, 3)), images.sum(dim=(1, 2, 3)))
    assert not torch.equal(moved, images)


def test_crop_is_a_crop_of_the_padded_image() -> None:
    images = torch.rand(30, 3, 5, 6)
    operation = Crop(2)
    parameters = operation.draw(30, 5, 6, generator())
    assert set(parameters.flatten().tolist()) == set(range(-2, 3))
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2))
    for n, (down, right) in enumerate(parameters.tolist()):
        expected = padded[n, :, 2 - down : 7 - down, 2 - right : 8 - right]
        assert torch.equal(operation.apply(images, parameters)[n], expected)


def test_flip_twice_is_the_identity() -> None:
    images = torch.rand(16, 1, 3, 4)
    parameters = Flip().draw(16, 3, 4, generator())
    once = Flip().apply(images, parameters)
    assert 0 < parameters.sum() < 16
    assert torch.equal(once[parameters[:, 0] == 1], images[parameters[:, 0] == 1].flip(-1))
    assert torch.equal(Flip().apply(once, parameters), images)


@pytest.mark.parametrize("shape", [(8, 8), (7, 12), (1, 5)])
def test_rotation_by_nothing_is_the_identity(shape: tuple[int, int]) -> None:
    images = torch.rand(3, 2, *shape)
    assert torch.allclose(Augmentation((Rotate(0),))(images), images, atol=1e-5)


@pytest.mark.parametrize("side", [7, 8])
def test_rotation_by_a_quarter_turns_the_picture(side: int) -> None:
    images = torch.rand(2, 1, side, side)
    turned = Rotate(90).apply(images, torch.tensor([[90.0], [-90.0]]))
    assert torch.allclose(turned[0], images[0].rot90(1, (1, 2)), atol=1e-5)
    assert torch.allclose(turned[1], images[1].rot90(-1, (1, 2)), atol=1e-5)


def test_rotation_keeps_proportions_of_oblong_images() -> None:
    images = torch.rand(1, 1, 5, 9)
    turned = Rotate(180).apply(images, torch.tensor([[90.0]]))
    # The central square turns as a square would.
    assert torch.allclose(turned[0, :, :, 2:7], images[0, :, :, 2:7].rot90(1, (1, 2)), atol=1e-5)


def test_brightness_and_contrast_worked() -> None:
    images = torch.tensor([0.2, 0.6]).view(1, 1, 1, 2)
    assert torch.allclose(Brightness(1).apply(images, torch.tensor([[0.5]])).flatten(), torch.tensor([0.7, 1.0]))
    assert torch.allclose(Contrast(0, 2).apply(images, torch.tensor([[0.5]])).flatten(), torch.tensor([0.3, 0.5]))
    assert torch.allclose(Contrast(0, 2).apply(images, torch.tensor([[0.0]])).flatten(), torch.tensor([0.4, 0.4]))


def test_margins_of_the_content() -> None:
    images = torch.zeros(2, 1, 6, 8)
    images[0, 0, 1:4, 3:5] = 1
    assert content_margins(images).tolist() == [[1, 2, 3, 3], [0, 0, 0, 0]]


def test_efficient_mnist_shift_stays_inside_and_reaches_both_ends() -> None:
    images = torch.zeros(2, 1, 28, 28)
    images[:, :, 12:14, 2:4] = 1
    neutral = torch.tensor([0.0, 1.0])
    low = torch.cat([neutral, torch.tensor([-0.9999, -0.9999, 0.0, 0.999])])
    high = torch.cat([neutral, torch.tensor([0.9999, 0.9999, 0.0, 0.0])])
    moved = EfficientMnist().apply(images, torch.stack([low, high]))
    assert content_margins(moved).tolist() == [[0, 26, 0, 26], [26, 0, 26, 0]]


def test_efficient_mnist_erases_a_square_and_squishes_in_width_only() -> None:
    white = torch.ones(1, 1, 28, 28)
    erased = EfficientMnist().apply(white, torch.tensor([[0, 1, 0, 0, 0.5, 0.5]]))
    assert (erased < 0.5).sum() == 16
    narrow = EfficientMnist().apply(white, torch.tensor([[0, 0.75, 0, 0, 0.999, 0.999]]))
    assert torch.allclose(narrow[0, 0, 0].sum(), torch.tensor(21.0), atol=1e-3)
    assert (narrow[0, 0, :20, 4:24] > 0.99).all()


def test_efficient_mnist_draws_what_it_says() -> None:
    drawn = EfficientMnist().draw(2000, 28, 28, generator())
    turned = drawn[:, 0] != 0
    # Half of the images, except for rotations below a degree.
    assert 0.42 < turned.float().mean() < 0.5
    degrees = drawn[:, 0] * 180 / torch.pi
    assert degrees.abs().max() < 30 and torch.allclose(degrees, degrees.round(), atol=1e-4)
    # floor(7 |n| + 1) pixels of 28, of which |n| above 0.9999 is clipped.
    narrower = 28 * (1 - drawn[:, 1])
    assert torch.allclose(narrower, narrower.round(), atol=1e-4)
    assert sorted(set(narrower.round().int().tolist())) == [1, 2, 3, 4, 5, 6, 7]
    for column in (2, 3):
        shift = drawn[:, column]
        assert 0.3 < shift.std() < 0.36 and abs(shift.mean()) < 0.03 and shift.abs().max() <= 0.9999
    assert drawn[:, 4:].min() >= 0 and drawn[:, 4:].max() < 1


def test_efficient_mnist_erases_where_the_authors_do() -> None:
    white, neutral = torch.ones(1, 1, 28, 28), torch.tensor([0.0, 1.0, 0.0, 0.0])
    for place, first in ((0.0, 4), (0.5, 4 + 9), (0.9999, 22)):
        erased = EfficientMnist().apply(white, torch.cat([neutral, torch.tensor([place, place])])[None])[0, 0] == 0
        assert erased.sum() == 16 and erased[first : first + 4, first : first + 4].all()


@pytest.mark.parametrize("text", ALL)
@pytest.mark.parametrize("value", [0.0, 1.0, None])
@pytest.mark.parametrize("shape", [(3, 9, 8), (1, 2, 3)])
def test_every_operation_keeps_shape_range_and_sense(
    text: str, value: float | None, shape: tuple[int, int, int]
) -> None:
    images = torch.rand(5, *shape) if value is None else torch.full((5, *shape), value)
    before = images.clone()
    changed = Augmentation.parse([text])(images, generator())
    assert changed.shape == images.shape
    assert changed.dtype == torch.float32
    assert changed.isfinite().all()
    assert changed.min() >= 0
    assert changed.max() <= 1 + 1e-6
    assert torch.equal(images, before)


@pytest.mark.parametrize("text", ALL)
def test_every_operation_acts_on_each_image_separately_and_repeats(text: str) -> None:
    augmentation = Augmentation.parse([text])
    images = torch.rand(6, 1, 10, 10)
    drawn = augmentation.draw(6, 10, 10, generator(3))
    whole = augmentation.apply(images, drawn)
    part = augmentation.apply(images[2:5], [parameters[2:5] for parameters in drawn])
    assert torch.allclose(part, whole[2:5], atol=1e-6)
    assert torch.equal(augmentation(images, generator(3)), whole)


def test_written_forms_round_trip() -> None:
    augmentation = Augmentation.parse(ALL)
    assert augmentation.texts == ALL
    assert Augmentation.parse(augmentation.texts) == augmentation
    assert {text.partition("=")[0] for text in ALL} == {
        name for name, each in OPERATIONS.items() if each.changes == "images"
    }
    assert Augmentation.parse([]).operations == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rotat=3", "did you mean 'rotate'"),
        ("rotate", "write it like 'rotate=15'"),
        ("rotate=", "write it like 'rotate=15'"),
        ("rotate=fast", "write it like 'rotate=15'"),
        ("rotate=nan", "between 0 and 180"),
        ("shift=1.5", "write it like 'shift=2'"),
        ("shift=-1", "at least 0"),
        ("crop=-1", "at least 0"),
        ("flip=1", "write it like 'flip'"),
        ("brightness=2", "between 0 and 1"),
        ("contrast=1", "write it like 'contrast=0.5:1.5'"),
        ("contrast=2:1", "low <= high"),
        ("contrast=0:inf", "low <= high"),
        ("saturation=2:1", "low <= high"),
        ("zoom=0:1", "0 < low <= high <= 1"),
        ("hue=0.6", "between 0 and 0.5"),
        ("noise=1.1", "between 0 and 1"),
        ("hue=nan", "between 0 and 0.5"),
        ("erase=2:0.1:0.2", "between 0 and 1"),
        ("erase=1:0.3:0.2", "low <= high"),
        ("rand_augment=2:31", "between 0 and 30"),
        ("rand_augment=1e9:9", "write it like"),
    ],
)
def test_wrong_forms_are_refused_with_a_remedy(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Augmentation.parse([text])


def test_a_bare_string_is_refused() -> None:
    with pytest.raises(UsageError, match="must be a list"):
        Augmentation.parse("flip")


@pytest.mark.parametrize("amount", [-0.5, -0.13, 0.0, 0.2, 0.5])
def test_hue_and_saturation_are_those_of_torchvision(amount: float) -> None:
    functional = pytest.importorskip("torchvision.transforms.v2.functional")
    images = torch.rand(4, 3, 5, 6, generator=generator())
    images[0] = 0.25  # without colour
    parameters = torch.full((4, 1), amount)
    assert torch.allclose(Hue(0.5).apply(images, parameters), functional.adjust_hue(images, amount), atol=1e-5)
    factors = parameters + 0.7
    theirs = functional.adjust_saturation(images, amount + 0.7)
    assert torch.allclose(Saturation(0, 2).apply(images, factors), theirs, atol=1e-3)


def test_erased_rectangles_have_their_share() -> None:
    white = torch.ones(400, 1, 30, 40)
    erased = Augmentation.parse(["erase=0.5:0.1:0.3"])(white, generator()).eq(0).flatten(1).float().mean(1)
    assert 0.4 < (erased > 0).float().mean() < 0.6
    shares = erased[erased > 0]
    assert shares.min() > 0.08 and shares.max() < 0.32
    assert abs(float(shares.mean()) - 0.2) < 0.02


def test_zoom_shows_a_part_and_the_whole_is_the_identity() -> None:
    images = torch.rand(3, 2, 9, 12, generator=generator())
    identity = torch.tensor([[1.0, 1, 0, 0]]).expand(3, 4)
    assert torch.allclose(Zoom(0.1, 1).apply(images, identity), images, atol=1e-5)
    drawn = Zoom(0.25, 0.5).draw(500, 9, 12, generator())
    share = drawn[:, 0] * drawn[:, 1]
    assert share.max() < 0.5 + 1e-6 and share.min() > 0.2
    ratio = drawn[:, 0] * 12 / (drawn[:, 1] * 9)
    assert ratio.min() > 0.7 and ratio.max() < 1.4
    assert (drawn[:, 2:].abs() <= (1 - drawn[:, :2]) / 2 + 1e-6).all(), "inside the image"
    # A quarter of the image, its top left one: every pixel becomes four.
    corner = torch.tensor([[0.5, 0.5, -0.25, -0.25]])
    steps = torch.arange(8.0).view(1, 1, 1, 8).expand(1, 1, 8, 8) / 8
    assert torch.allclose(Zoom(0.1, 1).apply(steps, corner)[0, 0, 4, 2:6], torch.tensor([0.75, 1.25, 1.75, 2.25]) / 8)


def test_rand_augment_of_no_magnitude_keeps_most_and_leaves_other_channels_unchanged() -> None:
    images = torch.rand(40, 3, 8, 8, generator=generator())
    changed = Augmentation.parse(["rand_augment=1:0"])(images, generator(1))
    same = torch.isclose(changed, images, atol=2e-2).flatten(1).all(1)
    assert 0.5 < same.float().mean() < 1  # solarize, autocontrast and equalize have no neutral magnitude
    with pytest.raises(UsageError, match="these have 2"):
        Augmentation.parse(["rand_augment=1:9"])(images[:, :2], generator())


def test_noise_has_the_deviation_of_each_image_and_follows_from_its_number():
    noise, images = Noise(0.2), torch.full((3, 3, 40, 40), 0.5)
    drawn = noise.draw(3, 40, 40, generator())
    changed = noise.apply(images, drawn)
    torch.testing.assert_close((changed - images).flatten(1).std(1), drawn[:, 0].float(), rtol=0.05, atol=0)
    assert (drawn[:, 0] < 0.2).all() and len(set(drawn[:, 0].tolist())) == 3
    # An image changes the same way whatever batch it is in.
    torch.testing.assert_close(noise.apply(images[1:2], drawn[1:2]), changed[1:2], rtol=0, atol=0)
    none = torch.tensor([[0.0, 7.0]], dtype=torch.float64)
    assert torch.equal(noise.apply(images[:1], none), images[:1])
