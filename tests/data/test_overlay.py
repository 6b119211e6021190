"""MultiMNIST: the worked check of its counts, and the laws of pairs."""

import pytest
import torch

from mereo.data import Augmentation, ImageSet, OverlaidPairs
from mereo.errors import UsageError


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def digits() -> ImageSet:
    pixels = torch.randint(0, 256, (30, 1, 28, 28), dtype=torch.uint8, generator=generator())
    labels = torch.tensor([0] * 20 + [1, 2, 2, 2, 4, 4, 4, 4, 4, 4])
    return ImageSet(pixels, labels[torch.randperm(30, generator=generator())], tuple("01234"))


@pytest.mark.parametrize("train", [True, False])
def test_items_are_as_described(digits: ImageSet, train: bool) -> None:
    pairs = OverlaidPairs(digits)
    batch = pairs.batch(torch.arange(30), generator=generator() if train else None)
    assert batch.targets is not None
    assert batch.images.shape == (30, 1, 36, 36)
    assert batch.targets.shape == (30, 2, 1, 36, 36)
    assert (batch.labels[:, 0] != batch.labels[:, 1]).all()
    assert torch.equal(batch.labels[:, 0], digits.labels)
    assert torch.equal(batch.images, (batch.targets[:, 0] + batch.targets[:, 1]).clamp(max=1))
    for n in range(30):
        for k in range(2):
            # With a shift of at most the padding nothing of a digit is lost: some shift brings one back.
            same = digits.images[digits.labels == batch.labels[n, k]] if k else digits.images[n : n + 1]
            windows = batch.targets[n, k].unfold(1, 28, 1).unfold(2, 28, 1)[0]
            assert (windows.flatten(0, 1)[:, None] == same[None, :, 0].float() / 255).all(dim=(2, 3)).any()


def test_no_shift_puts_the_digit_in_the_centre(digits: ImageSet) -> None:
    batch = OverlaidPairs(digits, max_shift=0).batch(torch.arange(30))
    assert batch.targets is not None
    assert torch.equal(batch.targets[:, 0, :, 4:-4, 4:-4], digits.images.float() / 255)
    assert torch.allclose(batch.targets[:, 0].sum(), digits.images.sum() / 255)
    plain = OverlaidPairs(digits, max_shift=0, pad=0).batch(torch.arange(30))
    assert plain.targets is not None
    assert torch.equal(plain.targets[:, 0], digits.images.float() / 255)


def test_partners_are_uniform_over_the_other_classes(digits: ImageSet) -> None:
    pairs = OverlaidPairs(digits)
    first = torch.full((4000,), int((digits.labels == 2).nonzero()[0]))
    draws = torch.linspace(0, 1, 4001, dtype=torch.float64)[:-1]
    counts = torch.bincount(pairs._partners(first, draws), minlength=30)
    others = digits.labels != 2
    assert counts[~others].eq(0).all()
    assert (counts[others] - 4000 / 27).abs().max() <= 1


def test_evaluation_is_a_function_of_seed_and_index(digits: ImageSet) -> None:
    pairs = OverlaidPairs(digits, pairs_per_image=3)
    assert len(pairs) == 90
    order = torch.randperm(90, generator=generator())
    whole, shuffled = pairs.batch(torch.arange(90)), pairs.batch(order)
    assert torch.equal(whole.images[order], shuffled.images)
    assert torch.equal(whole.labels[:30, 0], whole.labels[30:60, 0])
    assert not torch.equal(whole.images[:30], whole.images[30:60])
    assert torch.equal(OverlaidPairs(digits).batch(torch.arange(30)).images, whole.images[:30])
    assert not torch.equal(OverlaidPairs(digits, seed=1).batch(torch.arange(30)).images, whole.images[:30])


def test_shifts_reach_both_ends(digits: ImageSet) -> None:
    single = ImageSet(torch.full((2, 1, 1, 1), 255, dtype=torch.uint8), torch.tensor([0, 1]), ("0", "1"))
    batch = OverlaidPairs(single, pairs_per_image=500).batch(torch.arange(1000))
    assert batch.targets is not None
    assert batch.targets.sum(dim=(2, 3, 4)).eq(1).all()
    assert batch.targets.sum(dim=(0, 1, 2)).gt(0).all()


def test_a_share_is_the_slice_of_the_global_batch(digits: ImageSet) -> None:
    pairs = OverlaidPairs(digits)
    arguments = {"augmentation": Augmentation.parse(["rotate=15", "shift=1"]), "crop": (24, 24)}
    whole = pairs.batch(torch.arange(12), generator=generator(), **arguments)
    part = pairs.batch(torch.arange(12), generator=generator(), share=slice(6, 12), **arguments)
    assert whole.targets is not None
    assert part.targets is not None
    assert part.images.shape == (6, 1, 24, 24)
    assert torch.allclose(part.images, whole.images[6:], atol=1e-6)
    assert torch.allclose(part.targets, whole.targets[6:], atol=1e-6)
    assert torch.equal(part.labels, whole.labels[6:])
    empty = pairs.batch(torch.arange(12), generator=generator(), share=slice(12, 18), **arguments)
    assert empty.images.shape == (0, 1, 24, 24)
    assert empty.labels.shape == (0, 2)


def test_a_crop_cuts_the_canvas(digits: ImageSet) -> None:
    pairs = OverlaidPairs(digits)
    whole, centre = pairs.batch(torch.arange(5)), pairs.batch(torch.arange(5), crop=(30, 32))
    assert torch.equal(centre.images, whole.images[:, :, 3:33, 2:34])


def test_subsets_keep_their_pairs(digits: ImageSet) -> None:
    pairs = OverlaidPairs(digits, pairs_per_image=2)
    indices = torch.tensor([40, 3, 17])
    part = pairs.subset(indices).to("cpu")
    assert len(part) == 3
    assert part.image_shape == (1, 36, 36)
    assert torch.equal(part.batch(torch.tensor([2, 0])).images, pairs.batch(indices[[2, 0]]).images)
    assert torch.equal(part.subset(torch.tensor([1])).batch(torch.tensor([0])).labels, pairs.batch(indices[[1]]).labels)


def test_wrong_arguments_are_named(digits: ImageSet) -> None:
    with pytest.raises(UsageError, match="fewer than two classes"):
        OverlaidPairs(digits.subset((digits.labels == 0).nonzero()[:, 0]))
    with pytest.raises(UsageError, match="pairs_per_image is 0"):
        OverlaidPairs(digits, pairs_per_image=0)
    with pytest.raises(UsageError, match="max_shift is -1"):
        OverlaidPairs(digits, max_shift=-1)
