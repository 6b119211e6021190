"""Multi-query associative recall: gaps, keys, values and answers against the rules of the page, and refused sizes."""

import pytest
import torch

from mereo.data import load_splits
from mereo.data.recall import answers, gap_shares, make_sequences, read_query
from mereo.data.registry import find_dataset
from mereo.data.sets.mqar import PAIRS
from mereo.errors import UsageError


def test_gaps_of_the_first_length() -> None:
    shares = gap_shares(64, 4)
    assert shares.shape == (28,)
    torch.testing.assert_close(shares[:3], torch.tensor([0.25106, 0.12640, 0.08461]).double(), rtol=0, atol=5e-6)


@pytest.mark.parametrize("length", PAIRS)
def test_every_length_has_one_query_for_each_key_and_its_value_as_label(length: int) -> None:
    pairs, vocab, count = PAIRS[length], 200, 40
    made = make_sequences(length, pairs, vocab, 3, count)
    assert made.tokens.shape == made.labels.shape == (count, length)
    for tokens, labels in zip(made.tokens.tolist(), made.labels.tolist(), strict=True):
        keys, values = tokens[: 2 * pairs : 2], tokens[1 : 2 * pairs : 2]
        assert len(set(keys)) == len(set(values)) == pairs
        assert all(1 <= key < vocab // 2 for key in keys) and all(vocab // 2 <= value < vocab for value in values)
        known, places = dict(zip(keys, values, strict=True)), [i for i, label in enumerate(labels) if label != -1]
        assert len(places) == pairs and sorted(tokens[i] for i in places) == sorted(keys)
        for place in places:
            assert place >= 2 * pairs and place % 2 == 0 and labels[place] == known[tokens[place]]
        assert all(token == 0 for i, token in enumerate(tokens[2 * pairs :], 2 * pairs) if i not in places)


def test_short_gaps_are_as_frequent_as_they_should_be() -> None:
    made = make_sequences(64, 1, 16, 0, 4000)
    found = (made.labels >= 0).double().mean(0)[2::2]
    torch.testing.assert_close(found[:3], gap_shares(64, 1)[:3], rtol=0, atol=0.025)


def test_splits_are_seeded_and_differ() -> None:
    one, other = (load_splits("mqar:length=32,pairs=2,train=50", length=1) for _ in range(2))
    assert one.train.describe() == other.train.describe() != one.test.describe()
    assert len(one.train) == 50 and len(load_splits("mqar", length=1, limit=7).train) == 7
    part = one.train.subset(torch.tensor([3, 1])).batch(torch.arange(2))
    whole = one.train.batch(torch.tensor([3, 1]))
    assert torch.equal(part.labels, whole.labels) and part.tokens is not None and torch.equal(part.tokens, whole.tokens)


def test_the_vocabulary_is_the_number_of_outputs() -> None:
    info = find_dataset("mqar:vocab=8192,length=512")
    assert info is not None and info.num_classes == 8192 and info.network_arguments == {"context": 512}


@pytest.mark.parametrize(
    ("tokens", "error"),
    [
        ([1, 9, 1, 8, 0, 0], "key 1 twice among the pairs"),
        ([1, 9, 2, 8, 1, 1], "key 1 twice among the queries"),
        ([1, 9, 2, 8, 3, 0], "key 3, which no pair has"),
        ([1, 9, 0, 8, 1, 0], "has the key 0, which fills"),
        ([], r"tokens are \(1, 0\) and pairs 2"),
        ([1, 9, 2], r"tokens are \(1, 3\) and pairs 2"),
    ],
)
def test_sequences_without_one_answer_are_refused(tokens: list[int], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        answers(torch.tensor([tokens], dtype=torch.int64), 2)
    assert answers(torch.tensor([[1, 9, 2, 8, 2, 0, 1, 0]]), 2).tolist() == [[-1, -1, -1, -1, 8, -1, 9, -1]]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("1 9, 1 8, 1", "key 1 twice among the pairs"), ("1 9 2 8 1 1", "key 1 twice among the queries"),
        ("1 9 2 8 3", "key 3, which no pair has"), ("1 9 2 8 1 9 1", "key 1 twice among the pairs"),
        ("1 9 2 8 9", "key 9, which no pair has"), ("1 9 2 8 0", "asks for no key"), ("1 9", "asks for no key"),
        ("0 9 1 8 1", "does not begin with a pair"), ("1", "does not begin with a pair"),
        ("", "give whole numbers from 0 to 15"), ("one", "give whole numbers"), ("1 16 1", "from 0 to 15"),
    ],
)  # fmt: skip
def test_written_sequences_without_one_answer_are_refused(text: str, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        read_query(text, 16)
    tokens, labels = read_query("1 9, 2 8, 2 0 1", 16)
    assert tokens.tolist() == [[1, 9, 2, 8, 2, 0, 1]] and labels.tolist() == [[-1, -1, -1, -1, 8, -1, 9]]


@pytest.mark.parametrize("options", ["length=16,pairs=5", "length=2", "pairs=8,vocab=16", "train=0", "length=-64"])
def test_impossible_sizes_are_refused(options: str) -> None:
    with pytest.raises(UsageError, match=r"pairs is|vocab is|train is"):
        find_dataset(f"mqar:{options}")
