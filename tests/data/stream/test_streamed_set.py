"""A streamed set serves what a stored one serves, bit for bit, whatever is read ahead and by how many threads."""

import threading

import numpy as np
import pytest
import torch
from PIL import Image

from mereo.data import Augmentation, ImageSet, load_splits
from mereo.data.decode import decode
from mereo.data.encoded import FileStore
from mereo.data.stream import Source, Store, StreamedSet
from mereo.data.stream.order import window_order
from mereo.data.stream.read_ahead import ReadAhead, default_workers
from mereo.errors import MereoError, UsageError
from mereo.training.order import sample_epoch
from sources import NAMES, encoded


@pytest.fixture
def both(folder):
    """The training images of the folder, stored and streamed."""
    stored = load_splits(str(folder), img_size=10, validation_fraction=0).train
    streamed = load_splits(str(folder), img_size=10, validation_fraction=0, stream=True).train
    assert isinstance(stored, ImageSet) and isinstance(streamed, StreamedSet)
    return stored, streamed


def like(streamed, **changes):
    return StreamedSet(streamed.source, NAMES, (10, 10), 3, **changes)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("prefetched", [False, True])
@pytest.mark.parametrize("share", [None, slice(2, 5)])
def test_batches_are_those_of_a_stored_set(both, workers, prefetched, share):
    stored, streamed = both
    streamed = like(streamed, workers=workers, read_ahead=9)
    order = streamed.order(torch.Generator().manual_seed(3))
    assert torch.equal(order, stored.order(torch.Generator().manual_seed(3)))
    assert torch.equal(order, torch.randperm(24, generator=torch.Generator().manual_seed(3)))
    mine = order.view(-1, 6)[:, slice(None) if share is None else share].flatten()
    if prefetched:
        streamed.prefetch(mine)
    augmentation = Augmentation.parse(["rotate=10", "flip"])
    for step, indices in enumerate(order.split(6)):
        one, other = (
            images.batch(indices, augmentation=augmentation, crop=(8, 7), share=share, device="cpu",
                         generator=torch.Generator().manual_seed(step))
            for images in (stored, streamed)
        )  # fmt: skip
        assert torch.equal(one.images, other.images) and torch.equal(one.labels, other.labels)
    indices = torch.tensor([5, 5, 0])
    assert torch.equal(stored.batch(indices).images, streamed.batch(indices).images), "in any order, repeatedly"
    part = torch.arange(20, 2, -3)
    assert torch.equal(
        stored.subset(part).batch(torch.arange(6)).images, streamed.subset(part).to("cpu").batch(torch.arange(6)).images
    )


def test_evaluation_in_inference_mode(both):
    stored, streamed = both
    for crop in ((7, 8), (10, 10)):
        cut = [images.batch(torch.arange(5), crop=crop).images for images in both]
        assert torch.equal(*cut) and cut[0].shape == (5, 3, *crop)
    with torch.inference_mode():
        streamed.prefetch(torch.arange(10))
        for part in torch.arange(20).split(5):
            assert torch.equal(stored.batch(part).images, streamed.batch(part).images)
    streamed.prefetch(torch.arange(10))
    assert torch.equal(stored.batch(torch.arange(7)).images, streamed.batch(torch.arange(7)).images)


def test_reading_on_in_the_middle_of_an_epoch(both):
    _, streamed = both
    order = streamed.order(torch.Generator().manual_seed(1))
    streamed.prefetch(order)
    whole = [streamed.batch(part).images for part in order.split(5)]
    resumed = like(streamed)
    resumed.prefetch(order[10:])
    assert all(torch.equal(resumed.batch(part).images, whole[2 + i]) for i, part in enumerate(order[10:].split(5)))


class Counting(Store):
    """Images that remember which were opened, by which thread."""

    def __init__(self, count):
        self.opened, self.threads, self.count = [], set(), count
        self.store = FileStore(None, [])

    def open(self, number):
        import io

        self.opened.append(number)
        self.threads.add(threading.get_ident())
        return io.BytesIO(encoded(number))

    def name(self, number):
        return f"picture {number}"


def test_only_what_is_read_ahead_is_decoded_and_once(both):
    store = Counting(200)
    source = Source(store, torch.arange(200), torch.zeros(200, dtype=torch.int64))
    images = StreamedSet(source, ("a", "b"), (8, 8), 3, workers=2, read_ahead=32)
    order = images.order(torch.Generator().manual_seed(0))
    images.prefetch(order)
    for start in range(0, 200, 20):
        images.batch(order[start : start + 20])
        images._ahead._pool.submit(lambda: None).result()
        assert len(store.opened) <= start + 20 + 32
    assert sorted(store.opened) == list(range(200))
    assert threading.get_ident() not in store.threads
    images.prefetch(order)
    images.prefetch(order.flip(0))  # another epoch, before the first was asked for
    assert len(images.batch(order.flip(0)[:40]).labels) == 40
    assert len(images._ahead._coming) <= 32


