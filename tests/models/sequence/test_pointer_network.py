"""Pointer networks: counts of the paper, padding, worked losses, and searches against plain recomputation."""

import itertools
import math
from typing import Any

import pytest
import torch

import mereo
from mereo.errors import UsageError

PRESETS = {
    "pointer": {},
    "blend": {"attention": "blend", "most": 8},
    "none": {"attention": "none", "most": 8},
    "embed": {"embed": True, "steps_per_point": 2},
}
every_kind = pytest.mark.parametrize("kind", PRESETS)


def made(kind: str = "pointer", **others: Any) -> Any:
    torch.manual_seed(1)
    arguments = {"dim": 7, "spread": 0.8, "context": 5, **PRESETS[kind], **others}
    return mereo.create_model("pointer_network", **arguments).double().eval()


def some(count: int = 3, number: int = 5) -> torch.Tensor:
    return torch.rand(count, number, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(("name", "dim", "one_bias"), [("", 256, 661_760), ("_512", 512, 2_634_240)])
def test_numbers_of_parameters_are_those_of_the_paper(name: str, dim: int, one_bias: int) -> None:
    model = mereo.create_model(f"pointer_network{name}")
    count = sum(p.numel() for p in model.parameters())
    # PyTorch's LSTM has two biases; the start has two numbers, the end has the size of a state.
    assert count == one_bias + 2 * 4 * dim + dim + 2
    assert all(float(p.detach().abs().max()) <= 0.08 + 1e-6 for p in model.parameters())


@every_kind
def test_padding_changes_nothing(kind: str) -> None:
    model, points, lengths = made(kind), some(), torch.tensor([5, 2, 4])
    targets = torch.tensor([[2, 1, 0], [1, 2, 0], [4, 0, -1]])
    other = points.masked_fill((torch.arange(5) >= lengths.unsqueeze(1)).unsqueeze(2), 9.0)
    scores, chosen = model(points, lengths, targets), model.decode(points, lengths)
    assert torch.equal(model(other, lengths, targets), scores)
    torch.testing.assert_close(scores.exp().sum(2), torch.ones(3, 3).double())
    for row, length in enumerate(lengths.tolist()):
        alone = points[row : row + 1, :length]
        torch.testing.assert_close(scores[row, :, : length + 1], model(alone, None, targets[row : row + 1])[0])
        assert (scores[row, :, length + 1 :] < -80).all()
        few = model.decode(alone)[0]
        assert torch.equal(chosen[row, : len(few)], few) and not chosen[row, len(few) :].any()


@every_kind
@pytest.mark.parametrize("constraint", ["none", "no_repeat", "tour"])
def test_a_search_is_the_best_choice_of_the_whole_at_each_step(kind: str, constraint: str) -> None:
    model, points = made(kind), some()
    found = model.decode(points, constraint=constraint)
    for row, choices in enumerate(found):
        prefix: list[int] = []
        for choice in choices.tolist():
            scores = model(points[row : row + 1], None, torch.tensor([[*prefix, 0]]))[0, -1].tolist()
            left = set(range(1, 6)) - set(prefix)
            allowed = {"none": {*range(6)}, "no_repeat": {0, *left}, "tour": left or {0}}[constraint]
            best = max(allowed, key=lambda j: scores[j])
            assert choice == best
            prefix.append(choice)
            if choice == 0:
                break


def test_tours_are_always_valid_and_of_a_wide_beam_the_most_probable() -> None:
    model, points, lengths = made(), some(2, 4), torch.tensor([4, 3])
    for beam in (1, 2, 24):
        found = model.decode(points, lengths, beam=beam, constraint="tour")
        for row, length in zip(found.tolist(), lengths.tolist(), strict=True):
            assert sorted(row[:length]) == [*range(1, length + 1)] and not any(row[length:])
    for row, length in enumerate(lengths.tolist()):
        orders = [[*order, 0] for order in itertools.permutations(range(1, length + 1))]
        each = torch.tensor(orders)
        alone = points[row : row + 1, :length].expand(len(orders), -1, -1)
        # Renormalised over what is left, as a search sees it.
        scores, total = model(alone, None, each), torch.zeros(len(orders)).double()
        for step in range(length):
            taken = torch.zeros(len(orders), length + 1, dtype=torch.bool).scatter(1, each[:, :step], True)
            taken[:, 0] = True
            shares = scores[:, step].masked_fill(taken, -torch.inf).log_softmax(1)
            total += shares.gather(1, each[:, step, None])[:, 0]
        assert found[row, : length + 1].tolist() == orders[int(total.argmax())]


@every_kind
def test_a_batch_of_two_is_two_batches_of_one(kind: str) -> None:
    model, points = made(kind), some(2)
    for beam in (1, 3):
        together = model.decode(points, beam=beam)
        assert torch.equal(together, torch.cat([model.decode(each.unsqueeze(0), beam=beam) for each in points]))
    torch.testing.assert_close(model(points), torch.cat([model(each.unsqueeze(0)) for each in points]))


def test_the_states_are_those_of_an_lstm_of_pytorch() -> None:
    model, points = made(), some()
    lstm = torch.nn.LSTM(2, 7, batch_first=True).double()
    lstm.load_state_dict(dict(zip(lstm.state_dict(), model.encoder.state_dict().values(), strict=True)))
    states, (hidden, cell) = lstm(points)
    for lengths in (None, torch.full((3,), 5)):  # at once, and step by step
        memory = model.forward_features(points, lengths)
        torch.testing.assert_close(memory.states[:, 1:], states)
        torch.testing.assert_close((memory.hidden, memory.cell), (hidden[0], cell[0]))
    with torch.no_grad():
        short = model.forward_features(points, torch.full((3,), 2))
    torch.testing.assert_close(short.hidden, states[:, 1])


def test_worked_losses_without_a_vector_and_without_the_decoder() -> None:
    model, points, targets = made(), some(), torch.tensor([[2, 1, 0]] * 3)
    with torch.no_grad():
        model.head.queries.weight.zero_()
        scores = model(points, None, targets)
        assert torch.equal(scores[:, :1].expand_as(scores), scores)
        model.head.vector.zero_()
        torch.testing.assert_close(model(points, None, targets), torch.full((3, 3, 6), -math.log(6)).double())


def test_the_couplings_are_recorded_and_changing_them_changes_the_choices() -> None:
    model, points = made(), some()
    with mereo.record(model) as trace:
        scores = model(points)
    torch.testing.assert_close(torch.cat([each[:, 0] for each in trace.steps("head.coupling")], 1), scores.exp())
    third = torch.eye(6, dtype=torch.float64)[3]
    with mereo.intervene(model, {"head.coupling": third.expand_as}):
        assert (model.decode(points) == 3).all()


def test_what_it_cannot_read_is_named() -> None:
    model, points = made(), some()
    for wrong in (points[:, :0], points[0], points[..., :1], points.long()):
        with pytest.raises(UsageError, match=r"points are .*2"):
            model(wrong)
    for lengths in ([5, 0, 1], [6, 1, 1]):
        with pytest.raises(UsageError, match=rf"lengths hold {0 if 0 in lengths else 6}"):
            model(points, torch.tensor(lengths))
    with pytest.raises(UsageError, match=r"lengths are \(2,\)"):
        model(points, torch.tensor([1, 2]))
    for wrong in (6, -2):
        with pytest.raises(UsageError, match=f"targets hold {wrong}; they must be from -1 .padding. to 5, the points"):
            made()(some(), None, torch.tensor([[2, wrong, 0]] * 3))
    with pytest.raises(UsageError, match=r"targets are .*\(2, 3\)"):
        model(points, None, torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(UsageError, match="beam is 0"):
        model.decode(points, beam=0)
    with pytest.raises(UsageError, match=r"constraint.*'tours'"):
        model.decode(points, constraint="tours")
    with pytest.raises(UsageError, match=r"points are 9 .*most"):
        made("none")(some(1, 9))
    with pytest.raises(UsageError, match=r"points are 9 .*most"):
        made("blend", context=9)


def test_what_another_network_read_is_refused() -> None:
    small, large = (mereo.create_model("pointer_network", dim=dim).eval() for dim in (6, 8))
    with pytest.raises(UsageError, match="memory has states of 6 numbers; this network's have 8"):
        large.search(small.forward_features(torch.rand(1, 4, 2)))
