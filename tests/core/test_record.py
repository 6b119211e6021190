"""record and intervene: what they see and change, through compilation too, and that they leave nothing behind."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mereo.core import Call, Coupling, Grid, Signal, intervene, record
from mereo.core.record import Change
from mereo.errors import UsageError
from mereo.mechanisms.attention import MultiHeadAttention
from mereo.mechanisms.routing import DynamicRouting


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(8, 2)
        self.routing = DynamicRouting(5, 3, 8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.routing(self.attention(x))


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model().eval()


def observers(model: nn.Module) -> int:
    return sum(len(m.observers) for m in model.modules() if isinstance(m, Coupling))


def test_record_names_and_shapes(model: Model) -> None:
    with record(model) as trace:
        model(torch.randn(2, 5, 8))
    assert list(trace) == ["attention.coupling", "routing.coupling"] and len(trace) == 2
    assert trace["attention.coupling"].shape == (2, 2, 5, 5)
    steps = trace.steps("routing.coupling")
    assert len(steps) == 3 and torch.equal(steps[-1], trace["routing.coupling"])
    torch.testing.assert_close(steps[0], torch.full((2, 1, 3, 5), 1 / 3))
    assert not torch.equal(steps[0], steps[1])
    torch.testing.assert_close(trace["attention.coupling"].sum(-1), torch.ones(2, 2, 5))
    assert not trace["attention.coupling"].requires_grad
    assert "routing.coupling: 3 x (2, 1, 3, 5)" in repr(trace)


def test_recording_changes_nothing_and_leaves_nothing(model: Model) -> None:
    x = torch.randn(2, 5, 8)
    before = model(x)
    with record(model):
        inside = model(x)
        assert observers(model) == 2 and model.attention.coupling.watched
    assert observers(model) == 0 and not model.attention.coupling.watched
    torch.testing.assert_close(inside, before)
    assert torch.equal(model(x), before)


def test_hooks_go_when_the_block_fails(model: Model) -> None:
    for manager in (record(model), intervene(model, {"routing.coupling": lambda c: c})):
        with pytest.raises(ZeroDivisionError), manager:
            raise ZeroDivisionError
    assert observers(model) == 0


def test_intervene_changes_the_output(model: Model) -> None:
    x = torch.randn(2, 5, 8)
    before = model.attention(x)
    with intervene(model, {"attention.coupling": torch.zeros_like}):
        silenced = model.attention(x)
    torch.testing.assert_close(silenced, model.attention.proj.bias.expand_as(silenced))
    assert observers(model) == 0 and torch.equal(model.attention(x), before)


def test_record_inside_intervene_sees_the_change(model: Model) -> None:
    with intervene(model, {"attention.coupling": lambda c: c * 0 + 0.25}), record(model) as trace:
        model(torch.randn(2, 5, 8))
    assert (trace["attention.coupling"] == 0.25).all()


def test_models_without_couplings_say_so() -> None:
    plain, images = nn.Sequential(nn.Linear(2, 2)), torch.ones(1, 2)
    for block in (record(plain, ["0"]), intervene(plain, {"0": torch.zeros_like}), intervene(plain, scores={"0": abs})):
        with pytest.raises(UsageError, match=r"'0' is no coupling.*of Sequential; it has no couplings"), block:
            plain(images)


def test_unknown_names(model: Model) -> None:
    with (
        pytest.raises(UsageError, match=r"did you mean 'routing\.coupling'"),
        intervene(model, {"routing.couplin": id}),
    ):
        pass
    with record(model) as trace:
        model(torch.randn(2, 5, 8))
    with pytest.raises(UsageError, match="rooting"):
        trace.steps("rooting")
    with pytest.raises(KeyError, match="rooting"):
        trace["rooting"]


def test_a_model_without_couplings_gives_an_empty_trace() -> None:
    model = nn.Linear(2, 2)
    with record(model) as trace:
        model(torch.zeros(1, 2))
    assert not trace


def test_a_coupling_itself() -> None:
    coupling = Coupling("senders")
    with record(coupling) as trace:
        coupling(torch.zeros(1, 1, 2, 4))
    assert (trace[""] == 0.25).all()


def test_through_a_compiled_model(model: Model) -> None:
    x = torch.randn(2, 5, 8)
    compiled = torch.compile(model, backend="eager")
    before = compiled(x)
    with record(compiled) as trace:
        inside = compiled(x)
    assert len(trace.steps("routing.coupling")) == 3 and "attention.coupling" in trace
    torch.testing.assert_close(inside, before)
    with intervene(compiled, {"routing.coupling": torch.zeros_like}):
        assert (compiled(x) == 0).all()
    assert observers(model) == 0
    torch.testing.assert_close(compiled(x), before)


def test_calls_tell_scores_numbers_and_places(model: Model) -> None:
    model.routing.coupling.senders = Grid(1, 5, 1, 2.0, 4.0)
    with record(model) as trace:
        model(torch.randn(2, 5, 8))
    (attention,), passes = trace.calls("attention.coupling"), trace.calls("routing.coupling")
    assert [call.number for call in (attention, *passes)] == [0, 1, 2, 3]
    assert [call.step for call in passes] == [0, 1, 2] and {call.name for call in passes} == {"routing.coupling"}
    assert passes[0].senders == Grid(1, 5, 1, 2.0, 4.0) and passes[0].receivers is None
    for call in (attention, *passes):
        torch.testing.assert_close(call.scores.softmax(-1 if call.over == "senders" else -2), call.couplings)
    assert torch.equal(trace.scores("routing.coupling")[2], passes[2].scores)


@pytest.mark.parametrize("outer", ["record", "intervene"])
def test_what_is_recorded_is_what_acts(outer: str, model: Model) -> None:
    change = intervene(model, {"attention.coupling": torch.zeros_like})
    x = torch.randn(2, 5, 8)
    if outer == "record":
        with record(model) as trace, change:
            model(x)
    else:
        with change, record(model) as trace:
            model(x)
    assert (trace["attention.coupling"] == 0).all()


def test_changes_see_the_call_and_the_context(model: Model) -> None:
    seen: list[Call] = []

    def keep(couplings: Tensor, call: Call) -> Tensor:
        seen.append(call)
        return couplings * call.context["there"]

    there = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0])
    with intervene(model, {"routing.coupling": keep}, context={"there": there}), record(model) as trace:
        model(torch.randn(2, 5, 8))
    assert [call.step for call in seen] == [0, 1, 2] and all(call.over == "receivers" for call in seen)
    assert (trace["routing.coupling"][..., 3:] == 0).all() and (trace["routing.coupling"][..., :3] > 0).all()


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = Signal("gates")

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x.sigmoid())


def test_signals_are_recorded_and_changed() -> None:
    model, x = Gated(), torch.randn(2, 3)
    with record(model) as trace:
        model(x)
    assert torch.equal(trace["gate"], x.sigmoid()) and trace.kinds == {"gate": "gates"}
    with intervene(model, {"gate": torch.zeros_like}), record(model) as trace:
        assert (model(x) == 0).all()
    assert (trace["gate"] == 0).all()
    with pytest.raises(UsageError, match="gate"), intervene(model, scores={"gate": torch.zeros_like}):
        pass
    with pytest.raises(UsageError, match="kind is 'gate'"):
        Signal("gate")


WRONG = {
    "nothing": lambda c: None, "a number": lambda c: 1.0, "double": lambda c: c.double(), "bool": lambda c: c > 0.5,
    "complex": lambda c: c * 1j, "NaN": lambda c: c * float("nan"), "fewer": lambda c: c[..., :-1],
    "the sum": lambda c: c.sum(), "one of the batch": lambda c: c[:1], "more axes": lambda c: c.unsqueeze(0),
    "sparse": lambda c: c.to_sparse(), "meta": lambda c: c.to("meta"), "a list": lambda c: c.tolist(),
}  # fmt: skip


@pytest.mark.parametrize("where", ["changes", "scores"])
@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_a_change_that_cannot_act_is_refused(model: Model, change: Change, where: str) -> None:
    given: dict[str, Any] = {where: {"attention.coupling": change}}
    with intervene(model, **given), pytest.raises(UsageError, match=r"attention\.coupling"):
        model(torch.randn(2, 5, 8))
    assert observers(model) == 0


def test_couplings_and_scores_that_are_not_finite(model: Model) -> None:
    x = torch.randn(2, 5, 8)
    with intervene(model, {"attention.coupling": lambda c: c / 0}), pytest.raises(UsageError, match="finite"):
        model(x)
    # Minus infinity masks a sender; masking all of them leaves nothing to normalise.
    first = torch.arange(5) == 0
    with intervene(model, scores={"attention.coupling": lambda s: s.masked_fill(first, -torch.inf)}):
        assert model(x).isfinite().all()
    whole = {"attention.coupling": lambda s: s * 0 - torch.inf}
    with intervene(model, scores=whole), pytest.raises(UsageError, match="no finite score"):
        model(x)


def test_recorded_values_keep_their_graph_where_a_loss_needs_it() -> None:
    model = MultiHeadAttention(6, 2)
    with record(model, ["coupling"], gradients=True) as trace:
        model(torch.randn(2, 4, 6))
    assert trace["coupling"].requires_grad and trace.scores("coupling")[0].requires_grad
    (trace["coupling"] ** 2).sum().backward()
    assert model.query.weight.grad.abs().max() > 0
    with record(model, []) as trace:
        model(torch.randn(2, 4, 6))
    assert not trace
    with pytest.raises(UsageError, match="couplings"), record(model, ["couplings"]):
        pass


@pytest.mark.parametrize("change", [None, 1.0, torch.zeros(1), "zeros"])
@pytest.mark.parametrize("where", ["changes", "scores"])
def test_what_is_no_function_is_refused_before_anything_runs(where: str, change: Any) -> None:
    module = Coupling("senders")
    with pytest.raises(UsageError, match="change of ''"), intervene(module, **{where: {"": change}}):
        pass
