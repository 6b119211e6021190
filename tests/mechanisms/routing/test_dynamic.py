"""Dynamic routing: worked numbers, its variants, symmetries, loops, gradients, masks, refusals."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mereo.core import Coupling, DenseVotes, Votes, lengths, record
from mereo.errors import UsageError
from mereo.mechanisms.routing import DynamicRouting, route_by_agreement

FEW = settings(max_examples=20, deadline=None, database=None, derandomize=True)
D = torch.float64
# One entry a child: its votes for the two parents.
WORKED = torch.tensor([[[1, 0], [0, 1]], [[1, 0.5], [0.5, -1]], [[0.8, -0.2], [-1, 0.3]]], dtype=D)


def as_votes(votes: Tensor) -> Votes:
    """Votes (senders, receivers, pose) of one image: every child is the number 1 and its matrices are the votes."""
    return DenseVotes(votes.new_ones(1, votes.shape[0], 1), votes.transpose(0, 1).unsqueeze(2))


def route(votes: Tensor, steps: int, normaliser: str = "softmax", start: float = 0.0) -> tuple[Tensor, list[Tensor]]:
    """Parents (receivers, pose) and the couplings (receivers, senders) of each pass."""
    coupling = Coupling("receivers", normaliser)
    with record(coupling) as trace:
        scores = votes.new_full((1, 1, votes.shape[1], votes.shape[0]), start)
        parents = route_by_agreement(as_votes(votes), coupling, scores, steps)
    return parents[0, 0], [c[0, 0] for c in trace.steps("")]


def close(got: Tensor, expected: Any) -> None:
    torch.testing.assert_close(got, torch.tensor(expected, dtype=got.dtype), rtol=0, atol=1e-6)


def test_worked_routing() -> None:
    first, _ = route(WORKED, 1)
    close(first, [[0.660928, 0.070814], [-0.067177, 0.040306]])
    last, couplings = route(WORKED, 3)
    close(couplings[0], [[0.5] * 3] * 2)
    close(couplings[1][0], [0.650360, 0.683571, 0.607141])
    close(couplings[2][0], [0.793564, 0.839036, 0.722386])
    close(last, [[0.825902, 0.102762], [-0.043978, 0.028724]])
    close(lengths(last), [0.832271, 0.052527])
    assert len(couplings) == 3


def test_worked_unit_and_leaky_couplings() -> None:
    close(route(WORKED, 1, "none", start=1.0)[0], [[0.882964, 0.094603], [-0.217573, 0.130544]])
    close(route(WORKED, 1, "leaky_softmax")[1][0], [[1 / 3] * 3] * 2)


def by_loops(children: Tensor, weight: Tensor, steps: int) -> Tensor:
    """The procedure as it is written, with indices."""
    B, (R, S, _, E) = children.shape[0], weight.shape
    out = torch.zeros(B, R, E, dtype=D)
    for b in range(B):
        votes = [[children[b, s] @ weight[r, s] for s in range(S)] for r in range(R)]
        logits = torch.zeros(R, S, dtype=D)
        for step in range(steps):
            couplings = logits.exp() / logits.exp().sum(0)
            for r in range(R):
                total = torch.zeros(E, dtype=D)
                for s in range(S):
                    total = total + couplings[r, s] * votes[r][s]
                out[b, r] = total * total.norm() / (1 + total.norm() ** 2)
            if step < steps - 1:
                for r in range(R):
                    for s in range(S):
                        logits[r, s] += votes[r][s].dot(out[b, r])
    return out


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
@torch.no_grad()
def test_equals_loops(steps: int) -> None:
    torch.manual_seed(0)
    module = DynamicRouting(6, 3, 4, 5, steps=steps).double()
    children = torch.randn(2, 6, 4, dtype=D)
    torch.testing.assert_close(module(children), by_loops(children, module.weight, steps))


def test_without_routing_votes_count_whole_or_are_averaged() -> None:
    torch.manual_seed(0)
    children = torch.randn(2, 6, 4)
    unit = DynamicRouting(6, 3, 4, 5, steps=0)
    uniform = DynamicRouting(6, 3, 4, 5, steps=0, coupling="uniform")
    once = DynamicRouting(6, 3, 4, 5, steps=1)
    for other in (uniform, once):
        other.load_state_dict(unit.state_dict())
    torch.testing.assert_close(uniform(children), once(children))
    with record(unit) as trace:
        out = unit(children)
    assert (trace["coupling"] == 1).all()
    summed = torch.einsum("bsd,rsde->bre", children, unit.weight)
    norm = summed.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(out, summed * norm / (1 + norm**2))
    tripled = DynamicRouting(6, 3, 4, 5, steps=1)
    tripled.load_state_dict({"weight": 3 * unit.weight})
    torch.testing.assert_close(tripled(children), out)


@given(seed=st.integers(0, 1000), steps=st.integers(1, 4), leaky=st.booleans(), scale=st.floats(0.01, 100))
@FEW
def test_couplings_share_out_each_child_and_lengths_stay_below_one(
    seed: int, steps: int, leaky: bool, scale: float
) -> None:
    torch.manual_seed(seed)
    module = DynamicRouting(5, 3, 4, 4, steps=steps, leaky=leaky).double()
    with record(module) as trace:
        parents = module(scale * torch.randn(2, 5, 4, dtype=D))
    # Below one but for rounding.
    assert (parents.norm(dim=-1) < 1 + 1e-12).all()
    assert len(trace.steps("coupling")) == steps
    first = trace.steps("coupling")[0].sum(-2)
    torch.testing.assert_close(first, torch.full_like(first, 3 / 4 if leaky else 1))
    for couplings in trace.steps("coupling"):
        sums = couplings.sum(-2)
        if leaky:
            assert (sums < 1 + 1e-12).all()
        else:
            torch.testing.assert_close(sums, torch.ones_like(sums))


def test_symmetries() -> None:
    torch.manual_seed(0)
    module = DynamicRouting(6, 3, 4, 5).double()
    children = torch.randn(2, 6, 4, dtype=D)
    before, weight = module(children), module.weight.data
    order, turn = torch.randperm(6), torch.linalg.qr(torch.randn(5, 5, dtype=D))[0]
    module.weight.data = weight[:, order]
    torch.testing.assert_close(module(children[:, order]), before)
    module.weight.data = weight[[2, 0, 1]]
    torch.testing.assert_close(module(children), before[:, [2, 0, 1]])
    module.weight.data = torch.cat((weight[:1] @ turn, weight[1:]))
    torch.testing.assert_close(module(children), torch.cat((before[:, :1] @ turn, before[:, 1:]), 1))


def test_equal_votes_are_shared_equally_for_ever() -> None:
    votes = torch.randn(2, dtype=D).expand(4, 3, 2)
    for couplings in route(votes, 5)[1]:
        torch.testing.assert_close(couplings, torch.full((3, 4), 1 / 3, dtype=D))


@pytest.mark.parametrize("options", [{}, {"leaky": True}, {"bias": True, "learned_prior": True}, {"steps": 0}])
def test_gradients_through_every_pass(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    module = DynamicRouting(3, 2, 2, 3, **options).double()
    children = torch.randn(2, 3, 2, dtype=D, requires_grad=True)
    names, parameters = zip(*module.named_parameters(), strict=True)

    def call(children: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (children,))

    assert torch.autograd.gradcheck(call, (children, *parameters))


def test_detached_routing_differs_only_in_the_gradient() -> None:
    torch.manual_seed(0)
    full = DynamicRouting(5, 3, 4, 4, learned_prior=True)
    detached = DynamicRouting(5, 3, 4, 4, learned_prior=True, detach_routing=True)
    detached.load_state_dict(full.state_dict())
    children = torch.randn(2, 5, 4)
    torch.testing.assert_close(detached(children), full(children))
    for module in (full, detached):
        module(children).square().sum().backward()
    assert full.weight.grad is not None and detached.weight.grad is not None
    assert not torch.allclose(full.weight.grad, detached.weight.grad, rtol=1e-3)
    # A prior belongs to the last pass too.
    assert detached.prior is not None and detached.prior.grad is not None and (detached.prior.grad != 0).any()


def test_detached_gradient_is_that_of_the_last_pass() -> None:
    torch.manual_seed(0)
    module = DynamicRouting(5, 3, 4, 4, detach_routing=True).double()
    children = torch.randn(2, 5, 4, dtype=D)
    with record(module) as trace:
        module(children)
    couplings = trace["coupling"]
    votes = DenseVotes(children, module.weight)
    start = torch.zeros(2, 1, 3, 5, dtype=D)
    for _ in range(2):
        pose = DenseVotes(children, module.weight).combine(start.softmax(-2))
        norm = pose.norm(dim=-1, keepdim=True)
        start = (start + votes.agree(pose * norm / (1 + norm**2))).detach()
    torch.testing.assert_close(start.softmax(-2), couplings)
    pose = votes.combine(start.softmax(-2))
    norm = pose.norm(dim=-1, keepdim=True)
    (expected,) = torch.autograd.grad((pose * norm / (1 + norm**2)).square().sum(), module.weight)
    (got,) = torch.autograd.grad(module(children).square().sum(), module.weight)
    torch.testing.assert_close(got, expected)


def test_masked_children_have_no_effect() -> None:
    torch.manual_seed(0)
    module = DynamicRouting(6, 3, 4, 5)
    children, mask = torch.randn(2, 6, 4), torch.tensor([True, False, True, True, False, True])
    out = module(children, mask.expand(2, 6))
    other = children.clone()
    other[:, ~mask] = float("nan")
    torch.testing.assert_close(module(other, mask.expand(2, 6)), out)
    without = DynamicRouting(4, 3, 4, 5)
    without.load_state_dict({"weight": module.weight[:, mask]})
    torch.testing.assert_close(without(children[:, mask]), out)
    assert (module(children, torch.zeros(2, 6, dtype=torch.bool)) == 0).all()


def test_prior_and_bias_start_without_effect_and_then_have_one() -> None:
    torch.manual_seed(0)
    plain, module = DynamicRouting(6, 3, 4, 5), DynamicRouting(6, 3, 4, 5, learned_prior=True, bias=True)
    module.load_state_dict(plain.state_dict(), strict=False)
    children = torch.randn(2, 6, 4)
    torch.testing.assert_close(module(children), plain(children))
    assert module.prior is not None and module.bias is not None
    module.prior.data[0] = 50
    with record(module) as trace:
        module(children)
    torch.testing.assert_close(trace.steps("coupling")[0][:, :, 0], torch.ones(2, 1, 6))
    module.prior.data.zero_()
    module.bias.data[1] = torch.tensor([0.0, 0, 3, 0, 0])
    out = module(torch.zeros(2, 6, 4))
    torch.testing.assert_close(out[0, 1], torch.tensor([0, 0, 0.9, 0, 0]))
    assert (out[:, 0] == 0).all()


def test_blank_input_has_finite_gradients() -> None:
    module = DynamicRouting(6, 3, 4, 5)
    children = torch.zeros(2, 6, 4, requires_grad=True)
    module(children).sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (children, module.weight))


@pytest.mark.parametrize(
    ("options", "count"), [({}, 1440), ({"bias": True}, 1440 + 3 * 8), ({"learned_prior": True}, 1440 + 30)]
)
def test_counts(options: dict[str, Any], count: int) -> None:
    assert sum(p.numel() for p in DynamicRouting(10, 3, 6, 8, **options).parameters()) == count


def test_start_of_the_weights() -> None:
    torch.manual_seed(0)
    weight = DynamicRouting(16, 8, 8, 8).weight
    assert 0.24 < weight.abs().max() <= 0.25


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": -1}, "steps is -1"),
        ({"coupling": "units"}, r"coupling is 'units'"),
        ({"senders": 0}, "senders is 0"),
        ({"receiver_dim": -1}, "receiver_dim is -1"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str) -> None:
    sizes = {"senders": 4, "receivers": 3, "sender_dim": 2, "receiver_dim": 2}
    with pytest.raises(UsageError, match=message):
        DynamicRouting(**(sizes | options))
