"""Metrics of partitions: worked numbers, slow references, names that do not matter, masks, refusals."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mereo.errors import UsageError
from papers.common.partition_metrics import adjusted_rand_index, segmentation_accuracy, variation_of_information


def test_worked_numbers() -> None:
    here = torch.tensor([[0, 0, 1, 1, 9, 9], [0, 0, 1, 1, 9, 9], [0, 0, 0, 1, 1, 1]])
    there = torch.tensor([[0, 0, 0, 0, 7, 8], [1, 1, 0, 0, 7, 8], [0, 0, 0, 0, 1, 1]])
    mask = torch.tensor([[True] * 4 + [False] * 2] * 2 + [[True] * 6])
    # Three points of four and one of two stay together: 3 pairs of C(6) agree beyond (7 * 4 / 15) by chance.
    expected = torch.tensor([0, 1, (4 - 42 / 15) / (6.5 - 42 / 15)], dtype=torch.float64)
    torch.testing.assert_close(adjusted_rand_index(here, there, mask), expected)
    information = variation_of_information(here, there, mask)
    torch.testing.assert_close(information[:2], torch.tensor([math.log(2), 0], dtype=torch.float64))
    torch.testing.assert_close(segmentation_accuracy(here, there, mask)[:2].tolist(), [0.5, 1.0])


def slow_accuracy(predicted: list[int], true: list[int]) -> float:
    renamings = itertools.permutations(range(4))
    return max(sum(names[p] == t for p, t in zip(predicted, true, strict=True)) for names in renamings) / len(true)


def slow_information(predicted: list[int], true: list[int]) -> float:
    n, found = len(true), 0.0
    for i, j in set(zip(predicted, true, strict=True)):
        n_ij = sum(p == i and t == j for p, t in zip(predicted, true, strict=True))
        found -= n_ij / n * (math.log(n_ij / predicted.count(i)) + math.log(n_ij / true.count(j)))
    return found


@pytest.mark.parametrize(
    ("metric", "slow"), [(segmentation_accuracy, slow_accuracy), (variation_of_information, slow_information)]
)
def test_equals_the_slow_reference(metric: Callable[..., Tensor], slow: Callable[..., float]) -> None:
    here, there = torch.randint(4, (2, 30, 11), generator=torch.Generator().manual_seed(0))
    mask = torch.rand(30, 11, generator=torch.Generator().manual_seed(0)) < 0.6
    mask[:, 0] = True
    expected = [slow(h[m].tolist(), t[m].tolist()) for h, t, m in zip(here, there, mask, strict=True)]
    torch.testing.assert_close(metric(here, there, mask), torch.tensor(expected, dtype=torch.float64))


def test_slots_count_absent_points_as_right() -> None:
    here, there = torch.tensor([[0, 0, 1, 1, 1]]), torch.tensor([[2, 2, 2, 0, 0]])
    mask = torch.ones(1, 5, dtype=torch.bool)
    assert segmentation_accuracy(here, there, mask).item() == pytest.approx(4 / 5)
    assert segmentation_accuracy(here, there, mask, slots=11).item() == pytest.approx(10 / 11)
    with pytest.raises(UsageError, match="slots is 4"):
        segmentation_accuracy(here, there, mask, slots=4)
