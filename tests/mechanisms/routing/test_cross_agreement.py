"""Cross-agreement routing: the naive form, one member a group, symmetries, lengths, dropout, refusals."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mereo.core import record
from mereo.errors import UsageError
from mereo.mechanisms.routing import CrossAgreementRouting

FEW = settings(max_examples=20, deadline=None, database=None, derandomize=True)


def make(share: bool = True, **options: Any) -> tuple[CrossAgreementRouting, Tensor, Tensor]:
    """A routing of 8 fine and 4 coarse capsules to 3, with inputs."""
    torch.manual_seed(0)
    fine_dim = 5 if share else 6
    routing = CrossAgreementRouting(8, 4, 3, fine_dim, 5, 7, share_weights=share, **options)
    return routing, torch.randn(2, 8, fine_dim), torch.randn(2, 4, 5)


def naive(routing: CrossAgreementRouting, fine: Tensor, coarse: Tensor) -> tuple[Tensor, Tensor]:
    """Agreement (batch, receivers, coarse) and parents, with every vote made, by loops."""
    R, K, _, D = routing.weight.shape
    B, s = fine.shape[0], routing.members
    agreement = torch.zeros(B, R, K)
    votes = torch.zeros(B, R, K, D)
    for b in range(B):
        for j in range(R):
            for k in range(K):
                votes[b, j, k] = routing.weight[j, k].T @ coarse[b, k]
                candidates = []
                for m in range(s):
                    own = routing.fine_weight
                    matrix = routing.weight[j, k] if own is None else own[j, k * s + m]
                    candidates.append((matrix.T @ fine[b, k * s + m]).dot(votes[b, j, k]) / D**0.5)
                agreement[b, j, k] = torch.stack(candidates).max()
    couplings = agreement.softmax(1 if routing.coupling.over == "receivers" else 2)
    pose = torch.einsum("bjk,bjkd->bjd", couplings, votes)
    norm = pose.norm(dim=-1, keepdim=True)
    return agreement, pose * norm / (1 + norm**2)


@pytest.mark.parametrize("over", ["receivers", "senders"])
@pytest.mark.parametrize("share", [True, False])
@torch.no_grad()
def test_rearranged_agreement_equals_the_naive_votes(share: bool, over: str) -> None:
    routing, fine, coarse = make(share, over=over)
    votes = torch.einsum("bkd,jkde->bjke", coarse, routing.weight)
    agreement, parents = naive(routing, fine, coarse)
    torch.testing.assert_close(routing.agreement(fine, votes), agreement, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(routing(fine, coarse), parents, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("over", ["receivers", "senders"])
@pytest.mark.parametrize("share", [True, False])
def test_streamed_equals_plain(share: bool, over: str) -> None:
    routing, fine, coarse = make(share, over=over)
    results = []
    for method in ("streamed", "plain"):
        given = [x.clone().requires_grad_() for x in (fine, coarse)]
        out = routing(*given, method=method)
        results.append([out, *torch.autograd.grad(out.square().sum(), [*given, *routing.parameters()])])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_recording_sees_the_couplings_of_either_method() -> None:
    routing, fine, coarse = make()
    couplings = []
    for method in ("streamed", "plain"):
        with record(routing) as trace:
            routing(fine, coarse, method=method)
        couplings.append(trace["coupling"])
    torch.testing.assert_close(*couplings)


def test_methods_that_are_not_there_or_cannot_run() -> None:
    routing, fine, coarse = make()
    with pytest.raises(UsageError, match=r"method is 'fused'"):
        routing(fine, coarse, method="fused")
    with pytest.raises(UsageError, match=r"method is 'streamed'"):
        torch.vmap(lambda f, c: routing(f[None], c[None], method="streamed"))(fine, coarse)


def test_one_member_that_is_the_coarse_capsule_agrees_by_the_squared_vote() -> None:
    torch.manual_seed(0)
    routing = CrossAgreementRouting(4, 4, 3, 5, 5, 7)
    coarse = torch.randn(2, 4, 5)
    votes = torch.einsum("bkd,jkde->bjke", coarse, routing.weight)
    torch.testing.assert_close(routing.agreement(coarse, votes), votes.square().sum(-1) / 7**0.5)


@pytest.mark.parametrize("share", [True, False])
def test_permuting_the_members_of_a_group_changes_nothing(share: bool) -> None:
    routing, fine, coarse = make(share)
    before = routing(fine, coarse)
    order = torch.tensor([1, 0, 2, 3, 5, 4, 6, 7])
    if routing.fine_weight is not None:
        routing.fine_weight.data = routing.fine_weight.data[:, order]
    torch.testing.assert_close(routing(fine[:, order], coarse), before)
    across = torch.tensor([2, 1, 0, 3, 4, 5, 6, 7])
    assert not torch.allclose(routing(fine[:, across], coarse), before, atol=1e-3)


@given(seed=st.integers(0, 1000), scale=st.floats(0.01, 30), over=st.sampled_from(["receivers", "senders"]))
@FEW
def test_lengths_stay_below_one_and_couplings_sum_to_one(seed: int, scale: float, over: Any) -> None:
    torch.manual_seed(seed)
    routing = CrossAgreementRouting(6, 3, 4, 5, 5, 6, over=over).double()
    with record(routing) as trace:
        out = routing(scale * torch.randn(2, 6, 5).double(), scale * torch.randn(2, 3, 5).double())
    assert (out.norm(dim=-1) < 1 + 1e-12).all()
    couplings = trace["coupling"]
    assert couplings.shape == (2, 1, 4, 3)
    sums = couplings.sum(-2 if over == "receivers" else -1)
    torch.testing.assert_close(sums, torch.ones_like(sums))


def test_dropout_acts_only_in_training() -> None:
    routing, fine, coarse = make(dropout=0.5)
    assert not torch.equal(routing(fine, coarse), routing(fine, coarse))
    assert torch.equal(routing.eval()(fine, coarse), routing(fine, coarse))
    undropped, _, _ = make()
    torch.testing.assert_close(routing(fine, coarse), undropped(fine, coarse))


@pytest.mark.parametrize("share", [True, False])
def test_gradients(share: bool) -> None:
    torch.manual_seed(0)
    routing = CrossAgreementRouting(4, 2, 2, 2, 2, 3, share_weights=share).double()
    names, parameters = zip(*routing.named_parameters(), strict=True)
    inputs = [torch.randn(1, n, 2, dtype=torch.float64, requires_grad=True) for n in (4, 2)]

    def call(fine: Tensor, coarse: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(routing, dict(zip(names, values, strict=True)), (fine, coarse))

    assert torch.autograd.gradcheck(call, (*inputs, *parameters))


def test_blank_input_has_finite_gradients() -> None:
    routing, fine, coarse = make()
    fine, coarse = torch.zeros_like(fine, requires_grad=True), torch.zeros_like(coarse, requires_grad=True)
    out = routing(fine, coarse)
    out.sum().backward()
    assert (out == 0).all()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (fine, coarse, routing.weight))


def test_counts_and_start() -> None:
    torch.manual_seed(0)
    shared = CrossAgreementRouting(32, 16, 8, 8, 8, 16, over="receivers")
    assert sum(p.numel() for p in shared.parameters()) == 8 * 16 * 8 * 16
    apart = CrossAgreementRouting(32, 16, 8, 4, 8, 16, share_weights=False, over="receivers")
    assert sum(p.numel() for p in apart.parameters()) == 8 * 16 * 8 * 16 + 8 * 32 * 4 * 16
    assert apart.fine_weight is not None
    # Kaiming over all that a parent sums: 16 coarse capsules, each with its pose.
    assert shared.weight.std().item() == pytest.approx((2 / (16 * 8)) ** 0.5, rel=0.03)
    assert apart.fine_weight.std().item() == pytest.approx((2 / (16 * 4)) ** 0.5, rel=0.03)


def test_parents_start_equally_long_under_both_axes() -> None:
    torch.manual_seed(0)
    fine, coarse = torch.randn(64, 16, 8), torch.randn(64, 4, 8)
    lengths = [
        CrossAgreementRouting(16, 4, 10, 8, 8, 32, over=over)(fine, coarse).norm(dim=-1).mean().item()
        for over in ("receivers", "senders")
    ]
    assert lengths[1] == pytest.approx(lengths[0], rel=0.25)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fine": 9}, "fine is 9 and coarse 4"),
        ({"fine": 2}, "fine is 2 and coarse 4"),
        ({"fine_dim": 6}, r"share_weights.*6 and 5"),
        ({"receivers": 0}, "receivers is 0"),
        ({"coarse": 0}, "coarse is 0"),
        ({"receiver_dim": 0}, "receiver_dim is 0"),
        ({"over": "receiver"}, r"over is 'receiver'"),
        ({"dropout": 1.0}, r"dropout is 1\.0"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str) -> None:
    sizes = {"fine": 8, "coarse": 4, "receivers": 3, "fine_dim": 5, "coarse_dim": 5, "receiver_dim": 7}
    with pytest.raises(UsageError, match=message):
        CrossAgreementRouting(**(sizes | options))
