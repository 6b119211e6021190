"""Competing capsules against loops over the equations, and the worked numbers of masks and boosts."""

import math

import pytest
import torch
from torch import Tensor

import mereo
from mereo.errors import UsageError
from mereo.mechanisms.routing import CompetingCapsules
from mereo.mechanisms.routing.competing_capsules import rank_weights, ranks, routing_scores, win_entropy


def small(**options: object) -> CompetingCapsules:
    torch.manual_seed(0)
    return CompetingCapsules(12, 5, 3, 4, **{"types": 3, **options}).double()


def slow_routing(module: CompetingCapsules, children: Tensor) -> tuple[Tensor, Tensor]:
    """Parents (parents, pose) and last couplings (parents, children) of one image, one number at a time."""
    weight, bias = module.routing.weight, module.routing.bias
    parents, senders = weight.shape[:2]
    votes = [[children[s] @ weight[r, s] for s in range(senders)] for r in range(parents)]
    b = torch.zeros(parents, senders, dtype=torch.float64)
    for step in range(module.steps):
        c = torch.stack([b[:, s].exp() / b[:, s].exp().sum() for s in range(senders)], 1)
        poses = []
        for r in range(parents):
            total = sum(c[r, s] * votes[r][s] for s in range(senders)) + bias[r]
            length = total.norm()
            poses.append(length**2 / (1 + length**2) * total / length)
        if step < module.steps - 1:
            b = b + torch.stack([torch.stack([poses[r] @ votes[r][s] for s in range(senders)]) for r in range(parents)])
    return torch.stack(poses), c


def slow_output(module: CompetingCapsules, children: Tensor) -> Tensor:
    poses, c = slow_routing(module, children)
    types, parents = module.types, len(poses)
    positions = c.shape[1] // types
    scores = []
    for j in range(parents):
        best = [max(c[j, t * positions + p].item() for t in range(types)) for p in range(positions)]
        scores.append(sum(best) * module.boost[j].item())
    rows = []
    for j in range(parents):
        rank = sum(scores[k] > scores[j] or (scores[k] == scores[j] and k < j) for k in range(parents))
        weight = math.exp(-12 * rank / (parents - 1))
        rows.append(poses[j] * (weight if weight >= 0.01 else 0.0))
    return torch.stack(rows)


