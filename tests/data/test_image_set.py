"""ImageSet: batches, crops, and the agreement of processes that share a batch."""

import pytest
import torch

from mereo.data import Augmentation, ImageSet, storage
from mereo.errors import UsageError

AUGMENTATION = Augmentation.parse(["rotate=15", "crop=2", "flip", "contrast=0.5:1.5"])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_plain_batch_is_the_stored_images(images: ImageSet) -> None:
    indices = torch.tensor([3, 0, 3, 19])
    batch = images.batch(indices)
    assert torch.equal(batch.images, images.images[indices].float() / 255)
    assert batch.labels.tolist() == [3, 0, 3, 3]
    assert batch.targets is None
    assert images.image_shape == (3, 7, 6)
    assert len(images) == 20
    assert images.labels_per_image == 1


@pytest.mark.parametrize("share", [slice(0, 4), slice(4, 8), slice(1, 8, 3), slice(5, 5)])
def test_a_share_is_the_slice_of_the_global_batch(images: ImageSet, share: slice) -> None:
    indices = torch.randperm(20, generator=generator(1))[:8]
    arguments = {"augmentation": AUGMENTATION, "crop": (4, 5)}
    whole = images.batch(indices, generator=generator(), **arguments)
    part = images.batch(indices, generator=generator(), share=share, **arguments)
    assert torch.allclose(part.images, whole.images[share], atol=1e-6)
    assert torch.equal(part.labels, whole.labels[share])


def test_a_share_leaves_the_generator_where_the_whole_does(images: ImageSet) -> None:
    first, second = generator(), generator()
    images.batch(torch.arange(8), augmentation=AUGMENTATION, generator=first)
    images.batch(torch.arange(8), augmentation=AUGMENTATION, generator=second, share=slice(0, 2))
    assert torch.equal(first.get_state(), second.get_state())


def test_crops_are_central_without_a_generator_and_random_with_one(images: ImageSet) -> None:
    indices = torch.arange(20)
    centre = images.batch(indices, crop=(3, 4)).images
    assert torch.equal(centre, images.images[:, :, 2:5, 1:5].float() / 255)
    crops = images.batch(indices, crop=(3, 4), generator=generator()).images
    corners = set()
    for image, crop in zip(images.images.float() / 255, crops, strict=True):
        places = [(y, x) for y in range(5) for x in range(3) if torch.equal(image[:, y : y + 3, x : x + 4], crop)]
        assert len(places) == 1
        corners.update(places)
    assert {y for y, _ in corners} == set(range(5))
    assert {x for _, x in corners} == set(range(3))
    assert torch.equal(images.batch(indices, crop=(7, 6), generator=generator()).images, images.images.float() / 255)


def test_subset_and_device(images: ImageSet) -> None:
    part = images.subset(torch.tensor([5, 2]))
    assert torch.equal(part.images, images.images[[5, 2]])
    assert part.labels.tolist() == [1, 2]
    assert part.class_names == images.class_names
    assert len(part.subset(torch.tensor([], dtype=torch.int64))) == 0
    moved = images.to("meta")
    assert moved.images.device.type == "meta"
    assert images.batch(torch.arange(2), device="cpu").images.device.type == "cpu"


def test_a_subset_that_does_not_fit_is_mapped(images: ImageSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "available_memory", lambda: 0)
    indices = torch.tensor([7, 1, 4])
    assert torch.equal(images.subset(indices).images, images.images[indices])


def test_wrong_arguments_are_named(images: ImageSet) -> None:
    with pytest.raises(UsageError, match="generator is None"):
        images.batch(torch.arange(2), augmentation=AUGMENTATION)
    with pytest.raises(UsageError, match="must lie inside"):
        images.batch(torch.arange(2), crop=(8, 6))
    with pytest.raises(UsageError, match="images is"):
        ImageSet(images.images.float(), images.labels, images.class_names)
    with pytest.raises(UsageError, match="labels is"):
        ImageSet(images.images, images.labels[:3], images.class_names)
    with pytest.raises(UsageError, match="labels has values outside"):
        ImageSet(images.images, images.labels, ("a", "b"))