def test_what_is_decoded_is_kept_where_it_still_comes_next():
    store = Counting(60)
    images = StreamedSet(
        Source(store, torch.arange(60), torch.zeros(60, dtype=torch.int64)), ("a",), (8, 8), 3, workers=2, read_ahead=16
    )
    order = torch.arange(60)
    for start in (0, 3, 10, 26, 60):  # announced again in the middle of blocks, and at the end
        images.prefetch(order[start:])
        if start < 60:
            taken = images.batch(order[start : start + 3])
            assert torch.equal(taken.images, like_now(images, order[start : start + 3]))
    assert len(store.opened) < 60 + 4 * 16 + 12
    images.prefetch(order.flip(0))
    assert torch.equal(images.batch(order.flip(0)[:9]).images, like_now(images, order.flip(0)[:9]))
    store.opened.clear()
    images.prefetch(order.flip(0)[9:])
    images.batch(order.flip(0)[9:12])
    assert not {50, 49, 48} & set(store.opened), "decoded once"


def like_now(images, indices):
    """The same images from a set that has read nothing ahead."""
    return images.subset(indices).batch(torch.arange(len(indices))).images


@pytest.fixture
def damaged(folder):
    """Three of the training images cannot be read: the first, and two next to each other."""
    for file, content in (("cat/000", b""), ("dog/003", encoded(0)[:90]), ("dog/004", b"text")):
        (folder / "train" / f"{file}.png").write_bytes(content)
    return folder


@pytest.mark.filterwarnings("ignore:skipped unreadable images")
@pytest.mark.parametrize("prefetched", [False, True])
def test_unreadable_images(damaged, prefetched):
    images = load_splits(str(damaged), img_size=10, validation_fraction=0, stream=True).train
    clean = torch.tensor([i for i in range(24) if i not in (0, 11, 12)])
    if prefetched:
        images.prefetch(torch.arange(24))
    kept = images.batch(torch.arange(24))
    assert images.skipped == 3
    expected = images.batch(clean)
    assert torch.equal(kept.images, expected.images) and torch.equal(kept.labels, expected.labels)
    if prefetched:
        images.prefetch(torch.arange(24))
    training = images.batch(torch.arange(24), generator=torch.Generator())
    stand_ins = torch.arange(24)
    stand_ins[[0, 11, 12]] = torch.tensor([1, 13, 13])
    assert torch.equal(training.images, images.batch(stand_ins).images)
    assert torch.equal(training.labels, images.source.labels[stand_ins])
    for share in (slice(0, 3), slice(10, 13)):
        part = images.batch(torch.arange(24), generator=torch.Generator(), share=share)
        assert torch.equal(part.images, training.images[share]), "another process sees the same"
    with pytest.raises(MereoError, match=r"none of the 2 images.*dog/003\.png"):
        images.batch(torch.tensor([11, 12]))


def test_unreadable_images_are_named_once_and_refused_when_strict(damaged):
    images = load_splits(str(damaged), img_size=10, validation_fraction=0, stream=True).train
    with pytest.warns(UserWarning, match=r"dog/004\.png \(not an image\)"):
        images.batch(torch.arange(10, 15))
    images.batch(torch.arange(10, 15))
    strict = load_splits(str(damaged), img_size=10, validation_fraction=0, stream=True, strict=True).train
    with pytest.raises(MereoError, match=r"cat/000\.png.*strict"):
        strict.batch(torch.arange(3))
    with pytest.warns(UserWarning, match=r"cat/000\.png"):
        stored = load_splits(str(damaged), img_size=10, validation_fraction=0)
    assert len(stored.train) == 21, "as where all are decoded at once"


def test_a_source_where_nothing_can_be_read(tmp_path):
    files = [str(tmp_path / f"{i}.png") for i in range(120)]
    images = StreamedSet(
        Source(FileStore(None, files), torch.arange(120), torch.zeros(120, dtype=torch.int64)), ("a",), (8, 8), 3
    )
    with pytest.warns(UserWarning), pytest.raises(MereoError, match=r"100 images in a row.*0\.png"):
        images.batch(torch.arange(2), generator=torch.Generator())


