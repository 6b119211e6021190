"""record and intervene: what they see and change, through compilation too, and that they leave nothing behind."""

import pytest
import torch
from torch import Tensor, nn

from mereo.attention import MultiHeadAttention
from mereo.core import Coupling, Observed, intervene, record
from mereo.errors import UsageError
from mereo.routing import DynamicRouting


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


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


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
        assert hooks(model) == 2 and model.attention.coupling.watched
    assert hooks(model) == 0 and not model.attention.coupling.watched
    torch.testing.assert_close(inside, before)
    assert torch.equal(model(x), before)


def test_hooks_go_when_the_block_fails(model: Model) -> None:
    for manager in (record(model), intervene(model, {"routing.coupling": lambda c: c})):
        with pytest.raises(ZeroDivisionError), manager:
            raise ZeroDivisionError
    assert hooks(model) == 0


def test_intervene_changes_the_output_as_told(model: Model) -> None:
    x = torch.randn(2, 5, 8)
    before = model.attention(x)
    with intervene(model, {"attention.coupling": torch.zeros_like}):
        silenced = model.attention(x)
    torch.testing.assert_close(silenced, model.attention.proj.bias.expand_as(silenced))
    assert hooks(model) == 0 and torch.equal(model.attention(x), before)


def test_record_inside_intervene_sees_the_change(model: Model) -> None:
    with intervene(model, {"attention.coupling": lambda c: c * 0 + 0.25}), record(model) as trace:
        model(torch.randn(2, 5, 8))
    assert (trace["attention.coupling"] == 0.25).all()


def test_unknown_names(model: Model) -> None:
    with (
        pytest.raises(UsageError, match=r"did you mean 'routing\.coupling'"),
        intervene(model, {"routing.couplin": id}),
    ):
        pass
    with record(model) as trace:
        model(torch.randn(2, 5, 8))
    with pytest.raises(UsageError, match="unknown coupling 'rooting'"):
        trace.steps("rooting")
    with pytest.raises(KeyError, match="unknown coupling"):
        trace["rooting"]


def test_a_model_without_couplings_gives_an_empty_trace() -> None:
    model = nn.Linear(2, 2)
    with record(model) as trace:
        model(torch.zeros(1, 2))
    assert not trace


@pytest.mark.parametrize("kind", ["gates", "states", "kept tokens"])
def test_observed_values_are_recorded_and_changed(kind: str) -> None:
    model = nn.Sequential(nn.Linear(2, 3), Observed(kind))
    x = torch.randn(4, 2)
    plain = model(x)
    with record(model) as trace:
        assert torch.equal(model(x), plain)
    assert torch.equal(trace["1"], plain)
    with intervene(model, {"1": torch.zeros_like}):
        assert not model(x).any()
    assert torch.equal(model(x), plain)


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
    assert hooks(model) == 0
    torch.testing.assert_close(compiled(x), before)
