"""Made shelves: one target in each, paths by the rule, gaps, and scenes that are refused."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from mereo.data import load_splits
from mereo.data.sets import find_dataset
from mereo.data.shelves import BACK, STAY, STOP, Layout, Shelves, glyphs, make_shelves
from mereo.errors import UsageError
from mereo.tasks.scanpaths import fixations_of, targets_of


def test_paths_follow_the_rule() -> None:
    made = make_shelves(Layout(3, 4), 400, 0)
    assert made.pointers is not None and len(glyphs().flatten(1).unique(dim=0)) == 36
    paths, target = fixations_of(made.pointers), targets_of(made.places)
    kinds = made.kinds
    assert ((kinds[:, :-1] == kinds[:, -1:]).sum(1) == 1).all() and (paths[:, 0] == 6).all()
    assert kinds.gather(1, target.unsqueeze(1)).equal(kinds[:, -1:])
    steps = {"stay": 0, "back": 0, "stop": 0, "left": 0, "all": 0, "may look back": 0}
    for row, goal in zip(paths.tolist(), target.tolist(), strict=True):
        path = [each for each in row if each >= 0]
        steps["stop"] += path[-1] == goal
        steps["left"] += sum(each == goal for each in path[:-1])
        for step, (one, other) in enumerate(pairwise(path)):
            steps["all"] += 1
            steps["stay"] += one == other
            if len({*path[: step + 1]}) in range(2, 12):
                steps["may look back"] += 1
                steps["back"] += other in path[:step] and other != one
    assert steps["stay"] / steps["all"] == pytest.approx(STAY, abs=0.03)
    assert steps["back"] / steps["may look back"] == pytest.approx(BACK, abs=0.03)
    assert steps["stop"] / (steps["stop"] + steps["left"]) == pytest.approx(STOP, abs=0.05)


def test_scenes_with_empty_places_and_other_seeds() -> None:
    made = load_splits("shelves:rows=2,columns=3,empty=3,train=40,seed=1", length=1).train
    assert isinstance(made, Shelves) and made.pointers is not None
    there = made.places[:, :-1, 0] >= 0
    assert {*there.sum(1).tolist()} == {3, 4, 5, 6} and there[:, 4].all()
    batch = made.batch(torch.tensor([0, 3]))
    assert batch.regions is not None and batch.pointers is not None
    assert batch.regions.shape == (2, 7, 3 * 16 * 16 + 2) and (batch.regions[..., -2][:, :-1] >= 0).equal(there[[0, 3]])
    assert made.subset(torch.tensor([1])).describe() != made.subset(torch.tensor([2])).describe()


def test_scenes_that_are_refused() -> None:
    looks = glyphs()[:4]
    places = torch.tensor([[[0, 0], [0, 1], [0, 1]]])
    kinds, pointers = torch.tensor([[0, 1, 1]]), torch.tensor([[1, 2, 0]])
    Shelves(looks, kinds, places, pointers)

    def changed(place: tuple[int, ...], value: Any) -> torch.Tensor:
        other = places.clone()
        other[place] = torch.tensor(value)
        return other

    wrong: list[tuple[Any, tuple[str, ...]]] = [
        (lambda: Shelves(looks, kinds[:, :1], places[:, :1]), ("regions", "(1, 1, 3)")),
        (lambda: Shelves(looks, kinds, changed((0, slice(2)), -1)), ("regions", "scene 0", "no object")),
        (lambda: Shelves(looks, kinds, changed((0, 0), [0, 1])), ("scene 0", "two objects in one place")),
        (lambda: Shelves(looks, torch.ones(1, 3).long(), places), ("scene 0", "target more than once")),
        (lambda: Shelves(looks, kinds, changed((0, 2), [3, 3])), ("scene 0", "place of the target")),
        (lambda: Shelves(looks, kinds, places, torch.tensor([[1, 3, 0]])), ("pointers", "scene 0", "hold 3", "1 to 2")),
        (lambda: find_dataset("shelves:rows=1,columns=2,empty=1"), ("rows is 1", "empty 1")),
    ]
    for call, words in wrong:
        with pytest.raises(UsageError) as error:
            call()
        assert all(word in str(error.value) for word in words), error.value
