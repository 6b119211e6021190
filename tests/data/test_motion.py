"""What belongs to an image moves with it: boxes and masks as numbers agree with boxes and masks as pixels."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mereo.data import Augmentation, Batch, ImageSet
from mereo.data.raw import ArraySplit, Request
from mereo.errors import UsageError

EXACT = ["shift=5", "crop=4", "flip"]
INTERPOLATED = ["rotate=180", "zoom=0.3:1", "efficient_mnist"]
IN_PLACE = ["brightness=0.2", "contrast=0.5:1.5", "saturation=0.5:1.5", "hue=0.1", "erase=1:0.1:0.3"]
COUNT, HEIGHT, WIDTH = 12, 20, 26


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw_boxes(boxes: Tensor, labels: Tensor) -> Tensor:
    """Each box as a mask of its own. -> bool (n, most, h, w)."""
    y = torch.arange(HEIGHT).view(1, 1, -1, 1) + 0.5
    x = torch.arange(WIDTH).view(1, 1, 1, -1) + 0.5
    left, top, right, bottom = (side[..., None, None] for side in boxes.unbind(-1))
    return (x > left) & (x < right) & (y > top) & (y < bottom) & (labels >= 0)[..., None, None]


def sample(seed: int) -> Batch:
    """One box an image with whole corners, drawn white on black and as class 1 of the mask; and a row of no box."""
    random = generator(seed)
    left = torch.randint(0, WIDTH - 4, (COUNT,), generator=random)
    top = torch.randint(0, HEIGHT - 4, (COUNT,), generator=random)
    right = left + 4 + (torch.rand(COUNT, generator=random) * (WIDTH - left - 3)).long().clamp(max=9)
    bottom = top + 4 + (torch.rand(COUNT, generator=random) * (HEIGHT - top - 3)).long().clamp(max=9)
    corners = torch.stack([left, top, right.clamp(max=WIDTH), bottom.clamp(max=HEIGHT)], dim=1).float()
    boxes = torch.stack([corners, torch.zeros_like(corners)], dim=1)
    labels = torch.tensor([[3, -1]]).expand(COUNT, 2)
    pixels = draw_boxes(boxes, labels)[:, :1]
    images = pixels.float().expand(-1, 3, -1, -1).contiguous()
    return Batch(images, torch.arange(COUNT), masks=pixels[:, 0].long(), boxes=boxes, box_labels=labels)


def hull(pixels: Tensor) -> Tensor | None:
    """The box around what is set. Shapes: bool (h, w) -> (4,)."""
    rows, columns = pixels.any(1).nonzero()[:, 0], pixels.any(0).nonzero()[:, 0]
    if not len(rows):
        return None
    return torch.stack([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]).float()


def holds(outer: Tensor, inner: Tensor) -> bool:
    """Whether one box lies in another, up to the size of a pixel."""
    return bool((outer[:2] <= inner[:2] + 1.5).all() and (outer[2:] >= inner[2:] - 1.5).all())


def moved(texts: list[str], seed: int) -> tuple[Batch, Batch]:
    batch, augmentation = sample(seed), Augmentation.parse(texts)
    return batch, augmentation.apply_batch(batch, augmentation.draw(COUNT, HEIGHT, WIDTH, generator(seed)))


@given(st.lists(st.sampled_from(EXACT), min_size=1, max_size=3), st.integers(0, 999))
@settings(max_examples=30, deadline=None)
def test_whole_pixels_agree_exactly(texts: list[str], seed: int) -> None:
    _, batch = moved(texts, seed)
    assert batch.boxes is not None and batch.box_labels is not None and batch.masks is not None
    assert torch.equal(draw_boxes(batch.boxes, batch.box_labels)[:, 0], batch.images[:, 0] == 1)
    assert torch.equal(batch.masks == 1, batch.images[:, 0] == 1)
    for image, box, labels in zip(batch.images, batch.boxes, batch.box_labels, strict=True):
        around = hull(image[0] > 0)
        assert labels.tolist() == [-1 if around is None else 3, -1]
        assert torch.equal(box[0], torch.zeros(4) if around is None else around)
        assert box[1].eq(0).all()


@given(st.sampled_from(INTERPOLATED), st.integers(0, 999))
@settings(max_examples=60, deadline=None)
def test_interpolated_moves_agree_within_a_pixel(text: str, seed: int) -> None:
    _, batch = moved([text], seed)
    assert batch.boxes is not None and batch.box_labels is not None and batch.masks is not None
    for mask, box, labels in zip(batch.masks, batch.boxes, batch.box_labels, strict=True):
        around = hull(mask == 1)
        if labels[0] == -1:
            assert around is None
        elif around is not None:
            # The tip of a turned corner may hold the centre of no pixel.
            assert holds(box[0], around)
            inside = (box[0, :2] > 0).all() and (box[0, 2:] < torch.tensor([WIDTH, HEIGHT])).all()
            # Beyond the border a tip may be cut off that the box of the whole still counts; a shift may follow it.
            assert not inside or text == "efficient_mnist" or holds(around, box[0])
        else:
            assert (box[0, 2:] - box[0, :2]).min() <= 3, "a tip, or what is left of it"
    if text != "efficient_mnist":  # it erases a square of the image, not of the mask
        white = batch.images[:, 0]
        assert (batch.masks[white > 1 - 1e-4] == 1).all()
        assert (batch.masks[white < 1e-4] != 1).all()


def test_what_enters_from_outside_is_ignored_in_masks() -> None:
    batch, after = moved(["shift=5"], 3)
    ones = Augmentation.parse(["shift=5"]).apply(
        torch.ones_like(batch.images), Augmentation.parse(["shift=5"]).draw(COUNT, HEIGHT, WIDTH, generator(3))
    )
    assert after.masks is not None
    assert torch.equal(after.masks == -1, ones[:, 0] == 0)
    for text, enters in (("rotate=45", True), ("zoom=0.3:1", False), ("flip", False)):
        masks = moved([text], 3)[1].masks
        assert masks is not None
        assert bool((masks == -1).any()) == enters


@pytest.mark.parametrize("text", IN_PLACE)
def test_what_keeps_pixels_in_place_keeps_masks_and_boxes(text: str) -> None:
    before, after = moved([text], 0)
    assert after.masks is before.masks and after.boxes is before.boxes and after.box_labels is before.box_labels


@pytest.mark.parametrize("text", [*EXACT, *INTERPOLATED, *IN_PLACE, "rand_augment=3:20"])
def test_images_do_not_depend_on_what_lies_on_them(text: str) -> None:
    before, after = moved([text], 1)
    augmentation = Augmentation.parse([text])
    drawn = augmentation.draw(COUNT, HEIGHT, WIDTH, generator(1))
    assert torch.equal(augmentation.apply(before.images, drawn), after.images)


@given(st.integers(0, 99))
@settings(max_examples=10, deadline=None)
def test_rand_augment_moves_all_together(seed: int) -> None:
    _, after = moved(["rand_augment=2:25"], seed)
    assert after.masks is not None and after.boxes is not None and after.box_labels is not None
    for mask, box, label in zip(after.masks, after.boxes, after.box_labels, strict=True):
        around = hull(mask == 1)
        if around is not None:
            assert label[0] == 3
            assert holds(box[0], around), "the hull of a hull may be larger, never smaller"


def stored(seed: int = 0) -> ImageSet:
    batch = sample(seed)
    fields = {"masks": batch.masks, "boxes": batch.boxes, "box_labels": batch.box_labels,
              "tokens": torch.arange(COUNT * 5).view(COUNT, 5), "lengths": torch.arange(COUNT) % 5 + 1,
              "pairs": torch.arange(COUNT) // 2}  # fmt: skip
    return ImageSet((batch.images * 255).byte(), batch.labels, tuple(map(str, range(COUNT))), fields)


@pytest.mark.parametrize("share", [slice(0, 4), slice(1, 8, 3), slice(5, 5)])
def test_a_share_is_the_slice_of_every_field(share: slice) -> None:
    images, indices = stored(), torch.randperm(COUNT, generator=generator(1))[:8]
    arguments = {"augmentation": Augmentation.parse(["flip", "shift=2", "rand_augment=1:9"]), "crop": (16, 20)}
    whole = images.batch(indices, generator=generator(0), **arguments)
    part = images.batch(indices, generator=generator(0), share=share, **arguments)
    assert whole.masks is not None and whole.masks.shape == (8, 16, 20)
    for name, one, other in zip(Batch._fields, whole, part, strict=True):
        assert (one is None) == (other is None) == (name not in ("images", "labels", *images.fields))
        assert one is None or torch.allclose(one[share], other, atol=1e-6)


def test_a_crop_cuts_masks_and_boxes_with_the_image() -> None:
    batch = stored().batch(torch.arange(COUNT), crop=(12, 14))
    assert batch.masks is not None and batch.boxes is not None and batch.box_labels is not None
    assert torch.equal(batch.masks == 1, batch.images[:, 0] == 1)
    for image, box, label in zip(batch.images, batch.boxes, batch.box_labels, strict=True):
        around = hull(image[0] > 0)
        assert (around is None) == (label[0] == -1)
        assert around is None or torch.equal(box[0], around)


def test_subset_and_device_keep_the_fields() -> None:
    images = stored()
    part = images.subset(torch.tensor([5, 2]))
    assert torch.equal(part.fields["tokens"], images.fields["tokens"][[5, 2]])
    assert images.to("meta").fields["boxes"].device.type == "meta"


@pytest.mark.parametrize(
    ("fields", "fact"),
    [
        ({"mask": torch.zeros(2, 4, 5, dtype=torch.int64)}, "unknown field 'mask'"),
        ({"masks": torch.zeros(2, 4, 4, dtype=torch.int64)}, r"shape \(2, 4, 5\)"),
        ({"masks": torch.zeros(2, 4, 5, dtype=torch.bool)}, "signed whole"),
        ({"masks": torch.zeros(2, 4, 5)}, "signed whole"),
        ({"boxes": torch.zeros(2, 3, 4)}, "without box_labels"),
        ({"boxes": torch.zeros(2, 3, 4), "box_labels": torch.zeros(2, 2, dtype=torch.int64)}, r"shape \(2, 3\)"),
        ({"pairs": torch.zeros(3, dtype=torch.int64)}, r"shape \(2\)"),
        ({"lengths": torch.zeros(2, dtype=torch.int64)}, "without tokens"),
    ],
)
def test_fields_that_do_not_fit_are_refused(fields: dict[str, Tensor], fact: str) -> None:
    with pytest.raises(UsageError, match=fact):
        ImageSet(torch.zeros(2, 1, 4, 5, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), ("a",), fields)


@pytest.mark.parametrize("size", [(HEIGHT, WIDTH), (40, 52), (10, 13), (20, 20), (30, 90)])
def test_fields_of_a_registered_data_set_follow_the_size_of_its_images(size: tuple[int, int]) -> None:
    batch = sample(4)
    assert batch.masks is not None and batch.boxes is not None and batch.box_labels is not None
    fields = {"masks": batch.masks, "boxes": batch.boxes, "box_labels": batch.box_labels}
    split = ArraySplit((batch.images * 255).byte(), batch.labels, None, fields).take(torch.arange(2, COUNT))
    read = split.read(Request(size, 3))
    served = ImageSet(read.images, read.labels, tuple(map(str, range(COUNT))), read.fields).batch(
        torch.arange(COUNT - 2)
    )
    assert served.masks is not None and served.boxes is not None and served.box_labels is not None
    white = served.images[:, 0]
    assert (served.masks[white == 1] == 1).all() and (served.masks[white == 0] == 0).all()
    for mask, box, label in zip(served.masks, served.boxes, served.box_labels, strict=True):
        around = hull(mask == 1)
        if around is not None:
            assert label[0] == 3
            assert holds(box[0], around) and holds(around, box[0])
