"""The Tensor Brain against loops over its schedule; its memories; what an index adds to the predicate."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import mereo
from mereo.data.regions import World, concept_names
from mereo.errors import UsageError
from mereo.models.sequence import TensorBrain

SMALL: dict[str, Any] = {"features": 5, "entities": 4, "predicates": 3, "dim": 6, "memory": 3}
FORMS: dict[str, dict[str, Any]] = {
    "two regions": {},
    "classes and attributes": {"classes": 2, "attributes": 3, "bias": True},
    "predicate second": {"order": "spo", "relation": True, "hidden": 4, "attributes": 2},
    "without feedback": {"feedback": False},
}


def made(seed: int = 0, **arguments: Any) -> TensorBrain:
    torch.manual_seed(seed)
    model = TensorBrain(**{**SMALL, **arguments}).double()
    if model.index.bias is not None:
        torch.nn.init.normal_(model.index.bias)
    return model.eval()


def scenes(model: TensorBrain, count: int = 4) -> Tensor:
    return torch.randn(count, *model.input_shape, dtype=torch.float64)


def by_loops(model: TensorBrain, views: Tensor | None, target: list[int] | None) -> tuple[list[int], list[list[float]]]:
    """The concepts and log probabilities of one scene, in plain numbers: views (regions, dim)."""
    columns = model.index.columns.tolist()
    bias = [0.0] * len(columns) if model.index.bias is None else model.index.bias.tolist()
    weight, start = model.recall_state.weight.tolist(), model.recall_state.bias.tolist()
    matrix, constant = model.update.weight.tolist(), model.update.bias.tolist()
    names = model.measured
    hidden = [0.0] * len(matrix)
    chosen, logs = [-1] * len(names), [[-math.inf] * len(columns) for _ in names]
    for part in model.order:
        word, region = {"s": ("subject", 0), "p": ("predicate", 2), "o": ("object", 1)}[part]
        state = [c + sum(w * h for w, h in zip(row, hidden, strict=True)) for row, c in zip(weight, start, strict=True)]
        if views is not None and region < len(views):
            state = [q + v for q, v in zip(state, views[region].tolist(), strict=True)]
        for place, name in enumerate(names):
            if name != word and not name.startswith(f"{word} "):
                continue
            first, last = model.spans[place]
            gamma = [1 / (1 + math.exp(-q)) for q in state]
            scores = [sum(a * g for a, g in zip(columns[k], gamma, strict=True)) + bias[k] for k in range(first, last)]
            total = math.log(sum(map(math.exp, scores)))
            for k in range(first, last):
                logs[place][k] = scores[k - first] - total
            best = max(range(first, last), key=lambda k: scores[k - first])
            chosen[place] = best if target is None else target[place]
            if model.feedback:
                state = [q + a for q, a in zip(state, columns[chosen[place]], strict=True)]
        joined = state + hidden
        hidden = [
            math.tanh(c + sum(w * x for w, x in zip(row, joined, strict=True)))
            for row, c in zip(matrix, constant, strict=True)
        ]
    return chosen, logs


@pytest.mark.parametrize("form", FORMS)
def test_the_schedule_by_loops(form: str) -> None:
    model = made(**FORMS[form])
    regions = scenes(model)
    target = torch.stack([torch.randint(first, last, (4,)) for first, last in model.spans], 1)
    with torch.no_grad():
        views = model.forward_features(regions)
        cases = [
            (model.decode(regions), views, None),
            (model.decode(regions, "teacher", target), views, target),
            (model.chain(None, "teacher", target), None, target),
        ]
    for found, seen, known in cases:
        for row in range(4):
            chosen, logs = by_loops(
                model, None if seen is None else seen[row], None if known is None else known[row].tolist()
            )
            assert found.chosen[row].tolist() == chosen
            places = torch.arange(model.num_classes)
            inside = torch.stack([(places >= first) & (places < last) for first, last in model.spans])
            torch.testing.assert_close(found.log_shares[row][inside], torch.tensor(logs).double()[inside])
            assert (found.log_shares[row][~inside] < -700).all(), "concepts of other groups do not compete"


def test_parameters_are_those_of_the_page() -> None:
    model = mereo.create_model("tensor_brain")
    counts = {name: sum(p.numel() for p in part.parameters()) for name, part in model.named_children()}
    assert counts == {"sense": 800, "recall_state": 1056, "update": 2080, "index": 544}
    assert sum(counts.values()) == 4480


def test_the_network_reads_its_own_decisions() -> None:
    model = made()
    regions = scenes(model)
    own = model.decode(regions)
    torch.testing.assert_close(model(regions), model.decode(regions, "teacher", own.chosen).log_shares)
    part = model.decode(regions, target=torch.tensor([[2, -1, -1]] * 4))
    assert (part.chosen[:, 0] == 2).all() and torch.equal(part.log_shares[:, 0], own.log_shares[:, 0])
    expected = model.decode(regions, "expected")
    assert torch.equal(expected.log_shares[:, 0], own.log_shares[:, 0])
    assert not torch.allclose(expected.log_shares[:, 2], own.log_shares[:, 2])


def test_the_canvas_is_made_anew_for_every_region() -> None:
    """Nothing but the working memory is carried on: without it, the object does not depend on the subject."""
    model = made()
    regions = scenes(model)
    other = torch.cat((torch.randn_like(regions[:, :1]), regions[:, 1:]), 1)
    assert not torch.allclose(model.decode(regions).log_shares[:, 2], model.decode(other).log_shares[:, 2])
    torch.nn.init.zeros_(model.recall_state.weight)
    assert torch.equal(model.decode(regions).log_shares[:, 2], model.decode(other).log_shares[:, 2])
    predicate = model.decode(regions).log_shares[:, 1]
    torch.testing.assert_close(predicate, predicate[:1].expand_as(predicate))


# --- memories -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_a_scene_that_was_seen_once_is_recalled_exactly(form: str) -> None:
    model = made(moments=8, **FORMS[form])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first, second = scenes(model, 3), scenes(model, 5)
    assert model.remember(first).tolist() == [0, 1, 2]
    kept = model.moments[:3].clone()
    times = model.remember(second)
    assert times.tolist() == [3, 4, 5, 6, 7]
    for found, seen in zip(model.recall(times), model.decode(second), strict=True):
        assert torch.equal(found, seen)
    assert torch.equal(model.moments[:3], kept), "other moments keep their columns"
    for name, tensor in model.state_dict().items():
        assert name in ("moments", "stored") or torch.equal(tensor, before[name])
    with pytest.raises(UsageError, match="moments is 8, 8 are stored and 1 come"):
        model.remember(first[:1])
    with pytest.raises(UsageError, match="times are from 0 to 8; 8 moments are stored"):
        model.recall(torch.tensor([0, 8]))
    with pytest.raises(UsageError, match=r"times are torch\.float32"):
        model.recall(torch.zeros(1))


def test_semantic_memory_knows_no_senses() -> None:
    model = made()
    every = torch.tensor(list(itertools.product(range(4), range(4, 7), range(4))))
    joint = model.log_prior(every)
    torch.testing.assert_close(joint.exp().sum(), torch.ones((), dtype=torch.float64))
    model.decode(scenes(model))
    joint.sum().backward()
    assert all(p.grad is None for p in model.sense.parameters())
    for parameter in model.sense.parameters():
        torch.nn.init.normal_(parameter)
    assert torch.equal(model.log_prior(every), joint)


def chi_square(counts: Tensor, shares: Tensor) -> float:
    expected = counts.sum() * shares
    return ((counts - expected).square() / expected).sum().item()


def test_imagined_sentences_follow_the_trained_joint() -> None:
    model = made(dim=16, memory=12)
    every = torch.tensor(list(itertools.product(range(4), range(4, 7), range(4))))
    table = torch.randn(len(every)).mul(1.2).softmax(0).double()
    optimiser = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(150):
        optimiser.zero_grad()
        (-(table * model.log_prior(every)).sum()).backward()
        optimiser.step()
    with torch.no_grad():
        joint = model.log_prior(every).exp()
        found = model.imagine(20000, generator=torch.Generator().manual_seed(0)).chosen
    assert (table * (table / joint).log()).sum() < 0.05, "the table was learned"
    places = (found[:, 0] * 3 + found[:, 1] - 4) * 4 + found[:, 2]
    counts = torch.bincount(places, minlength=48).double()
    assert chi_square(counts, joint) < 82.7  # 99.9 % of 47 degrees of freedom
    assert chi_square(counts, torch.full((48,), 1 / 48).double()) > 1000


def test_imagination_may_start_from_counts_of_subjects() -> None:
    model = made()
    found = model.imagine(200, torch.tensor([0, 3, 0, 1]), generator=torch.Generator().manual_seed(0)).chosen
    again = model.imagine(200, torch.tensor([0, 3, 0, 1]), generator=torch.Generator().manual_seed(0)).chosen
    counts = torch.bincount(found[:, 0], minlength=4)
    assert torch.equal(found, again) and counts[0] == counts[2] == 0 and 130 < counts[1] < 170
    with pytest.raises(UsageError, match=r"prior is of shape \(3,\); it must be 4 counts"):
        model.imagine(2, torch.ones(3))
    assert model.imagine(0).chosen.shape == (0, 3)


# --- what indices are for -------------------------------------------------------------------------------------------


def trained(feedback: bool, steps: int, noise: float = 1.5) -> tuple[Any, Tensor]:
    """A network of the tiny preset and whether subject, predicate and object of 2000 scenes are correct."""
    torch.manual_seed(0)
    model: Any = mereo.create_model("tensor_brain", feedback=feedback)
    world, names = World.made((12, 5, 0, 0), 24, noise, 0), concept_names((12, 5, 0, 0))
    random = torch.Generator().manual_seed(1)
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(steps):
        batch = world.scenes(128, random, names, classes=0)
        optimiser.zero_grad()
        (-model.decode(batch.regions, "teacher", batch.labels).log_probability.mean()).backward()
        optimiser.step()
    test = world.scenes(2000, random, names, classes=0)
    with torch.no_grad():
        return model, model.decode(test.regions).chosen == test.labels


@pytest.mark.long
def test_an_index_lets_the_predicate_depend_on_concepts() -> None:
    model, with_indices = trained(feedback=True, steps=1400)
    _, without = trained(feedback=False, steps=1400)
    assert with_indices[:, 1].double().mean() - without[:, 1].double().mean() >= 0.15
    assert with_indices.all(1).double().mean() > 0.6
    # Without noise the senses decide: what is seen is named, whatever is usual.
    world = World.made((12, 5, 0, 0), 24, 0.0, 0)
    clear = world.scenes(2000, torch.Generator().manual_seed(2), (), classes=0)
    with torch.no_grad():
        found = model.decode(clear.regions).chosen == clear.labels
    assert found[:, 0].all() and found[:, 2].all()


# --- wrong input ----------------------------------------------------------------------------------------------------


def test_wrong_inputs() -> None:
    model = made()
    with pytest.raises(UsageError, match=r"regions are torch.float64 of shape \(4, 3, 5\); .* \(batch, 2, 5\)"):
        model(torch.zeros(4, 3, 5, dtype=torch.float64))
    regions = scenes(model, 2)
    with pytest.raises(UsageError, match="target holds 4 as subject; it must be 0 to 3"):
        model.decode(regions, "teacher", torch.tensor([[4, 4, 0], [0, 4, 0]]))
    with pytest.raises(UsageError, match="target holds -1 as object"):
        model.decode(regions, "teacher", torch.tensor([[0, 4, -1], [0, 4, 0]]))
    with pytest.raises(UsageError, match="target is None, and mode is 'teacher'"):
        model.decode(regions, "teacher")
    with pytest.raises(UsageError, match=r"target is torch.int64 of shape \(2, 2\); .*subject, predicate, object"):
        model.decode(regions, target=torch.zeros(2, 2, dtype=torch.int64))
    with pytest.raises(UsageError, match="target has 1 rows and regions 2"):
        model.decode(regions, target=torch.tensor([[0, 4, 0]]))
    with pytest.raises(UsageError, match="mode is 'best'"):
        model.decode(regions, "best")
    with pytest.raises(UsageError, match="order is 'pso'"):
        made(order="pso")
    with pytest.raises(UsageError, match="entities is 0"):
        made(entities=0)
