"""Learners: importance of outputs, groups of images that keep their numbers, and batches of one group."""

import itertools

import pytest
import torch

from mereo.errors import UsageError
from mereo.tasks.learners import batches, costs, group, importance, kept_outputs, match


def test_the_worked_scores() -> None:
    sums = torch.tensor([0.5, 0.5, 0.5, 0.5]) * torch.tensor([1.0, -0.2, 0.6, 0.1])
    torch.testing.assert_close(importance(sums), torch.tensor([1, 0.1111, 0.5556, 0]), atol=1e-4, rtol=0)
    assert kept_outputs(sums).tolist() == [True, False, True, False]
    assert importance(torch.ones(3)).tolist() == importance(torch.zeros(3)).tolist() == [0, 0, 0]
    with pytest.raises(UsageError, match="threshold"):
        kept_outputs(sums, 2.0)


def test_groups_under_other_numbers_get_their_old_ones() -> None:
    torch.manual_seed(0)
    old = torch.randint(-1, 4, (40,))
    names = torch.tensor([2, 0, 3, 1, -1])
    assert torch.equal(match(names[old], old, 4), old)
    assert costs(old, old, 4).diagonal().tolist() == [0] * 4
    new = torch.randint(4, (40,))
    table = costs(new, old, 4)
    for i, j in itertools.product(range(4), repeat=2):
        assert table[i, j] == len(
            {*(new == i).nonzero().flatten().tolist()} ^ {*(old == j).nonzero().flatten().tolist()}
        )
    found = costs(match(new, old, 4), old, 4).diagonal().sum()
    assert found == min(sum(table[i, j] for i, j in enumerate(order)) for order in itertools.permutations(range(4)))


def test_the_only_image_of_a_class_in_a_group_is_left_out() -> None:
    points = torch.tensor([[1.0, 0], [1, 0.1], [1, 0.2], [0, 1], [0.1, 1], [0.2, 1]])
    labels = torch.tensor([0, 0, 1, 2, 2, 2])
    found = group(points, 2, labels)
    assert found[2] == -1 and found[0] == found[1] != found[3] and len(found[3:].unique()) == 1
    assert torch.equal(group(points, 2, labels, 1 - found.clamp(min=0)).clamp(min=0)[3:], 1 - found[3:])
    with pytest.raises(UsageError, match="count is 7"):
        group(points, 7, labels)


def test_each_step_shows_one_group_with_equally_many_images_of_some_classes() -> None:
    groups, labels = torch.arange(48) % 2, torch.arange(48) // 4 % 6
    groups[:3] = -1
    order = batches(
        groups, labels, first=3, steps=4, batch_size=8, each=2, generator=torch.Generator().manual_seed(0)
    ).view(4, 8)
    for step, images in enumerate(order, 3):
        assert (groups[images] == step % 2).all()
        assert labels[images].unique(return_counts=True)[1].tolist() == [2] * 4
    alone = batches(
        torch.zeros(3, dtype=torch.int64), torch.tensor([0, 0, 1]), first=0, steps=1, batch_size=8, each=2,
        generator=torch.Generator(),
    )  # fmt: skip
    assert (alone == 2).sum() == 4 and len(alone) == 8
