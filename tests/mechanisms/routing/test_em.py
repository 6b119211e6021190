"""EM routing: worked numbers, loops, reductions, symmetries, masks, gradients, refusals."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mereo.core import record
from mereo.errors import UsageError
from mereo.mechanisms.routing import EMRouting, InvertedDotProductRouting, SelfRouting, VariationalBayesRouting
from mereo.mechanisms.routing.em import Cluster, fit_clusters, inverse_temperatures, vote_scores

D = torch.float64
# One entry a child: its votes for the two parents.
WORKED = torch.tensor([[[1, 0], [0, 1]], [[1.2, 0.1], [2, -1]], [[0.9, -0.1], [-1, 0.3]]], dtype=D)
VOTES = WORKED.transpose(0, 1).unsqueeze(0)
PRESENT = torch.tensor([[0.9, 0.8, 0.5]], dtype=D)


def close(got: Tensor, expected: Any) -> None:
    torch.testing.assert_close(got, torch.tensor(expected, dtype=got.dtype), rtol=0, atol=1e-6)


def em(votes: Tensor, present: Tensor, steps: int, floor: float = 1e-9) -> tuple[Cluster, Tensor]:
    """The clusters and the couplings that the last of `steps` fits used, with betas of 0."""
    betas = votes.new_zeros(2, votes.shape[1])

    def fit(couplings: Tensor, temperature: float) -> Cluster:
        return fit_clusters(votes, couplings * present.unsqueeze(1), *betas, temperature, floor)

    couplings = torch.full_like(votes[..., 0], 1 / votes.shape[1])
    first, *others = inverse_temperatures(steps, 0.01)
    cluster = fit(couplings, first)
    for temperature in others:
        couplings = vote_scores(votes, cluster).softmax(1)
        cluster = fit(couplings, temperature)
    return cluster, couplings


def test_worked_routing() -> None:
    first, _ = em(VOTES, PRESENT, 1)
    close(first.mean[0], [[1.05, 0.013636], [0.5, 0.113636]])
    close(first.variance[0], [[0.014318, 0.005723], [1.431818, 0.780269]])
    close(first.log_activation[0].exp(), [0.500647, 0.499992])
    close(vote_scores(VOTES, first).softmax(1)[0, 0], [0.994773, 0.992642, 0.974804])
    last, _ = em(VOTES, PRESENT, 3)
    close(last.mean[0], [[1.051602, 0.014831], [-0.607582, 0.295524]])
    close(last.log_activation[0].exp(), [0.503645, 0.500010])
    assert inverse_temperatures(3, 0.01) == pytest.approx([0.0005, 0.000975, 0.00142625])


def some(senders: int = 6, receivers: int = 3, side: int = 2, **options: Any) -> tuple[EMRouting, Tensor, Tensor]:
    torch.manual_seed(0)
    module = EMRouting(senders, receivers, side, **options).double()
    torch.nn.init.normal_(module.weight)
    torch.nn.init.normal_(module.beta_use)
    torch.nn.init.normal_(module.beta_activation)
    return module, torch.randn(2, senders, side * side, dtype=D), torch.rand(2, senders, dtype=D)


def by_loops(module: EMRouting, poses: Tensor, present: Tensor, steps: int) -> Tensor:
    """The procedure as it is written, with indices."""
    (B, S, P), R, side = poses.shape, len(module.weight), module.weight.shape[-1]
    out = torch.zeros(B, R, P + 1, dtype=D)
    for b in range(B):
        V = [[(poses[b, s].view(side, side) @ module.weight[r, s]).flatten() for s in range(S)] for r in range(R)]
        share = [[1 / R] * S for _ in range(R)]
        for step in range(1, steps + 1):
            log_p = [[0.0] * S for _ in range(R)]
            for r in range(R):
                w = [share[r][s] * present[b, s].item() for s in range(S)]
                total, cost = sum(w), 0.0
                for h in range(P):
                    mu = sum(w[s] * V[r][s][h].item() for s in range(S)) / total
                    var = (
                        sum(w[s] * (V[r][s][h].item() - mu) ** 2 for s in range(S)) / total
                        + module.options.variance_floor
                    )
                    cost += (module.beta_use[r].item() + 0.5 * math.log(var)) * total
                    out[b, r, h] = mu
                    for s in range(S):
                        log_p[r][s] -= (V[r][s][h].item() - mu) ** 2 / (2 * var) + 0.5 * math.log(2 * math.pi * var)
                temperature = 0.01 * (1 - 0.95**step)
                out[b, r, P] = 1 / (1 + math.exp(-temperature * (module.beta_activation[r].item() - cost)))
            for s in range(S):
                likely = [out[b, r, P].item() * math.exp(log_p[r][s]) for r in range(R)]
                for r in range(R):
                    share[r][s] = likely[r] / sum(likely)
    return out


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
@torch.no_grad()
def test_equals_loops(steps: int) -> None:
    module, poses, present = some(steps=steps)
    torch.testing.assert_close(module(poses, present), by_loops(module, poses, present, steps))


def test_one_step_with_equal_children_is_the_mean_and_the_population_variance() -> None:
    votes = torch.randn(2, 3, 6, 4, dtype=D)
    cluster, _ = em(votes, torch.full((2, 6), 0.7, dtype=D), 1, floor=1e-12)
    torch.testing.assert_close(cluster.mean, votes.mean(2))
    torch.testing.assert_close(cluster.variance, votes.var(2, unbiased=False))


def test_couplings_share_out_each_childs_activation_and_start_equal() -> None:
    module, poses, present = some()
    with record(module) as trace:
        module(poses, present)
    first, *_, last = trace.steps("coupling")
    torch.testing.assert_close(first, present[:, None, None].expand(2, 1, 3, 6) / 3)
    torch.testing.assert_close(last.sum(2), present.unsqueeze(1))
    assert (last - first).abs().max() > 0.1


def test_identical_votes_leave_the_floor_and_equal_activations() -> None:
    votes = torch.randn(1, 1, 1, 4, dtype=D).expand(1, 3, 6, 4)
    cluster, _ = em(votes, torch.rand(1, 6, dtype=D), 3, floor=1e-4)
    torch.testing.assert_close(cluster.variance, torch.full((1, 3, 4), 1e-4, dtype=D))
    torch.testing.assert_close(cluster.log_activation, cluster.log_activation[:, :1].expand(1, 3))


def test_a_shift_of_every_vote_shifts_only_the_means() -> None:
    votes, present = torch.randn(2, 3, 6, 4, dtype=D), torch.rand(2, 6, dtype=D)
    shift = torch.tensor([0, 5.0, 0, -2.0], dtype=D)
    (plain, shares), (moved, moved_shares) = em(votes, present, 3), em(votes + shift, present, 3)
    torch.testing.assert_close(moved.mean, plain.mean + shift)
    torch.testing.assert_close(moved_shares, shares)
    torch.testing.assert_close(moved.log_activation, plain.log_activation)


def test_scaled_votes_scale_the_clusters() -> None:
    votes, weights = torch.randn(2, 3, 6, 4, dtype=D), torch.rand(2, 3, 6, dtype=D)
    betas = torch.zeros(2, 3, dtype=D)
    plain, scaled = (fit_clusters(v, weights, *betas, 1.0, 1e-300) for v in (votes, 3 * votes))
    torch.testing.assert_close(scaled.mean, 3 * plain.mean)
    torch.testing.assert_close(scaled.variance, 9 * plain.variance)
    costs = [-(c.log_activation.exp().logit()) for c in (plain, scaled)]
    torch.testing.assert_close(costs[1] - costs[0], 4 * math.log(3) * weights.sum(-1))


def test_a_change_of_viewpoint_changes_the_poses_by_the_same_matrix() -> None:
    module, poses, present = some(side=4, steps=1)
    turn = torch.randn(4, 4, dtype=D)
    before = module.route(poses, present).pose.unflatten(-1, (4, 4))
    turned = (turn @ poses.unflatten(-1, (4, 4))).flatten(-2)
    torch.testing.assert_close(module.route(turned, present).pose.unflatten(-1, (4, 4)), turn @ before)
    # Clusters with a diagonal covariance fit turned votes differently, so that later steps share out otherwise.
    module, _, _ = some(side=4, steps=3)
    before, after = (module.route(x, present).pose.unflatten(-1, (4, 4)) for x in (poses, turned))
    assert (after - turn @ before).abs().max() > 0.1


def test_absent_children_have_no_influence() -> None:
    module, poses, present = some()
    absent = present.index_fill(1, torch.tensor([2]), 0)
    changed = poses.index_fill(1, torch.tensor([2]), 9)
    torch.testing.assert_close(module(changed, absent), module(poses, absent))
    mask = torch.arange(6).expand(2, 6) != 2
    torch.testing.assert_close(module(changed, present, mask), module(poses, absent))


def test_a_parent_without_children_is_zero_and_finite() -> None:
    cluster = fit_clusters(VOTES, torch.zeros(1, 2, 3, dtype=D), *torch.zeros(2, 2, dtype=D), 0.01, 1e-6)
    close(cluster.mean[0], [[0.0, 0.0], [0.0, 0.0]])
    assert all(x.isfinite().all() for x in cluster)


def test_one_child_leaves_the_floor_as_the_variance() -> None:
    module, poses, present = some(1)
    torch.testing.assert_close(module(poses, present), by_loops(module, poses, present, 3))
    module, poses = module.float(), poses.float().requires_grad_()
    module(poses, present.float()).sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (poses, *module.parameters()))


@pytest.mark.parametrize("routing", [EMRouting, VariationalBayesRouting, InvertedDotProductRouting, SelfRouting])
def test_autocast_computes_in_float32(routing: Any) -> None:
    torch.manual_seed(0)
    arguments = {InvertedDotProductRouting: (6, 3, 4), SelfRouting: (6, 3, 4, 4)}.get(routing, (6, 3, 2))
    inputs = (torch.randn(2, 6, 4), torch.rand(2, 6))
    module = routing(*arguments).eval()
    inputs = inputs[:1] if routing is InvertedDotProductRouting else inputs
    expected = module(*inputs)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(module(*inputs), expected, rtol=1e-5, atol=1e-6)


def test_gradients() -> None:
    module, poses, present = some(3, 2)
    names, parameters = zip(*module.named_parameters(), strict=True)
    present = 0.1 + 0.8 * present

    def call(poses: Tensor, present: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (poses, present))

    inputs = (poses.requires_grad_(), present.requires_grad_(), *parameters)
    assert torch.autograd.gradcheck(call, inputs)


def test_counts_and_start() -> None:
    module = EMRouting(512, 5)
    assert sum(p.numel() for p in module.parameters()) == 512 * 5 * 16 + 2 * 5
    assert (module.beta_use == 0).all() and (module.beta_activation == 0).all()
    torch.testing.assert_close(module.weight.mean((0, 1)), torch.eye(4), rtol=0, atol=0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"receivers": 0}, "receivers is 0"),
        ({"steps": 0}, "steps is 0"),
        ({"variance_floor": 0}, "variance_floor is 0"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        EMRouting(**{"senders": 4, "receivers": 2, **arguments})


def test_wrong_shapes() -> None:
    module, poses, present = some()
    with pytest.raises(UsageError, match=r"poses are \(2, 6, 3\)"):
        module(poses[..., :3], present)
    with pytest.raises(UsageError, match=r"activation is \(2, 5\)"):
        module(poses, present[:, :5])
