"""Sets of points: made ones, their changes in training, files, and what is wrong with files."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from mereo.data import load_splits
from mereo.data.point_files import in_unit_square, read_sets
from mereo.data.pointing import FORMS, convex_hull, length_of
from mereo.data.points import PointSets
from mereo.errors import MereoError, UsageError

THREE = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize(
    "data",
    [
        "convex_hull:least=4,most=7,train=30", "tours:least=4,most=6,train=30", "delaunay:train=30",
        "tours:least=4,most=6,order=angle,train=30", "convex_hull:least=4,most=7,order=angle,train=30",
    ],
)  # fmt: skip
def test_changes_in_training_keep_the_answer(data: str) -> None:
    sets = load_splits(data, length=5).train
    assert isinstance(sets, PointSets) and sets.pointers is not None
    chosen = torch.arange(30)
    plain, moved = sets.batch(chosen), sets.batch(chosen, generator=torch.Generator().manual_seed(3))
    assert not torch.equal(plain.points, moved.points) and torch.equal(plain.lengths, moved.lengths)
    again = sets.batch(chosen, generator=torch.Generator().manual_seed(3), share=slice(10, 20))
    assert torch.equal(again.points, moved.points[10:20]) and torch.equal(again.pointers, moved.pointers[10:20])
    for row in range(30):
        length = int(plain.lengths[row])
        before, after = (batch.points[row, :length] for batch in (plain, moved))
        torch.testing.assert_close(torch.cdist(before, before).sort(0).values.sum(0).sort().values,
                                   torch.cdist(after, after).sort(0).values.sum(0).sort().values)  # fmt: skip
        assert not moved.points[row, length:].any()
        if sets.problem == "hull":
            expected = convex_hull(after.double().numpy())
            assert moved.pointers[row, : len(expected) + 1].tolist() == [*expected, 0]
    for batch in (plain, moved):
        assert torch.equal(FORMS[sets.problem](batch.points, batch.pointers), batch.pointers), "in its one form"


def test_sets_in_the_order_of_their_angles() -> None:
    drawn, turned = (load_splits(f"tours:most=6,{how}train=40", length=5).train for how in ("", "order=angle,"))
    assert isinstance(turned, PointSets) and isinstance(drawn, PointSets) and turned.pointers is not None
    assert turned.describe() != drawn.describe()
    for generator in (None, torch.Generator().manual_seed(0)):
        batch = turned.batch(torch.arange(40), generator=generator)
        for points, count in zip(batch.points, batch.lengths, strict=True):
            mean = points[:count].mean(0)
            angles = [math.atan2(y, x) for x, y in (points[:count] - mean).tolist()]
            assert angles == sorted(angles) and not points[count:].any()
    for row in range(40):  # the same sets, and tours of the same length
        own = [{tuple(point) for point in sets.points[row, : sets.lengths[row]].tolist()} for sets in (drawn, turned)]
        assert own[0] == own[1]
    lengths = [length_of(sets.points.double(), sets.pointers) for sets in (drawn, turned)]  # type: ignore[arg-type]
    torch.testing.assert_close(*lengths)


def test_options_and_limits_of_made_sets() -> None:
    splits = load_splits("convex_hull:least=3,most=4", length=5, limit=7)
    assert len(splits.train) == 7 and set(splits.test.lengths.tolist()) == {3, 4}  # type: ignore[attr-defined]
    other = load_splits("convex_hull:least=3,most=4,train=7", length=5)
    assert splits.train.describe() == other.train.describe() != splits.test.describe()
    for wrong in ("least=2", "most=4", "most=5000", "train=0", "order=x"):
        with pytest.raises(UsageError, match=wrong.partition("=")[0]):
            load_splits(f"convex_hull:{wrong}", length=5)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"points": torch.rand(2, 3, 2).double()}, "points are torch.float64"),
        ({"lengths": torch.tensor([3, 0])}, "lengths"),
        ({"pointers": torch.tensor([[1, 0], [4, 0]])}, "pointers"),
        ({"problem": "hulls"}, "problem.*'hulls'"),
    ],
)
def test_sets_that_do_not_fit(given: dict[str, object], named: str) -> None:
    fitting: dict[str, object] = {"points": torch.rand(2, 3, 2), "lengths": torch.tensor([3, 2])}
    with pytest.raises(UsageError, match=named):
        PointSets(**(fitting | given))  # type: ignore[arg-type]


def test_files_of_points_and_pointers(tmp_path: Path) -> None:
    table = tmp_path / "places.csv"
    table.write_text("set,x,y\nb,0,0\na,0.5,0.5\nb,1,0\nb,0,1\na,0.1,0.2\n")
    names, sets, pointers = read_sets(table)
    assert names == ["b", "a"] and sets[0].tolist() == THREE and len(sets[1]) == 2 and pointers is None
    one = tmp_path / "one.json"
    one.write_text(json.dumps(THREE))
    assert read_sets(one).names == ["one"] and read_sets(one).sets[0].tolist() == THREE
    two = tmp_path / "two.json"
    two.write_text(json.dumps({"points": [THREE, THREE[:2]], "pointers": [[0, 1, 2], [1, 0]]}))
    split = read_sets(two).as_split()
    assert split.pointers is not None
    assert split.pointers.tolist() == [[1, 2, 3, 0], [2, 1, 0, -1]] and split.lengths.tolist() == [3, 2]
    arrays = tmp_path / "three.npz"
    np.savez(arrays, points=np.array([THREE, THREE]), lengths=[3, 2], pointers=[[0, 1, 2], [1, 0, -1]])
    same = read_sets(arrays)
    assert same.pointers == [[0, 1, 2], [1, 0]] and same.as_split().describe() == split.describe()
    assert same.names == ["three-0", "three-1"]


def test_points_beyond_the_unit_square_are_scaled_alike_in_both_directions() -> None:
    pixels = np.array([[100.0, 50.0], [300.0, 50.0], [100.0, 150.0]])
    assert in_unit_square(pixels).tolist() == [[0, 0], [1, 0], [0, 0.5]]
    inside = np.array([[0.2, 0.3], [0.4, 1.0]])
    assert in_unit_square(inside) is inside and in_unit_square(np.array([[7.0, 7.0]])).tolist() == [[0, 0]]


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("a.csv", "u,v\n1,2\n", "u, v"),
        ("a.csv", "x,y\n", "no points"),
        ("a.csv", "x,y\n1,one\n", "one"),
        ("a.csv", "x,y\n1,nan\n", "set a.*finite"),
        ("a.csv", "x,y\n1,2\n1,2\n", r"\(1.0, 2.0\) 2 times"),
        ("a.csv", "x,y\n-1e308,0\n1e308,0\n0,1\n", r"set a: points are from -1e\+308 to 1e\+308, too far apart"),
        ("a.json", "[]", "no points"),
        ("a.json", "[[[0, 1], []]]", "not sets of points"),
        ("a.json", "{", "not sets of points"),
        ("a.json", '{"points": [[0, 1]], "pointers": [[1]]}', "points to 1 in set 0.* 0 to 0"),
        ("a.json", '{"points": [[[0, 1]]], "pointers": [[0], [0]]}', "2 sets, and 1"),
        ("a.txt", "", r"\.csv, \.json, \.npz"),
        ("a.npz", "no archive", "not sets of points"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path: Path, name: str, content: str, named: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=rf"{name}.*{named}"):
        read_sets(tmp_path / name)


@pytest.mark.parametrize(
    ("lengths", "named"),
    [([3, 9], "lengths hold 9"), ([-2, 3], "lengths hold -2"), ([0, 3], "lengths hold 0"), ([3], r"of shape \(1,\)"),
     ([1.5, 2.0], "lengths are float64")],
)  # fmt: skip
def test_lengths_of_a_file_that_are_none_are_named(tmp_path: Path, lengths: list[float], named: str) -> None:
    np.savez(tmp_path / "a.npz", points=np.array([THREE, THREE]), lengths=lengths)
    with pytest.raises(UsageError, match=rf"a\.npz.*{named}.*2 whole numbers from 1 to 3"):
        read_sets(tmp_path / "a.npz")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MereoError, match=r"none\.csv"):
        read_sets(tmp_path / "none.csv")
