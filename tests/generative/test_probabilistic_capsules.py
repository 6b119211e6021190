"""The tree of poses and its encoder: worked numbers, loops, the exact evidence, sampling, test-time optimisation."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import mereo
from mereo.errors import UsageError
from mereo.generative import PoseBelief, PoseTree, ProbabilisticCapsules, prob_capsules_toy
from mereo.generative.pose_tree import affine, free_numbers

D = torch.float64
EYE = torch.eye(3, dtype=D)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tree(children: int = 3, parents: int = 2, **options: Any) -> PoseTree:
    """A tree with all its parameters away from their start."""
    torch.manual_seed(0)
    own = PoseTree(children, parents, **options).double()
    with torch.no_grad():
        for parameter in own.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return own


def belief_of(own: PoseTree, batch: int, scale: float = 0.4) -> PoseBelief:
    return PoseBelief(
        own.identity + scale * torch.randn(batch, own.num_parents, 6, dtype=D),
        -1 + scale * torch.randn(batch, own.num_parents, 6, dtype=D),
        torch.randn(batch, own.num_parents, dtype=D),
    )


def poses(batch: int, children: int) -> Tensor:
    return affine(torch.eye(2, 3, dtype=D).flatten() + 0.7 * torch.randn(batch, children, 6, dtype=D))


def at(own: PoseTree, parents: Tensor, i: int, j: int) -> Tensor:
    """A_j M_ij as a product of homogeneous matrices."""
    return affine(parents[j]) @ affine(own.relation[j, i])


def test_worked_responsibilities() -> None:
    own = PoseTree(1, 2, prior_std=1.0).double()
    with torch.no_grad():
        own.relation.copy_(own.identity.expand_as(own.relation))
        own.log_choice[0] = -1e9  # no child without a parent
    parents = own.identity.repeat(1, 2, 1)
    parents[0, 1, 2] = 2.0
    child = EYE.repeat(1, 1, 1, 1)
    child[0, 0, 0, 2] = 0.5
    point = PoseBelief(parents, torch.full((1, 2, 6), -1e9, dtype=D), torch.full((1, 2), 1e9, dtype=D))
    # Standard deviations are at least exp(-8); the same for both parents, they cancel.
    expected = torch.tensor([[[0.0, 0.731059, 0.268941]]], dtype=D)
    torch.testing.assert_close(own.route(child, point), expected, rtol=0, atol=1e-6)
    removed = point._replace(logits=torch.tensor([[1e9, -1e9]], dtype=D))
    torch.testing.assert_close(own.route(child, removed), torch.tensor([[[0.0, 1, 0]]], dtype=D))


def test_composition_keeps_the_last_row_and_is_that_of_matrices() -> None:
    own = tree()
    parents = own.identity + torch.randn(4, 2, 6, dtype=D)
    made = own.predicted(parents)
    for b, j, i in itertools.product(range(4), range(2), range(3)):
        product = at(own, parents[b], i, j)
        torch.testing.assert_close(affine(made[b, j, i]), product)
        assert product[2].tolist() == [0, 0, 1]
    assert torch.equal(free_numbers(affine(parents)), parents)


def elbo_by_loops(own: PoseTree, children: Tensor, belief: PoseBelief, there: Tensor) -> Tensor:
    """The closed bound of one image, with q(s | t) as a table: E log p + H(q(s)) - KL(q(A)) - KL(q(t))."""
    total = children.new_zeros(())
    x, std = free_numbers(children), belief.std
    for present in itertools.product((0, 1), repeat=own.num_parents):
        weight = torch.stack(
            [belief.logits[j].sigmoid() if t else 1 - belief.logits[j].sigmoid() for j, t in enumerate(present)]
        ).prod()
        for i in range(own.num_children):
            if not there[i]:
                continue
            rho = [own.log_choice[0, i].exp()] + [t * own.log_choice[j + 1, i].exp() for j, t in enumerate(present)]
            terms = []
            apart = torch.distributions.Normal(own.identity, own.none_std)
            terms.append((rho[0] / sum(rho)).log() + apart.log_prob(x[i]).sum())
            for j, t in enumerate(present):
                if not t:
                    continue
                precision = own.log_precision[j, i].exp()
                m = free_numbers(at(own, belief.mean, i, j))
                matrix, variance = affine(own.relation[j, i]), std[j].view(2, 3).square()
                trace = sum((matrix.T @ row.diag() @ matrix).trace() for row in variance)
                error = (x[i] - m).square().sum() + trace
                log_n = 3 * (precision / (2 * math.pi)).log() - precision / 2 * error
                terms.append((rho[j + 1] / sum(rho)).log() + log_n)
            scores = torch.stack(terms)
            r = scores.softmax(0)
            total = total + weight * (r * (scores - r.log())).sum()
    for j in range(own.num_parents):
        q, p = (
            torch.distributions.Normal(belief.mean[j], std[j]),
            torch.distributions.Normal(own.identity, own.prior_std),
        )
        total = total - torch.distributions.kl_divergence(q, p).sum()
        b, c = (torch.distributions.Bernoulli(logits=x[j]) for x in (belief.logits, own.presence_logits))
        total = total - torch.distributions.kl_divergence(b, c)
    return total


def test_bound_and_gradients_are_those_of_loops() -> None:
    own, children = tree(prior_std=0.8, none_std=2.0), poses(3, 3)
    belief = PoseBelief(*(part.requires_grad_() for part in belief_of(own, 3)))
    mask = torch.tensor([[True, True, True], [True, False, True], [False, False, False]])
    ours = own.elbo(children, belief, mask)
    theirs = torch.stack(
        [elbo_by_loops(own, children[b], PoseBelief(*(part[b] for part in belief)), mask[b]) for b in range(3)]
    )
    torch.testing.assert_close(ours, theirs)
    inputs = (*belief, *own.parameters())
    for a, b in zip(torch.autograd.grad(ours.sum(), inputs), torch.autograd.grad(theirs.sum(), inputs), strict=True):
        torch.testing.assert_close(a, b)


def log_evidence(own: PoseTree, children: Tensor) -> Tensor:
    """Of one image: a sum over all presences and choices, with poses integrated in closed form."""
    x, terms = free_numbers(children).unflatten(-1, (2, 3)), []
    for present in itertools.product((0, 1), repeat=own.num_parents):
        prior = torch.distributions.Bernoulli(logits=own.presence_logits)
        log_t = prior.log_prob(torch.tensor(present, dtype=D)).sum()
        options = [0] + [j + 1 for j, t in enumerate(present) if t]
        for chosen in itertools.product(options, repeat=own.num_children):
            log_p = log_t
            for i, s in enumerate(chosen):
                log_p = log_p + own.log_choice[s, i] - own.log_choice[options, i].logsumexp(0)
                if s == 0:
                    apart = torch.distributions.Normal(own.identity, own.none_std)
                    log_p = log_p + apart.log_prob(x[i].flatten()).sum()
            for j in range(own.num_parents):
                mine = [i for i, s in enumerate(chosen) if s == j + 1]
                if not mine:
                    continue
                # A row of a child is M^T times that row of the parent.
                maps = torch.cat([affine(own.relation[j, i]).T for i in mine])
                noise = torch.cat([torch.exp(-own.log_precision[j, i]).expand(3) for i in mine])
                covariance = own.prior_std**2 * maps @ maps.T + noise.diag()
                for row in range(2):
                    mean = maps @ own.identity.view(2, 3)[row]
                    seen = torch.cat([x[i, row] for i in mine])
                    log_p = log_p + torch.distributions.MultivariateNormal(mean, covariance).log_prob(seen)
            terms.append(log_p)
    return torch.stack(terms).logsumexp(0)


def test_bounds_are_below_the_exact_evidence_and_in_order() -> None:
    own, children = tree(prior_std=0.8), poses(4, 3)
    exact = torch.stack([log_evidence(own, image) for image in children])
    belief = belief_of(own, 4)
    closed = own.elbo(children, belief)
    sampled = own.elbo(children, belief, samples=1000, generator=seeded())
    assert (closed < exact).all() and (sampled < exact).all()
    assert (sampled > closed - 0.02).all(), "summing out the choices inside the expectation is the tighter bound"
    capsules = ProbabilisticCapsules(3, 2, prior_std=0.8).double()
    capsules.tree = own
    best = capsules.optimise(children, steps=150, lr=0.1)
    assert (best.elbo < exact).all() and (exact - best.elbo < 3).all()


def test_a_sharp_belief_has_the_same_bound_by_samples_and_in_closed_form() -> None:
    own, children = tree(), poses(2, 3)
    belief = belief_of(own, 2)._replace(log_std=torch.full((2, 2, 6), -8.0, dtype=D))
    sampled = own.elbo(children, belief, samples=50, generator=seeded())
    torch.testing.assert_close(sampled, own.elbo(children, belief), rtol=0, atol=1e-3)


def test_relaxed_presences_become_the_sum_over_sets() -> None:
    own, children = tree(), poses(2, 3)
    belief = belief_of(own, 2)
    relaxed = own.elbo(children, belief, samples=5_000, temperature=0.01, generator=seeded())
    exact = own.elbo(children, belief, samples=5_000, generator=seeded())
    torch.testing.assert_close(relaxed, exact, rtol=0, atol=0.25)
    logits = belief.logits.clone().requires_grad_()
    bound = own.elbo(children, belief._replace(logits=logits), samples=3, temperature=0.5, generator=seeded())
    (gradient,) = torch.autograd.grad(bound.sum(), logits)
    assert gradient.isfinite().all() and gradient.any()


def test_record_shows_who_votes_for_whom() -> None:
    own, children = tree(), poses(2, 3)
    belief = belief_of(own, 2)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    with mereo.record(own) as trace:
        routing = own.route(children, belief, mask)
    couplings = trace["coupling"]
    assert couplings.shape == (2, 4, 3, 3) and (couplings[:, 0, 1:] == 0).all(), "the first set has no parents"
    torch.testing.assert_close(couplings.sum(2), mask.double().unsqueeze(1).expand(-1, 4, -1))
    probability = own.log_sets(belief).exp()
    torch.testing.assert_close(probability.sum(1), torch.ones(2, dtype=D))
    torch.testing.assert_close(routing, torch.einsum("bt,btji->bij", probability, couplings))
    assert (routing[0, 2] == 0).all()


def test_samples_follow_the_model() -> None:
    own = tree(4, 2)
    drawn = own.sample(40_000, seeded())
    share = drawn.present.double().mean(0)
    torch.testing.assert_close(share, own.presence_logits.sigmoid(), rtol=0, atol=0.01)
    assert not (drawn.chosen == 1)[~drawn.present[:, 0]].any()
    both = drawn.present.all(1)
    counts = torch.stack([(drawn.chosen[both] == s).double().mean(0) for s in range(3)])
    torch.testing.assert_close(counts, own.log_choice.softmax(0), rtol=0, atol=0.02)
    mine = drawn.chosen[:, 2] == 2
    errors = free_numbers(drawn.children)[mine, 2] - own.predicted(free_numbers(drawn.parents))[mine, 1, 2]
    torch.testing.assert_close(errors.var(0), torch.exp(-own.log_precision[1, 2]).expand(6), rtol=0.1, atol=0)


def test_optimisation_never_lowers_the_bound_and_leaves_the_weights() -> None:
    torch.manual_seed(0)
    capsules = ProbabilisticCapsules(5, 2, hidden=8).double()
    children = poses(6, 5)
    before = {name: p.clone() for name, p in capsules.named_parameters()}
    start = capsules(children)
    for steps, lr in ((1, 0.01), (60, 0.01), (20, 50.0)):
        after = capsules.optimise(children, steps=steps, lr=lr)
        assert after.trace.shape == (6, steps + 1) and (after.elbo >= start.elbo - 1e-12).all()
        torch.testing.assert_close(after.trace[:, 0], start.elbo)
        torch.testing.assert_close(after.elbo, after.trace.amax(1))
        torch.testing.assert_close(capsules.tree.elbo(children, after.belief), after.elbo)
    assert (capsules.optimise(children, steps=100).elbo > start.elbo + 0.1).all()
    assert all(torch.equal(before[name], p) and p.grad is None for name, p in capsules.named_parameters())
    alone = capsules.optimise(children[:1], steps=30)
    torch.testing.assert_close(alone.elbo, capsules.optimise(children, steps=30).elbo[:1])


def test_learning_raises_the_bound() -> None:
    truth = tree(5, 2)
    children = truth.sample(200, seeded()).children
    torch.manual_seed(1)
    capsules = ProbabilisticCapsules(5, 2, hidden=16).double()
    optimiser = torch.optim.Adam(capsules.parameters(), lr=0.01)
    first = capsules.loss(children).item()
    for _ in range(60):
        optimiser.zero_grad()
        loss = capsules.loss(children)
        loss.backward()
        optimiser.step()
    assert loss.item() < first - 1
    assert capsules.loss(children, samples=3, generator=seeded()).item() < first


def test_the_preset() -> None:
    capsules = prob_capsules_toy()
    assert sum(p.numel() for p in capsules.parameters()) == 8125
    counts = {name: p.numel() for name, p in capsules.tree.named_parameters()}
    assert counts == {"relation": 6 * 11 * 3, "log_choice": 11 * 4, "log_precision": 11 * 3, "presence_logits": 3}
    children = affine(torch.randn(2, 11, 6))
    explained = capsules(children)
    assert explained.belief.mean.shape == explained.belief.std.shape == (2, 3, 6)
    assert explained.belief.presence.shape == (2, 3) and explained.routing.shape == (2, 11, 4)
    torch.testing.assert_close(explained.routing.sum(-1), torch.ones(2, 11))


@pytest.mark.parametrize(("children", "parents"), [(4, 2), (1, 1)])
@pytest.mark.parametrize("size", [0.0, 1e30])
def test_blank_and_huge_poses_and_single_capsules(children: int, parents: int, size: float) -> None:
    capsules = ProbabilisticCapsules(children, parents, hidden=4)
    given = torch.full((2, children, 3, 3), size)
    loss = capsules.loss(given)
    loss.backward()
    assert loss.isfinite() and all(p.grad is not None and p.grad.isfinite().all() for p in capsules.parameters())
    explained = capsules.optimise(given, torch.zeros(2, children, dtype=torch.bool), steps=3)
    assert explained.elbo.isfinite().all() and not explained.routing.any()
    assert capsules(given).routing.isfinite().all() and capsules(given[:0]).elbo.shape == (0,)


@pytest.mark.long
def test_compiles_and_exports() -> None:
    capsules = ProbabilisticCapsules(4, 2, hidden=8).eval()

    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.capsules = capsules

        def forward(self, children: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
            explained = self.capsules(children, mask)
            return explained.routing, explained.elbo

    inputs = (poses(3, 4).float(), torch.rand(3, 4) > 0.3)
    module, expected = Both(), Both()(*inputs)
    torch.compiler.reset()
    for a, b in zip(torch.compile(module, fullgraph=True, backend="aot_eager")(*inputs), expected, strict=True):
        torch.testing.assert_close(a, b)
    free = {0: torch.export.Dim.DYNAMIC}
    program = torch.export.export(module, inputs, dynamic_shapes=(free, free)).module()
    twice = tuple(torch.cat((x, x)) for x in inputs)
    for a, b in zip(program(*twice), module(*twice), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c(torch.zeros(2, 3, 3, 3)), "children are"),
        (lambda c: c(torch.zeros(2, 4, 3, 3), torch.ones(2, 4)), "mask is"),
        (lambda c: c.optimise(torch.zeros(2, 4, 3, 3), steps=0), "steps is 0"),
        (lambda c: c.loss(torch.zeros(2, 4, 3, 3), temperature=0.5), "samples"),
        (lambda c: PoseTree(4, 40), "parents is 40"),
    ],
)
def test_wrong_arguments(call: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call(ProbabilisticCapsules(4, 2, hidden=4))