def test_errors_of_memory_are_not_broken_images():
    def fail(index, out):
        raise MemoryError

    reader = ReadAhead(fail, (1, 2, 2), ahead=4, workers=1)
    with pytest.raises(MemoryError):
        reader.take(np.arange(3))
    reader.expect(np.arange(3))
    with pytest.raises(MemoryError):
        reader.take(np.arange(3))


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"order": "shard"}, "order"),
        ({"workers": 0}, "workers"),
        ({"window": 0}, "window"),
        ({"read_ahead": -1}, "read_ahead"),
    ],
)
def test_wrong_arguments(both, arguments, name):
    with pytest.raises(UsageError, match=name):
        like(both[1], **arguments)


def test_processes_of_one_machine_share_its_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(12)), raising=False)
    for beside, workers in (("1", 12), ("5", 2), ("99", 1), ("", 12), ("x", 12)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", beside)
        assert default_workers() == workers


def test_wrong_indices(both):
    with pytest.raises(UsageError, match="indices"):
        both[1].batch(torch.tensor([24]))


def test_the_order_of_shards_reads_few_files_at_a_time():
    groups = torch.arange(1000) // 100
    order = window_order(groups, 100, torch.Generator().manual_seed(0))
    assert torch.equal(order.sort().values, torch.arange(1000))
    assert torch.equal(order, window_order(groups, 100, torch.Generator().manual_seed(0)))
    assert not torch.equal(order, window_order(groups, 100, torch.Generator().manual_seed(1)))
    assert max(len(part.unique()) for part in groups[order].split(100)) <= 3
    first = order[:100]
    assert len(groups[first].unique()) == 2 and (first.diff() > 0).float().mean() < 0.7, "shuffled among near ones"
    assert torch.equal(window_order(groups, 1, torch.Generator()).view(10, 100) % 100, torch.arange(100).repeat(10, 1))


def test_parquet_is_read_in_groups(folder, tmp_path, monkeypatch):
    from mereo.data.stream import tables
    from sources import tables_of

    splits = load_splits(str(tables_of(folder, tmp_path / "out", "parquet", rows=8)), img_size=8, validation_fraction=0)
    images = splits.train
    assert images.kind == "shards" and images.source.groups.unique(return_counts=True)[1].tolist() == [8, 8, 8]
    monkeypatch.setattr(tables, "_KEPT_BYTES", 1)
    monkeypatch.setattr(tables._ParquetFile, "kept", type(tables._ParquetFile.kept)())
    expected = load_splits(str(folder), img_size=8, validation_fraction=0).train
    batch = images.batch(torch.arange(24))
    assert torch.equal(batch.images, expected.batch(torch.arange(24)).images)
    assert len(tables._ParquetFile.kept) == 1, "no more groups than fit"


def photograph(size):
    """Smooth, with an edge: what a photograph is, unlike noise."""
    y, x = np.mgrid[: size[0], : size[1]] / max(size)
    waves = np.stack([np.sin(9 * x + 2 * k) * np.cos(7 * y * (k + 1)) for k in range(3)], 2)
    return Image.fromarray((127 + 100 * waves * np.where(x > y, 1, 0.5)[..., None]).astype(np.uint8))


@pytest.mark.parametrize(("size", "reduced"), [((600, 480), True), ((300, 900), True), ((120, 120), False)])
def test_large_photographs_are_reduced_while_they_are_decoded(size, reduced, tmp_path):
    path = tmp_path / "photograph.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    photograph(size).save(path, quality=92, exif=exif)
    with path.open("rb") as one, path.open("rb") as other:
        whole, fast = (decode(f, (64, 48), 3, reduce=r).astype(int) for f, r in ((one, False), (other, True)))
    difference = np.abs(whole - fast)
    assert (difference.max() > 0) == reduced
    assert difference.mean() < 0.6 and np.quantile(difference, 0.99) <= 4


def test_a_balanced_epoch_knows_the_labels_of_files_that_are_not_read_yet(make_tar):
    counts = (9, 3, 1)
    members: dict[str, bytes] = {}
    for label, count in enumerate(counts):
        for index in range(count):
            members |= {
                f"{label}-{index}.png": encoded(10 * label + index),
                f"{label}-{index}.cls": str(label).encode(),
            }
    folder = make_tar("set/train-0.tar", members).parent
    make_tar("set/test-0.tar", members)
    images = load_splits(str(folder), img_size=(8, 8), validation_fraction=0, stream=True).train
    assert isinstance(images, StreamedSet)
    order = sample_epoch("balanced", 0, 0, images)
    seen = torch.bincount(images.strata[order], minlength=3)
    assert len(order) == len(images) and seen.max() - seen.min() <= 1
