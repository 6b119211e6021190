"""Variational Bayes routing: worked numbers, loops, priors, limits, convolutions, precision, black inputs, refusals."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mereo.core import record
from mereo.core.log_gamma import digamma_series
from mereo.core.window_votes import WindowVotes
from mereo.errors import UsageError
from mereo.layers.capsules import ConvCapsules
from mereo.mechanisms.routing import BayesOptions, VariationalBayesRouting
from mereo.mechanisms.routing.variational_bayes import (
    ParentNorm,
    Posterior,
    WithPriors,
    expected_log_precision,
    expected_log_share,
    fit_posterior,
    vote_scores,
)

D = torch.float64
# One entry a child: its votes for the two parents.
WORKED = torch.tensor([[[1, 0], [0, 1]], [[1.2, 0.1], [2, -1]], [[0.9, -0.1], [-1, 0.3]]], dtype=D)
VOTES = WORKED.transpose(0, 1).unsqueeze(0)
PRESENT = torch.tensor([[0.9, 0.8, 0.5]], dtype=D)
PLAIN = BayesOptions()


def close(got: Tensor, expected: Any, atol: float = 1e-6) -> None:
    torch.testing.assert_close(got, torch.tensor(expected, dtype=got.dtype), rtol=0, atol=atol)


def evidence(posterior: Posterior) -> Tensor:
    dim = posterior.mean.shape[-1]
    entropy = (dim * math.log(2 * math.pi * math.e) - expected_log_precision(posterior)) / 2
    return -expected_log_share(posterior, PLAIN).exp() * entropy


def test_worked_routing() -> None:
    shares = torch.full((1, 2, 3), 0.5, dtype=D)
    for step in range(3):
        posterior = fit_posterior(VOTES, shares * PRESENT.unsqueeze(1), PLAIN)
        shares = vote_scores(VOTES, posterior, PLAIN).softmax(1)
        if step == 0:
            close(posterior.mean[0], [[0.55, 0.007143], [0.261905, 0.059524]])
            close(posterior.scatter[0], [[1.593250, 1.006393], [2.705952, 1.865060]])
            close(expected_log_share(posterior, PLAIN)[0], [-0.826003, -0.826003])
            close(expected_log_precision(posterior)[0], [1.450904, 0.304306])
            close(evidence(posterior)[0], [-0.924811, -1.175798])
            close(shares[0, 0], [0.791965, 0.971659, 0.840540])
    close(posterior.mean[0], [[0.716637, 0.010143], [-0.016756, 0.049455]])
    close(evidence(posterior)[0], [-1.314066, -0.403310])
    close(shares[0, 0], [0.978994, 0.999955, 0.983730])


def test_expected_log_precision_of_one_number() -> None:
    # nu is D + 1 plus the total.
    posterior = Posterior(torch.zeros(1, 1, dtype=D), torch.zeros(1, 1, 1, dtype=D), torch.ones(1, 1, 1, dtype=D))
    close(expected_log_precision(posterior), [[0.115932]])


def some(senders: int = 6, receivers: int = 3, side: int = 2, **options: Any) -> Any:
    torch.manual_seed(0)
    module = VariationalBayesRouting(senders, receivers, side, **options).double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    poses, present = torch.randn(2, senders, side * side, dtype=D), 0.1 + 0.8 * torch.rand(2, senders, dtype=D)
    return module, poses, present


def by_loops(module: VariationalBayesRouting, poses: Tensor, present: Tensor) -> Tensor:
    """The steps with indices, differentiable, without norms."""
    o, rows = module.options, []
    (R, S), side = module.weight.shape[:2], module.weight.shape[-1]
    P = side * side
    for image, a in zip(poses, present, strict=True):
        V = [[(image[s].view(side, side) @ module.weight[r, s]).flatten() for s in range(S)] for r in range(R)]
        share = [[torch.tensor(1 / R, dtype=D)] * S for _ in range(R)]
        for _ in range(o.steps):
            totals = [sum(share[r][s] * a[s] for s in range(S)) for r in range(R)]
            alphas = [o.concentration + total for total in totals]
            log_rho, poses_out, active = [], [], []
            for r in range(R):
                kappa, nu, total = o.strength + totals[r], P + 1 + totals[r], totals[r]
                mu = sum(share[r][s] * a[s] * V[r][s] for s in range(S)) / total
                m = (total * mu + o.strength * o.mean) / kappa
                scatter = torch.eye(P, dtype=D) / o.scale
                scatter = scatter + o.strength * total / kappa * torch.outer(mu - o.mean, mu - o.mean)
                for s in range(S):
                    scatter = scatter + share[r][s] * a[s] * torch.outer(V[r][s] - mu, V[r][s] - mu)
                scatter = torch.diag(scatter.diagonal()) if o.covariance == "diagonal" else scatter
                log_pi = torch.digamma(alphas[r]) - torch.digamma(sum(alphas))
                log_det = sum(torch.digamma((nu - d) / 2) for d in range(P)) + P * math.log(2) - scatter.logdet()
                quadratic = [P / kappa + nu * (v - m) @ scatter.inverse() @ (v - m) for v in V[r]]
                log_rho.append([log_pi + (log_det - P * math.log(2 * math.pi) - q) / 2 for q in quadratic])
                entropy = (P * math.log(2 * math.pi * math.e) - log_det) / 2
                z = module.beta_activation[r] - (log_pi.exp() * entropy + module.beta_use[r])
                poses_out.append(m)
                active.append(torch.sigmoid(z))
            powers = [[x.exp() for x in line] for line in log_rho]
            share = [[powers[r][s] / sum(powers[j][s] for j in range(R)) for s in range(S)] for r in range(R)]
        rows.append(torch.cat((torch.stack(poses_out), torch.stack(active).unsqueeze(1)), 1))
    return torch.stack(rows)


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 1},
        {"steps": 3},
        {"covariance": "full"},
        {"concentration": 2.0, "mean": 0.5, "strength": 3.0, "scale": 0.5},
    ],
    ids=str,
)
def test_equals_loops_with_gradients(options: dict[str, Any]) -> None:
    module, poses, present = some(4, **options, normalise=False)
    inputs = (poses.requires_grad_(), present.requires_grad_(), *module.parameters())
    fast, slow = module(poses, present), by_loops(module, poses, present)
    torch.testing.assert_close(fast, slow)
    weights = torch.randn_like(slow)
    for got, expected in zip(*(torch.autograd.grad((x * weights).sum(), inputs) for x in (fast, slow)), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("options", [{}, {"mean": 0.5, "strength": 3.0, "scale": 0.5}], ids=str)
def test_priors_are_two_children_more(options: dict[str, Any]) -> None:
    given = BayesOptions(**options)
    votes = WindowVotes(torch.randn(2, 5, 2, 3, dtype=D), torch.randn(4, 5, 3, 2, dtype=D))
    weights = torch.rand(2, 4, 5, dtype=D).index_fill(1, torch.tensor([1]), 0)
    posterior, scores = WithPriors(votes, given).fit(weights, True)
    dense = votes.dense().squeeze(1)
    expected = fit_posterior(dense, weights, given)
    for got, wanted in zip(posterior, expected, strict=True):
        torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(scores, vote_scores(dense, expected, given))


def test_norms_of_parents() -> None:
    plain, poses, present = some(normalise=False)
    normed, _, _ = some()
    parents, logits = plain.route(poses, present).pose, plain.route(poses, present).activation.logit()
    expected = (parents - parents.mean((0, 2), keepdim=True)) / (parents.var((0, 2), correction=0) + 1e-5).sqrt()[
        :, None
    ]
    got = normed.route(poses, present)
    torch.testing.assert_close(got.pose, expected)
    expected = (logits - logits.mean(0)) / (logits.var(0, correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(got.activation, expected.sigmoid())
    norm = ParentNorm(3)
    assert torch.equal(norm(torch.ones(1, 3)), norm.eval()(torch.ones(1, 3)))


def test_shares_sum_to_the_activation_of_the_child() -> None:
    module, poses, present = some()
    with record(module) as trace:
        module(poses, present)
    assert len(trace.steps("coupling")) == 3
    for couplings in trace.steps("coupling"):
        torch.testing.assert_close(couplings.sum(2), present.unsqueeze(1))


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_absent_children_leave_the_priors(covariance: str) -> None:
    posterior = fit_posterior(VOTES, torch.zeros(1, 2, 3, dtype=D), BayesOptions(covariance=covariance))
    assert not posterior.mean.any() and not posterior.total.any()
    expected = torch.ones(2, dtype=D) if covariance == "diagonal" else torch.eye(2, dtype=D)
    torch.testing.assert_close(posterior.scatter, expected.expand_as(posterior.scatter))


def test_many_equal_votes_do_not_collapse() -> None:
    votes = torch.tensor([1.0, -2.0], dtype=D).expand(1, 1, 100_000, 2)
    posterior = fit_posterior(votes, torch.ones(1, 1, 100_000, dtype=D), PLAIN)
    close(posterior.mean[0, 0], [1.0, -2.0], 1e-4)
    spread = posterior.scatter / posterior.freedom.unsqueeze(-1)
    assert (spread > 0).all() and (spread < 1e-3).all()
    assert vote_scores(votes, posterior, PLAIN).isfinite().all()


def test_much_evidence_gives_the_statistics_of_em() -> None:
    votes, weights = torch.randn(1, 2, 500, 3, dtype=D), 1e4 * torch.rand(1, 2, 500, dtype=D)
    posterior = fit_posterior(votes, weights, PLAIN)
    shares = (weights / weights.sum(-1, keepdim=True)).unsqueeze(-1)
    mean = (shares * votes).sum(2)
    torch.testing.assert_close(posterior.mean, mean, rtol=1e-4, atol=1e-5)
    variance = (shares * (votes - mean.unsqueeze(2)) ** 2).sum(2)
    torch.testing.assert_close(posterior.scatter / posterior.freedom.unsqueeze(-1), variance, rtol=1e-4, atol=1e-5)


def test_a_large_concentration_makes_all_weights_equal() -> None:
    weights = torch.rand(1, 2, 3, dtype=D) * PRESENT.unsqueeze(1)
    apart = []
    for concentration in (1.0, 1e9):
        options = BayesOptions(concentration=concentration)
        first, second = expected_log_share(fit_posterior(VOTES, weights, options), options)[0]
        apart.append((first - second).abs().item())
    assert apart[0] > 1e-3 and apart[1] < 1e-8


def test_one_child_and_one_parent_are_finite() -> None:
    for senders, receivers in ((1, 3), (6, 1), (1, 1)):
        module, poses, present = some(senders, receivers, normalise=False)
        torch.testing.assert_close(module(poses, present), by_loops(module, poses, present))


def test_equal_votes_are_divided_equally() -> None:
    module, poses, present = some(normalise=False)
    module.weight.data[:] = module.weight[:1, :1]
    with record(module) as trace:
        module(poses[:, :1].expand_as(poses), present)
    torch.testing.assert_close(trace["coupling"], (present / 3)[:, None, None].expand(2, 1, 3, 6))


@pytest.mark.parametrize("scale", [0.0, 1e4, 1e15])
def test_zero_and_huge_votes_are_finite(scale: float) -> None:
    module, poses, present = some()
    module, inputs = module.float(), ((scale * poses).float().requires_grad_(), present.float().requires_grad_())
    parents = module(*inputs)
    parents.sum().backward()
    assert parents.isfinite().all()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (*inputs, *module.parameters()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    module, poses, present = some()
    expected = module.eval()(poses, present)
    got = module.to(dtype)(poses.to(dtype), present.to(dtype))
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), expected, rtol=0.05, atol=0.05)


def test_single_precision_stays_close() -> None:
    module, poses, present = some(40, 7, 4, normalise=False)
    expected = module(poses, present)
    torch.testing.assert_close(module.float()(poses.float(), present.float()).double(), expected, rtol=1e-3, atol=1e-3)


# --- convolutions of capsules ---------------------------------------------------------------------------------------


def conv(**options: Any) -> tuple[ConvCapsules, Tensor, Tensor]:
    torch.manual_seed(0)
    given = {"routing": "variational_bayes", "routing_options": {"normalise": False, **options}}
    layer = ConvCapsules(2, 3, 3, 2, in_pose=(2, 2), **given).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer, torch.randn(2, 2, 2, 2, 6, 5, dtype=D), torch.rand(2, 2, 6, 5, dtype=D)


@pytest.mark.parametrize("start", ["types", "parents"])
def test_parents_of_all_positions_compete_for_a_child(start: str) -> None:
    layer, poses, present = conv(start=start)
    with record(layer) as trace:
        layer(poses, present)
    windows = layer.windows(6, 5)
    reached = torch.zeros(30, dtype=D).index_add_(0, windows.cells().flatten(), torch.ones(windows.count * 9, dtype=D))
    first, *others = trace.steps("routing.coupling")
    active = present.flatten(2)
    for couplings in others:
        totals = couplings.sum(2).squeeze(1).unflatten(-1, (2, 30))
        torch.testing.assert_close(totals, active * (reached > 0))
    start_sums = reached if start == "types" else (reached > 0).double()
    torch.testing.assert_close(first.sum(2).squeeze(1).unflatten(-1, (2, 30)), active * start_sums)


def test_a_convolution_equals_loops_over_windows() -> None:
    layer, poses, present = conv(steps=2)
    parents, windows = layer(poses, present), layer.windows(6, 5)
    tiles, options = windows.of_types(2, 3), layer.routing.options
    votes = layer.votes(poses).dense().squeeze(1).unflatten(0, (2, -1))
    for image in range(2):
        active = [present[image].flatten()[tiles.senders[q]] for q in range(windows.count)]
        shares = [torch.full((1, 3, 18), 1 / 3, dtype=D) for _ in range(windows.count)]
        for step in range(2):
            fits = [
                fit_posterior(votes[image, q : q + 1], shares[q] * active[q], options) for q in range(windows.count)
            ]
            if step == 0:
                rho = [vote_scores(votes[image, q : q + 1], fits[q], options).exp() for q in range(windows.count)]
                sums = torch.zeros(60, dtype=D)
                for q in range(windows.count):
                    sums.index_add_(0, tiles.senders[q], rho[q][0].sum(0))
                shares = [rho[q] / sums[tiles.senders[q]] for q in range(windows.count)]
        for q, posterior in enumerate(fits):
            y, x = divmod(q, windows.sides[1])
            torch.testing.assert_close(parents.pose[image, :, :, :, y, x].flatten(1), posterior.mean[0])


def test_series_of_digamma() -> None:
    x = torch.cat((torch.linspace(0.3, 12, 200, dtype=D), torch.tensor([50.0, 1e3, 1e6], dtype=D))).requires_grad_()
    torch.testing.assert_close(digamma_series(x), torch.digamma(x), rtol=1e-11, atol=1e-11)
    (gradient,) = torch.autograd.grad(digamma_series(x).sum(), x)
    torch.testing.assert_close(gradient, torch.polygamma(1, x), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"receivers": 0}, "receivers is 0"),
        ({"steps": 0}, "steps is 0"),
        ({"scale": 0}, "scale is 0"),
        ({"covariance": "round"}, "covariance is 'round'"),
        ({"start": "random"}, "start is 'random'"),
        ({"temperature": 1}, "temperature"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        some(**arguments)


def test_wrong_shapes() -> None:
    module, poses, present = some()
    with pytest.raises(UsageError, match=r"poses are \(2, 6, 3\)"):
        module(poses[..., :3], present)
