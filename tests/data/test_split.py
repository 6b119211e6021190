"""Stratified choices, and the numbers behind them."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mereo.data.counter import uniform
from mereo.data.split import hold_out, hold_out_classes, stratified


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(1, 60), st.integers(0, 9))
@settings(max_examples=50, deadline=None)
def test_choices_are_stratified(labels: list[int], count: int, seed: int) -> None:
    tensor = torch.tensor(labels)
    rest, chosen = stratified(tensor, count, seed)
    assert sorted(rest.tolist() + chosen.tolist()) == list(range(len(labels)))
    assert len(chosen) == min(count, len(labels))
    share = len(chosen) / len(labels)
    for label in set(labels):
        assert abs(int((tensor[chosen] == label).sum()) - share * labels.count(label)) < 1


def test_hold_out_leaves_one_of_each_class() -> None:
    labels = torch.tensor([0] * 10 + [1, 2, 2])
    kept, held = hold_out(labels, 0.9, seed=0)
    assert labels[kept].bincount().tolist() == [1, 1, 1]
    assert len(held) == 10
    assert len(hold_out(torch.tensor([0, 1, 2]), 0.5, seed=0)[1]) == 0


def test_whole_classes_are_held_out() -> None:
    labels = torch.arange(60) % 12
    kept, held = hold_out_classes(labels, 0.25, seed=0)
    assert len(labels[held].unique()) == 3 and len(held) == 15 and not torch.isin(labels[kept], labels[held]).any()
    assert torch.equal(torch.cat((kept, held)).sort().values, torch.arange(60))
    assert len(hold_out_classes(labels, 0.01, seed=1)[1]) == 10
    assert all(map(torch.equal, hold_out_classes(labels % 3, 0.5, seed=0), hold_out(labels % 3, 0.5, seed=0)))


def test_seeds_choose_differently_and_repeat() -> None:
    labels = torch.arange(100) % 2
    assert torch.equal(stratified(labels, 10, 3)[1], stratified(labels, 10, 3)[1])
    assert not torch.equal(stratified(labels, 10, 3)[1], stratified(labels, 10, 4)[1])


def test_numbers_of_an_index_are_always_the_same() -> None:
    numbers = uniform(7, torch.arange(1000), 3)
    assert numbers.shape == (1000, 3)
    assert torch.equal(uniform(7, torch.tensor([999, 5]), 3), numbers[[999, 5]])
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert (numbers.mean(dim=0) - 0.5).abs().max() < 0.05
    assert len(numbers.flatten().unique()) == 3000
    assert abs(float(torch.corrcoef(numbers.T)[0, 1])) < 0.1


def test_numbers_follow_splitmix64() -> None:
    def mix(word: int) -> int:
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
        return word ^ (word >> 31)

    golden = 0x9E3779B97F4A7C15
    start = mix(4 * golden % 2**64)
    expected = [(mix((start + (5 * 2 + k + 1) * golden) % 2**64) >> 11) / 2**53 for k in range(2)]
    assert uniform(3, torch.tensor([5]), 2)[0].tolist() == expected
