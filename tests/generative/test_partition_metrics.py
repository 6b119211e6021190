"""Metrics of partitions: worked numbers, slow references, symmetry, names that do not matter, masks, refusals."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mereo.errors import UsageError
from mereo.generative.partition_metrics import adjusted_rand_index, segmentation_accuracy, variation_of_information

FEW = settings(max_examples=60, deadline=None, database=None, derandomize=True)
METRICS = [segmentation_accuracy, adjusted_rand_index, variation_of_information]
every_metric = pytest.mark.parametrize("metric", METRICS)
labels = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=11)


def columns(rows: list[tuple[int, ...]]) -> list[Tensor]:
    return [torch.tensor(column) for column in zip(*rows, strict=True)]


def test_worked_numbers() -> None:
    halves, whole, swapped = torch.tensor([[0, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 0]])
    assert variation_of_information(halves, whole).item() == pytest.approx(math.log(2))
    assert variation_of_information(halves, swapped) == 0 and adjusted_rand_index(halves, swapped) == 1
    assert segmentation_accuracy(halves, swapped) == 1 and segmentation_accuracy(halves, whole) == 0.5
    # Three points of four and one of two stay together: 3 pairs of C(6) agree beyond (7 * 4 / 15) by chance.
    here, there = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1]])
    assert adjusted_rand_index(here, there).item() == pytest.approx((4 - 42 / 15) / (6.5 - 42 / 15))


def slow_accuracy(predicted: list[int], true: list[int]) -> float:
    names = range(4)
    renamings = [dict(zip(names, p, strict=True)) for p in itertools.permutations(names)]
    return max(sum(r[p] == t for p, t in zip(predicted, true, strict=True)) for r in renamings) / len(true)


def slow_rand_index(predicted: list[int], true: list[int]) -> float:
    """By looking at every pair of points."""
    both = here = there = total = 0
    for i, j in itertools.combinations(range(len(true)), 2):
        a, b = predicted[i] == predicted[j], true[i] == true[j]
        both, here, there, total = both + (a and b), here + a, there + b, total + 1
    chance = here * there / total if total else 0
    most = (here + there) / 2
    return 1.0 if most == chance else (both - chance) / (most - chance)


def slow_information(predicted: list[int], true: list[int]) -> float:
    n, found = len(true), 0.0
    for i, j in set(zip(predicted, true, strict=True)):
        n_ij = sum(p == i and t == j for p, t in zip(predicted, true, strict=True))
        found -= n_ij / n * (math.log(n_ij / predicted.count(i)) + math.log(n_ij / true.count(j)))
    return found


@pytest.mark.parametrize(
    ("metric", "slow"), [*zip(METRICS, [slow_accuracy, slow_rand_index, slow_information], strict=True)]
)
@FEW
@given(rows=labels)
def test_equals_the_slow_reference(
    metric: Callable[..., Tensor], slow: Callable[..., float], rows: list[tuple[int, ...]]
) -> None:
    here, there, _ = columns(rows)
    assert metric(here, there).item() == pytest.approx(slow(here.tolist(), there.tolist()), abs=1e-12)


@every_metric
@FEW
@given(rows=labels, order=st.permutations(range(4)))
def test_symmetric_and_blind_to_names(
    metric: Callable[..., Tensor], rows: list[tuple[int, ...]], order: list[int]
) -> None:
    here, there, _ = columns(rows)
    value = metric(here, there)
    torch.testing.assert_close(metric(there, here), value)
    torch.testing.assert_close(metric(torch.tensor(order)[here], there), value)
    torch.testing.assert_close(metric(here.flip(0), there.flip(0)), value)
    best = 0 if metric is variation_of_information else 1
    assert metric(here, torch.tensor(order)[here]).item() == best


@FEW
@given(rows=labels)
def test_variation_of_information_is_a_metric(rows: list[tuple[int, ...]]) -> None:
    here, there, third = columns(rows)
    direct = variation_of_information(here, there)
    assert direct <= variation_of_information(here, third) + variation_of_information(third, there) + 1e-12
    assert 0 <= direct <= math.log(len(rows)) + 1e-12


@every_metric
def test_masked_points_and_batches(metric: Callable[..., Tensor]) -> None:
    here, there = torch.randint(4, (2, 5, 3, 11))
    mask = torch.rand(5, 3, 11) < 0.6
    mask[..., 0] = True
    together = metric(here, there, mask)
    assert together.shape == (5, 3) and together.dtype == torch.float64
    for image in itertools.product(range(5), range(3)):
        alone = metric(here[image][mask[image]], there[image][mask[image]])
        torch.testing.assert_close(together[image], alone)
    nonsense = here.masked_fill(~mask, -7)
    torch.testing.assert_close(metric(nonsense, there, mask), together)


def test_slots_count_absent_points_as_right() -> None:
    here, there = torch.tensor([[0, 0, 1, 1, 1]]), torch.tensor([[2, 2, 2, 0, 0]])
    mask = torch.ones(1, 5, dtype=torch.bool)
    assert segmentation_accuracy(here, there, mask).item() == pytest.approx(4 / 5)
    assert segmentation_accuracy(here, there, mask, slots=11).item() == pytest.approx(10 / 11)
    with pytest.raises(UsageError, match="slots is 4"):
        segmentation_accuracy(here, there, mask, slots=4)


@every_metric
def test_wrong_arguments(metric: Callable[..., Tensor]) -> None:
    some = torch.zeros(2, 3, dtype=torch.long)
    with pytest.raises(UsageError, match=r"predicted is \(2, 3\) and true \(2, 2\)"):
        metric(some, some[:, :2])
    with pytest.raises(UsageError, match="mask leaves an image without points"):
        metric(some, some, torch.tensor([[True] * 3, [False] * 3]))
    with pytest.raises(UsageError, match=r"mask is \(3,\)"):
        metric(some, some, torch.ones(3, dtype=torch.bool))
    with pytest.raises(UsageError, match=r"predicted is torch\.float32"):
        metric(some.float(), some)
    with pytest.raises(UsageError, match=r"true is torch\.int64 with a least entry -1"):
        metric(some, some - 1)


def test_too_many_labels() -> None:
    with pytest.raises(UsageError, match="labels go up to 12"):
        segmentation_accuracy(torch.arange(13), torch.arange(13))