def test_outputs_and_gradients_are_those_of_loops() -> None:
    module = small().eval()
    with torch.no_grad():
        module.routing.bias.uniform_(-0.5, 0.5)
        module.boost.copy_(torch.tensor([1.0, 1.3, 1.0, 1.1, 1.0]))
    children = torch.randn(2, 12, 3, dtype=torch.float64, requires_grad=True)
    output, expected = module(children), torch.stack([slow_output(module, image) for image in children])
    torch.testing.assert_close(output, expected)
    probe = torch.randn_like(output)
    inputs = (children, module.routing.weight, module.routing.bias)
    for ours, theirs in zip(
        torch.autograd.grad((output * probe).sum(), inputs),
        torch.autograd.grad((expected * probe).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_weights_of_ranks() -> None:
    sixteen = rank_weights(torch.arange(16), 16)
    expected = torch.tensor([1, 0.449329, 0.201897, 0.090718, 0.040762, 0.018316] + [0] * 10)
    torch.testing.assert_close(sixteen, expected, atol=1e-6, rtol=0)
    eleven = rank_weights(torch.arange(11), 11)
    torch.testing.assert_close(eleven[:4], torch.tensor([1, 0.301194, 0.090718, 0.027324]), atol=1e-6, rtol=0)
    assert not eleven[4:].any() and math.exp(-12 * 4 / 10) == pytest.approx(0.008230, abs=1e-6)
    assert rank_weights(torch.arange(5), 5, winners=2).tolist() == [1, 1, 0, 0, 0]
    assert rank_weights(torch.arange(1), 1).tolist() == [1]


def test_equal_couplings_have_equal_scores_and_the_first_wins() -> None:
    types, positions, parents = 4, 6, 5
    q = routing_scores(torch.full((1, parents, types * positions), 1 / parents), types)
    torch.testing.assert_close(q, torch.full((1, parents), positions / parents))
    assert ranks(q).tolist() == [[0, 1, 2, 3, 4]]
    assert ranks(torch.tensor([[0.2, 0.5, 0.5, 0.9]])).tolist() == [[3, 1, 2, 0]]


def test_the_maximum_is_over_types_or_over_neighbouring_children() -> None:
    couplings = torch.rand(1, 1, 6)  # three types at two positions
    a = couplings[0, 0].tolist()
    assert routing_scores(couplings, 3).item() == pytest.approx(max(a[0], a[2], a[4]) + max(a[1], a[3], a[5]))
    official = max(a[0], a[1], a[2]) + max(a[3], a[4], a[5])
    assert routing_scores(couplings, 3, "official").item() == pytest.approx(official)


def test_wins_are_shares_and_are_averaged_in_training_only() -> None:
    module = small()
    children = torch.randn(8, 12, 3, dtype=torch.float64)
    module.eval()(children)
    assert not module.frequency.any() and (module.boost == 1).all()
    first = torch.bincount(module.train().compete(children).scores.argmax(1), minlength=5) / 8
    torch.testing.assert_close(module.frequency.float(), first)
    assert module.frequency.sum().item() == pytest.approx(1)
    others = torch.randn(8, 12, 3, dtype=torch.float64)
    second = torch.bincount(module.compete(others).scores.argmax(1), minlength=5) / 8
    torch.testing.assert_close(module.frequency.float(), 0.99 * first + 0.01 * second)
    assert module.frequency.sum().item() == pytest.approx(1)
    before = module.frequency.clone()
    module(torch.randn(0, 12, 3, dtype=torch.float64))
    assert module.frequency.isfinite().all() and torch.allclose(module.frequency, 0.99 * before)
    copy = small()
    copy.load_state_dict(module.state_dict())
    assert torch.equal(copy.frequency, module.frequency) and torch.equal(copy.boost, module.boost)


def test_a_larger_boost_never_worsens_a_rank() -> None:
    module = small().eval()
    children = torch.randn(6, 12, 3, dtype=torch.float64)
    previous = ranks(module.compete(children).scores)[:, 2]
    for boost in (1.01, 1.1, 1.5, 3.0):
        module.boost[2] = boost
        rank = ranks(module.compete(children).scores)[:, 2]
        assert (rank <= previous).all()
        previous = rank
    assert (previous == 0).all()


def test_schedule_of_boosts() -> None:
    module = CompetingCapsules(12, 16, 3, 4, types=3)
    for _ in range(3):
        module.rebalance()
    torch.testing.assert_close(module.boost, torch.full((16,), 1.3))
    module.frequency.fill_(0.5)
    seen = []
    for _ in range(5):
        module.rebalance()
        seen.append(round(module.boost[0].item(), 5))
    assert seen == [1.2, 1.1, 1.0, 1.0, 1.0]
    module.frequency.copy_(torch.tensor([0.029, 0.031, 0.119, 0.121] * 4))
    module.boost.fill_(1.5)
    module.rebalance()
    torch.testing.assert_close(module.boost[:4], torch.tensor([1.6, 1.5, 1.5, 1.4]))


def test_parents_of_weight_zero_have_no_gradient_and_the_mask_has_none() -> None:
    module = small().eval()
    children = torch.randn(2, 12, 3, dtype=torch.float64)
    result = module.compete(children)
    assert not result.mask.requires_grad and not result.scores.requires_grad
    poses = result.poses.detach().requires_grad_()
    (gradient,) = torch.autograd.grad((result._replace(poses=poses).masked ** 2).sum(), poses)
    absent = result.mask == 0
    assert absent.any() and not gradient[absent].any() and gradient[~absent].any(-1).all()


@pytest.mark.parametrize("mask", ["routing", "norm", "label", "none"])
def test_other_masks(mask: str) -> None:
    module = small(mask=mask).eval()
    module.boost[1] = 100.0
    children, labels = torch.randn(4, 12, 3, dtype=torch.float64), torch.tensor([4, 0, 1, 1])
    result = module.compete(children, labels)
    chosen = {
        "routing": (result.scores / module.boost).argmax(1),
        "norm": result.poses.norm(dim=-1).argmax(1),
        "label": labels,
    }
    expected = torch.ones(4, 5) if mask == "none" else torch.nn.functional.one_hot(chosen[mask], 5)
    assert torch.equal(result.mask.double(), expected.double())
    if mask == "label":
        with pytest.raises(UsageError, match="labels is None"):
            module(children)


def test_record_shows_who_votes_for_whom_and_the_weights() -> None:
    module = small().eval()
    children = torch.randn(2, 12, 3, dtype=torch.float64)
    with mereo.record(module) as trace:
        result = module.compete(children)
    steps = trace.steps("routing.coupling")
    assert len(steps) == 3 and steps[-1].shape == (2, 1, 5, 12)
    torch.testing.assert_close(steps[-1][1, 0], slow_routing(module, children[1])[1])
    assert torch.equal(trace["gates"], result.mask)


@pytest.mark.parametrize("value", [0.0, 1e30])
def test_blank_and_huge_children_and_a_single_one(value: float) -> None:
    for module in (
        CompetingCapsules(12, 5, 3, 4, types=3),
        CompetingCapsules(1, 5, 3, 4, types=1),
        CompetingCapsules(4, 1, 3, 4, types=2),
    ):
        senders = module.routing.weight.shape[1]
        children = torch.full((2, senders, 3), value, requires_grad=True)
        module(children).sum().backward()
        assert module(children).isfinite().all() and children.grad is not None and children.grad.isfinite().all()
        assert module.routing.weight.grad.isfinite().all()


def test_wrong_arguments() -> None:
    for wrong, message in (
        ({"types": 5}, "senders is 12"), ({"mask": "best"}, "mask"), ({"winners": 9}, "winners is 9"),
        ({"winners": 1, "mask": "none"}, "winners is 1"), ({"score": "mean"}, "score"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=message):
            small(**wrong)


def test_entropy_of_wins() -> None:
    assert win_entropy(torch.ones(8)) == pytest.approx(1)
    assert win_entropy(torch.tensor([5, 0, 0])) == 0
    assert win_entropy(torch.tensor([1.0, 1.0, 0.0, 0.0])) == pytest.approx(0.5)
