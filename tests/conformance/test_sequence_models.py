"""Every family of sequence models: tokens in, scores of the next token out, whole or step by step.

What they promise as all networks do is tested in test_models.py.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from mereo.core import added_losses
from mereo.errors import UsageError
from mereo.models import SequenceModel
from networks import Case, cases, parametrized, tiny

TINY, VARIANTS = cases("tokens")
every_case = parametrized(TINY + VARIANTS)
LENGTH = 13


def some_tokens(model: SequenceModel, count: int = 3, length: int = LENGTH) -> Tensor:
    return torch.randint(model.vocab_size, (count, length))


def assert_close(found: Tensor, expected: Tensor, share: float = 1e-5) -> None:
    assert found.shape == expected.shape
    assert (found.double() - expected.double()).abs().max() <= share * expected.double().abs().max()


@every_case
def test_scores_of_any_number_of_tokens(case: Case) -> None:
    model = tiny(case)
    tokens = some_tokens(model)
    scores = model(tokens)
    assert added_losses(model) == {}, "nothing is added in evaluation"
    assert scores.shape == (3, LENGTH, model.vocab_size), "any number of tokens"
    assert model.get_classifier().weight.shape == (model.vocab_size, model.num_features)


@every_case
def test_later_tokens_and_other_sequences_change_nothing(case: Case) -> None:
    model = tiny(case)
    tokens = some_tokens(model)
    scores = model(tokens)
    assert_close(model(tokens[1:2]), scores[1:2])
    if not model.causal:
        return
    for t in range(1, LENGTH):
        changed = tokens.clone()
        changed[:, t:] = some_tokens(model, 3, LENGTH - t)
        assert_close(model(changed)[:, :t], scores[:, :t])
        assert_close(model(tokens[:, :t]), scores[:, :t])
    before = tokens.clone()
    before[:, 0] = (before[:, 0] + 1) % model.vocab_size
    assert (model(before)[:, -1] - scores[:, -1]).abs().max() > 0, "earlier tokens are seen"


@every_case
def test_padding_changes_nothing(case: Case) -> None:
    model = tiny(case)
    tokens, lengths = some_tokens(model), torch.tensor([LENGTH, 1, LENGTH - 4])
    scores = model(tokens, lengths)
    for i, length in enumerate(lengths.tolist()):
        assert_close(scores[i, :length], model(tokens[i : i + 1, :length])[0])
    with pytest.raises(UsageError, match=r"lengths are .*\(3,\)"):
        model(tokens, lengths[:2])


@every_case
def test_parts_and_steps_are_the_whole(case: Case) -> None:
    model = tiny(case)
    tokens = some_tokens(model, 2)
    with torch.no_grad():
        whole, parts, state = model(tokens), [], None
        for here in (slice(0, 5), slice(5, 6), slice(6, LENGTH)):
            scores, state = model.extend(tokens[:, here], state)
            parts.append(scores)
        assert state.position == LENGTH
        assert_close(torch.cat(parts, 1), whole)
        rows, state = [], None
        for t in range(LENGTH):
            row, state = model.step(tokens[:, t], state)
            rows.append(row)
        assert_close(torch.stack(rows, 1), whole)


@every_case
def test_it_continues_sequences(case: Case) -> None:
    model = tiny(case)
    tokens = some_tokens(model, 2, 3)
    greedy = model.generate(tokens, 4, temperature=0)
    for t in range(4):
        read = torch.cat((tokens, greedy[:, :t]), 1)
        assert torch.equal(model(read)[:, -1].argmax(-1), greedy[:, t])
    drawn = [model.generate(tokens, 4, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1]) and drawn[0].shape == (2, 4) and int(drawn[0].max()) < model.vocab_size
    assert torch.equal(model.generate(tokens, 4, top=1), greedy)
    assert torch.equal(model.generate(tokens, 2, temperature=1e-30), greedy[:, :2])
    assert model.generate(tokens, 0).shape == (2, 0) and not model.training
    wrong: list[dict[str, Any]] = [
        *({"count": value} for value in (-1, "3", 1.5, True, float("nan"), None)),
        *({"count": 1, "temperature": value} for value in (-1.0, "1", float("nan"))),
        *({"count": 1, "top": value} for value in (0, 2.5, "3", 10**9)),
    ]
    for arguments in wrong:
        with pytest.raises(UsageError, match=rf"{list(arguments)[-1]} is"):
            model.generate(tokens, **arguments)
    with pytest.raises(UsageError, match="at least 1"):
        model.generate(tokens[:, :0], 2)


@every_case
def test_tokens_that_it_does_not_take(case: Case) -> None:
    model = tiny(case)
    tokens = some_tokens(model)
    for wrong, message in (
        (tokens[0], r"\(batch, tokens\)"),
        (tokens.float(), "whole numbers"),
        (tokens.clone().fill_(model.vocab_size), f"tokens hold {model.vocab_size}; .* 0 to {model.vocab_size - 1}"),
        (tokens.clone().fill_(-1), "tokens hold -1"),
    ):
        with pytest.raises(UsageError, match=message):
            model(wrong)
    assert model(tokens[:0]).shape == (0, LENGTH, model.vocab_size)


@every_case
def test_a_state_of_other_samples_is_refused(case: Case) -> None:
    model = tiny(case)
    tokens = some_tokens(model)
    with torch.no_grad():
        _, state = model.step(tokens[:, 0])
        with pytest.raises(UsageError, match=f"1 samples, and the state of {len(tokens)}"):
            model.step(tokens[:1, 1], state)


@every_case
def test_states_of_other_networks_are_refused(case: Case) -> None:
    model = tiny(case)
    state = model.extend(some_tokens(model))[1]
    model.extend(some_tokens(model), state)
    for other in TINY:
        network = tiny(other)
        if other[0] != case[0] and (network.streams or model.streams):  # else both read the tokens again
            with pytest.raises(UsageError, match="state"):
                network.extend(torch.zeros(3, 2, dtype=torch.int64), state)
