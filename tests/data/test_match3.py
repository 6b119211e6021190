"""Match3: answers against all triples, their places, options and seeds, and refused sizes."""

import pytest
import torch

from mereo.data import load_splits
from mereo.data.match3 import draw_triples, make_triples, read_triples
from mereo.data.registry import find_dataset
from mereo.errors import UsageError


@pytest.mark.parametrize(("modulus", "group"), [(13, 3), (5, 1), (10, 4)])
def test_answers_are_those_of_all_triples(modulus: int, group: int) -> None:
    tokens, found = draw_triples(60, modulus, group, torch.Generator().manual_seed(0))
    assert tokens.shape == (60, 3 * group) and 0 <= int(tokens.min()) <= int(tokens.max()) < modulus
    for row, answers in zip(tokens.tolist(), found.tolist(), strict=True):
        first, second, third = row[:group], row[group : 2 * group], row[2 * group :]
        assert answers == [any((a + b + c) % modulus == 0 for b in second for c in third) for a in first]


def test_both_answers_are_frequent() -> None:
    found = draw_triples(2000, 13, 3, torch.Generator().manual_seed(0))[1]
    # Nine pairs, each of which fits with probability 1 / 13.
    assert found.double().mean().item() == pytest.approx(1 - (12 / 13) ** 9, abs=0.02)


def test_the_asked_group_is_the_last_and_has_the_labels() -> None:
    made = make_triples(40, 13, 3, seed=2)
    tokens, found = draw_triples(40, 13, 3, torch.Generator().manual_seed(2))
    assert torch.equal(made.tokens, torch.cat((tokens[:, 3:], tokens[:, :3]), 1))
    assert torch.equal(made.labels[:, 6:], found.long()) and (made.labels[:, :6] == -1).all()


def test_splits_are_seeded_and_differ() -> None:
    one, other = (load_splits("match3:modulus=7,group=2,train=50", length=1) for _ in range(2))
    assert one.train.describe() == other.train.describe() != one.test.describe()
    assert one.train.batch(torch.arange(50)).tokens.shape == (50, 6)
    info = find_dataset("match3:modulus=7,group=2")
    assert info is not None and info.num_classes == 7 and info.network_arguments == {"context": 6}


@pytest.mark.parametrize("options", ["modulus=1", "group=0", "group=65", "modulus=5000", "train=0"])
def test_impossible_sizes_are_refused(options: str) -> None:
    with pytest.raises(UsageError, match=options.partition("=")[0]):
        find_dataset(f"match3:{options}")


def test_sequences_of_a_user_are_read_with_their_labels() -> None:
    made = make_triples(5, 13, 3, 0)
    for tokens, labels in zip(made.tokens.tolist(), made.labels.tolist(), strict=True):
        read = read_triples(" ".join(map(str, tokens)), 13)
        assert [each.tolist() for each in read] == [[tokens], [labels]]
    for text, words in (("1 2 3 4", "has 4 numbers; give three equal groups"), ("1 2 x", "whole numbers from 0 to 12")):
        with pytest.raises(UsageError, match=words):
            read_triples(text, 13)
