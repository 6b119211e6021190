"""Linear combination of capsules: loops, identity, linear maps, masks, convexity, precision, refusals."""

import pytest
import torch
from torch import Tensor

from mereo.core import intervene, record
from mereo.errors import UsageError
from mereo.mechanisms.routing import LinearCombinationCaps

D = torch.float64


def some(normalise: str = "none", senders: int = 7, receivers: int = 3) -> tuple[LinearCombinationCaps, Tensor]:
    torch.manual_seed(0)
    return LinearCombinationCaps(senders, receivers, normalise=normalise).double(), torch.randn(2, senders, 4, dtype=D)


def by_loops(module: LinearCombinationCaps, capsules: Tensor, mask: Tensor | None = None) -> Tensor:
    receivers, senders = module.weight.shape
    rows = []
    for b in range(len(capsules)):
        there = [n for n in range(senders) if mask is None or mask[b, n]]
        combined = []
        for k in range(receivers):
            factors = {n: module.weight[k, n] for n in there}
            if module.coupling.normaliser == "softmax":
                total = sum(factor.exp() for factor in factors.values())
                factors = {n: factor.exp() / total for n, factor in factors.items()}
            combined.append(sum((factor * capsules[b, n] for n, factor in factors.items()), torch.zeros(4, dtype=D)))
        rows.append(torch.stack(combined))
    return torch.stack(rows)


@pytest.mark.parametrize("normalise", ["none", "softmax"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("senders", "receivers"), [(7, 3), (1, 3), (7, 1), (1, 1)])
def test_equals_loops_with_gradients(normalise: str, masked: bool, senders: int, receivers: int) -> None:
    module, capsules = some(normalise, senders, receivers)
    capsules.requires_grad_()
    mask = torch.rand(2, senders) > 0.4 if masked else None
    got, expected = module(capsules, mask), by_loops(module, capsules, mask)
    torch.testing.assert_close(got, expected)
    weights, given = torch.randn_like(got), (capsules, module.weight)
    pairs = (torch.autograd.grad((x * weights).sum(), given, allow_unused=True) for x in (got, expected))
    for ours, theirs in zip(*pairs, strict=True):
        torch.testing.assert_close(ours, torch.zeros_like(ours) if theirs is None else theirs)


@torch.no_grad()
def test_the_identity_changes_nothing() -> None:
    module, capsules = some(senders=5, receivers=5)
    module.weight.copy_(torch.eye(5))
    assert torch.equal(module(capsules), capsules)


@torch.no_grad()
@pytest.mark.parametrize("normalise", ["none", "softmax"])
def test_commutes_with_any_linear_map(normalise: str) -> None:
    module, capsules = some(normalise)
    matrix = torch.randn(4, 6, dtype=D)
    torch.testing.assert_close(module(capsules @ matrix), module(capsules) @ matrix)


@torch.no_grad()
@pytest.mark.parametrize("normalise", ["none", "softmax"])
def test_masked_children_contribute_nothing(normalise: str) -> None:
    module, capsules = some(normalise)
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[:, [1, 4]] = False
    other = capsules.clone()
    other[:, [1, 4]] = 100.0
    assert torch.equal(module(capsules, mask), module(other, mask))
    assert torch.equal(module(capsules, torch.zeros_like(mask)), torch.zeros(2, 3, 4, dtype=D))


@torch.no_grad()
def test_softmax_makes_convex_combinations() -> None:
    module, capsules = some("softmax")
    with record(module) as trace:
        combined = module(capsules)
    torch.testing.assert_close(trace["coupling"].sum(-1), torch.ones(2, 1, 3, dtype=D))
    assert (combined <= capsules.amax(1, keepdim=True)).all() and (combined >= capsules.amin(1, keepdim=True)).all()
    module.weight.zero_()
    torch.testing.assert_close(module(capsules), capsules.mean(1, keepdim=True).expand(-1, 3, -1))


@torch.no_grad()
def test_records_the_factors_for_every_image() -> None:
    module, capsules = some()
    with record(module) as trace:
        module(capsules)
    assert torch.equal(trace["coupling"], module.weight.expand(2, 1, 3, 7))


@pytest.mark.parametrize("scale", [0.0, 1e30])
@pytest.mark.parametrize("normalise", ["none", "softmax"])
def test_zero_and_huge_capsules_and_weights_are_finite(scale: float, normalise: str) -> None:
    module, capsules = some(normalise)
    module, capsules = module.float(), (scale * capsules).float().requires_grad_()
    combined = module(capsules)
    combined.sum().backward()
    assert combined.isfinite().all() and capsules.grad is not None and capsules.grad.isfinite().all()
    module.weight.data.mul_(1e4)
    assert module(torch.randn(2, 7, 4)).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    module, capsules = some("softmax")
    expected = module(capsules)
    got = module.to(dtype)(capsules.to(dtype))
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), expected, rtol=0.05, atol=0.02)


def test_start() -> None:
    module = LinearCombinationCaps(2048, 256)
    assert module.weight.shape == (256, 2048) and module.weight.std().item() == pytest.approx(2048**-0.5, rel=0.02)


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="normalise is 'soft'"):
        LinearCombinationCaps(3, 2, normalise="soft")
    with pytest.raises(UsageError, match=r"capsules are \(2, 6, 4\)"):
        some()[0](torch.zeros(2, 6, 4, dtype=D))


def test_infinite_scores_of_an_intervention_are_refused() -> None:
    layer, capsules = LinearCombinationCaps(9, 4), torch.randn(3, 9, 5)
    change = {"coupling": lambda scores: torch.full_like(scores, -torch.inf)}
    with intervene(layer, scores=change), pytest.raises(UsageError, match="coupling"):
        layer(capsules)
