"""Scenes of regions: what their sentences and features say of each other, files of them, and refused values."""

from pathlib import Path

import numpy as np
import pytest
import torch

from mereo.data import load_splits
from mereo.data.regions import CANVAS, SIDE, Scenes, World, picture_scenes, scenes_of
from mereo.data.registry import find_dataset
from mereo.errors import UsageError


def test_features_are_the_prototypes_and_the_relation_is_mostly_the_one_of_the_table() -> None:
    world = World.made((12, 5, 3, 2), 24, 0.0, 7)
    made = world.scenes(4000, torch.Generator().manual_seed(0), (), classes=3)
    assert made.labels is not None and made.labels.shape == (4000, 7) and made.labels_per_image == 7
    subject, predicate, other, kind, look, other_kind, other_look = made.labels.unbind(1)
    for place, (entity, attribute) in enumerate(((subject, look), (other, other_look))):
        expected = world.prototypes[entity] + world.looks[attribute - 20]
        torch.testing.assert_close(made.regions[:, place], expected)
    assert torch.equal(kind - 17, world.classes[subject]) and torch.equal(other_kind - 17, world.classes[other])
    usual = (predicate - 12 == world.relations[subject, other]).double().mean().item()
    assert abs(usual - (0.9 + 0.1 / 5)) < 0.02
    counts = torch.bincount(subject, minlength=12)
    assert counts.min() > 250 and len(counts) == 12 and int(predicate.min()) == 12 and int(predicate.max()) == 16


def test_noise_has_the_stated_deviation() -> None:
    world = World.made((4, 2, 0, 0), 24, 1.5, 0)
    made = world.scenes(2000, torch.Generator().manual_seed(0), (), classes=0)
    assert made.labels is not None
    noise = made.regions - world.prototypes[made.labels[:, [0, 2]]]
    assert abs(noise.std().item() - 1.5) < 0.02


def test_splits_are_seeded_and_share_a_world() -> None:
    one, other = (load_splits("tensor_brain_scenes:train=50,noise=0", length=1) for _ in range(2))
    assert one.train.describe() == other.train.describe() != one.test.describe()
    assert len(one.train) == 50 and len(load_splits("tensor_brain_scenes", length=1, limit=7).train) == 7
    assert one.class_names[0] == "dog" and one.class_names[12] == "near" and len(one.class_names) == 17
    seen: dict[int, torch.Tensor] = {}
    for part in (one.train, one.test):
        batch = part.batch(torch.arange(50))
        assert batch.regions is not None
        for entity, features in zip(batch.labels[:, 0].tolist(), batch.regions[:, 0], strict=True):
            assert torch.equal(seen.setdefault(entity, features), features), "the same prototypes in every split"
    another = load_splits("tensor_brain_scenes:train=50,seed=1", length=1)
    assert another.train.describe() != one.train.describe()
    part = one.train.subset(torch.tensor([3, 1])).batch(torch.arange(2))
    assert torch.equal(part.labels, one.train.batch(torch.tensor([3, 1])).labels)


def test_relations_of_pictures_are_those_of_their_boxes_and_classes() -> None:
    images, labels = torch.rand(40, SIDE, SIDE), torch.arange(40) % 10
    made = picture_scenes(images, labels, 500, 3, tuple("abcdefghij"))
    assert made.labels is not None and made.class_names[10:] == ("left of", "above", "same as")
    counts = [0, 0, 0]
    for regions, (subject, predicate, other) in zip(made.regions, made.labels.tolist(), strict=True):
        boxes = (regions[:, -4:] * CANVAS).round().long().tolist()
        (x, y, right, low), (x2, y2, _, _), union = boxes
        assert right - x == low - y == SIDE and max(abs(x2 - x), abs(y2 - y)) >= SIDE
        assert union == [min(x, x2), min(y, y2), max(x, x2) + SIDE, max(y, y2) + SIDE]
        if subject == other:
            assert predicate == 12
        elif abs(x2 - x) >= abs(y2 - y):
            assert predicate == 10 and x < x2
        else:
            assert predicate == 11 and y < y2
        counts[predicate - 10] += 1
        for place, label in enumerate((subject, other)):
            pixels = regions[place, : SIDE * SIDE].view(SIDE, SIDE)
            (found,) = ((images - pixels).abs().amax((1, 2)) < 1e-4).nonzero()[0].tolist()
            assert labels[found] == label, "a region shows its image unchanged"
    assert min(counts) > 120


def test_files_and_arrays(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(3, 2, 5))
    np.savez(tmp_path / "many.npz", regions=values)
    np.save(tmp_path / "one.npy", values[0])
    found = scenes_of([tmp_path / "many.npz", tmp_path / "one.npy", torch.from_numpy(values[1])])
    assert found.names == ["many-0", "many-1", "many-2", "one", "scene"]
    torch.testing.assert_close(found.regions, torch.from_numpy(values[[0, 1, 2, 0, 1]]).float())
    assert found.as_split().batch(torch.arange(5)).labels is None
    (tmp_path / "text.csv").write_text("1,2")
    np.savez(tmp_path / "other.npz", points=values)
    values[0, 0, 0] = np.nan
    for given, error in (
        (tmp_path / "text.csv", "is not a file of regions"),
        (tmp_path / "other.npz", "is not regions as .npz holds them"),
        (values, "not finite"),
        (np.zeros(3), r"shape \(3,\)"),
        ([], "regions are a list"),
        ([np.zeros((2, 5)), np.zeros((3, 5))], r"shapes \(2, 5\) and \(3, 5\)"),
    ):
        with pytest.raises(UsageError, match=error):
            scenes_of(given)


def test_wrong_scenes() -> None:
    with pytest.raises(UsageError, match=r"regions are torch.float32 of shape \(2, 3\)"):
        Scenes(torch.zeros(2, 3), None)
    with pytest.raises(UsageError, match=r"labels are of shape \(2, 2\); they must be \(2, at least 3\)"):
        Scenes(torch.zeros(2, 3, 4), torch.zeros(2, 2, dtype=torch.int64))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ("tensor_brain_scenes:entities=0", "entities is 0"),
        ("tensor_brain_scenes:noise=-1", "noise is -1"),
        ("tensor_brain_scenes:train=0", "train is 0"),
        ("picture_relations:of=tours", "of is 'tours', which is not images"),
        ("picture_relations:of=digit", "did you mean 'digits'"),
    ],
)
def test_impossible_options_are_refused(data: str, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        find_dataset(data)
