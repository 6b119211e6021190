"""Class capsules of sets of different pose sizes, against loops over children and classes."""

from typing import Any

import pytest
import torch
from torch import Tensor

import mereo
from mereo.core import route_by_agreement
from mereo.core.coupling import Coupling
from mereo.errors import UsageError
from mereo.layers.capsules import MultiDimClassCaps

SENDERS, DIMS = (3, 2, 4), (2, 3, 5)
VARIANTS = ("classical", "public")


def layer(**options: Any) -> MultiDimClassCaps:
    torch.manual_seed(0)
    return MultiDimClassCaps(SENDERS, DIMS, 4, 6, **options).double()


def sets(batch: int = 2) -> list[Tensor]:
    return [torch.randn(batch, n, d, dtype=torch.float64) for n, d in zip(SENDERS, DIMS, strict=True)]


def slow_squash(s: Tensor) -> Tensor:
    square = (s**2).sum()
    return square / (1 + square) * s / square.sqrt()


def slow(caps: MultiDimClassCaps, children: list[Tensor], kept: list[list[bool]] | None = None) -> Tensor:
    """Of every image and class by itself, from the equations; children that are not kept do not exist."""
    images = []
    for b in range(len(children[0])):
        votes = []  # by child: one vote for each class
        for number, (poses, weight) in enumerate(zip(children, caps.weights, strict=True)):
            for s in range(poses.shape[1]):
                there = kept is None or kept[number][s]
                votes += [[poses[b, s] @ weight[r, s] for r in range(4)]] if there else []
        count, b_rs = len(votes), torch.zeros(4, len(votes), dtype=torch.float64)
        if caps.variant == "classical":
            for _ in range(caps.steps):
                c = torch.stack([b_rs[:, s].exp() / b_rs[:, s].exp().sum() for s in range(count)], 1)
                v = [slow_squash(sum(c[r, s] * votes[s][r] for s in range(count))) for r in range(4)]
                b_rs = b_rs + torch.stack([torch.stack([votes[s][r] @ v[r] for s in range(count)]) for r in range(4)])
        else:
            b_rs = b_rs + 1
            v = [slow_squash(sum(votes[s][r] for s in range(count))) for r in range(4)]
            for _ in range(caps.steps):
                b_rs = b_rs + torch.stack([torch.stack([votes[s][r] @ v[r] for s in range(count)]) for r in range(4)])
                c = torch.stack([b_rs[r].exp() / b_rs[r].exp().sum() for r in range(4)])
                v = [slow_squash(sum(c[r, s] * votes[s][r] for s in range(count))) for r in range(4)]
        images.append(torch.stack(v))
    return torch.stack(images)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("steps", [1, 3])
def test_equals_loops_with_gradients(variant: str, steps: int) -> None:
    caps, children = layer(variant=variant, steps=steps), sets()
    for poses in children:
        poses.requires_grad_()
    given, by = torch.randn(2, 4, 6, dtype=torch.float64), (*children, *caps.weights)
    routed, expected = caps(children), slow(caps, children)
    torch.testing.assert_close(routed, expected)
    ours, theirs = (torch.autograd.grad((out * given).sum(), by) for out in (routed, expected))
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other)


@torch.no_grad()
@pytest.mark.parametrize("variant", VARIANTS)
def test_masked_children_do_not_exist(variant: str) -> None:
    caps, children = layer(variant=variant), sets()
    kept = [[True, False, True], [True, True], [False, True, True, False]]
    masks = [torch.tensor([row] * 2) for row in kept]
    masked = caps(children, masks)
    torch.testing.assert_close(masked, slow(caps, children, kept))
    children[0][:, 1], children[2][:, 3] = 1e3, -1e3
    assert torch.equal(caps(children, masks), masked)
    torch.testing.assert_close(caps(children, [None, masks[1], None]), caps(children))
    with mereo.record(caps) as trace:
        nothing = caps(children, [torch.zeros_like(mask) for mask in masks])
    assert torch.equal(nothing, torch.zeros_like(nothing)) and trace["coupling"].isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_order_of_children_does_not_matter(variant: str) -> None:
    caps, children = layer(variant=variant), sets()
    expected = caps(children)
    order = torch.tensor([2, 3, 0, 1])
    children[2] = children[2][:, order]
    caps.weights[2].copy_(caps.weights[2][:, order])
    torch.testing.assert_close(caps(children), expected)


@torch.no_grad()
@pytest.mark.parametrize(("variant", "axis", "passes"), [("classical", 2, 3), ("public", 3, 3)])
def test_couplings_sum_to_one_and_come_to_act(variant: str, axis: int, passes: int) -> None:
    caps, children = layer(variant=variant), sets()
    plain = caps(children)
    with mereo.record(caps) as trace:
        torch.testing.assert_close(caps(children), plain)
    couplings = trace.steps("coupling")
    assert [c.shape for c in couplings] == [(2, 1, 4, 9)] * passes
    for c in couplings:
        total = c.sum(axis)
        torch.testing.assert_close(total, torch.ones_like(total))
    if variant == "classical":
        torch.testing.assert_close(couplings[0], torch.full_like(couplings[0], 0.25))
    else:
        assert torch.equal(trace["start"], torch.ones_like(trace["start"]))
    votes = caps.votes(children).dense()
    v = (couplings[-1].unsqueeze(-1) * votes).sum(3).squeeze(1)
    torch.testing.assert_close(plain, v * v.norm(dim=-1, keepdim=True) / (1 + v.square().sum(-1, keepdim=True)))
    with mereo.intervene(caps, dict.fromkeys(trace, torch.zeros_like)):
        assert not caps(children).any()


@torch.no_grad()
def test_is_dynamic_routing_where_all_poses_have_one_size() -> None:
    torch.manual_seed(0)
    caps = MultiDimClassCaps((3, 2), (4, 4), 5, 6).double()
    children = [torch.randn(2, n, 4, dtype=torch.float64) for n in (3, 2)]
    votes, coupling = caps.votes(children), Coupling("receivers")
    expected = route_by_agreement(votes, coupling, torch.zeros(2, 1, 5, 5, dtype=torch.float64), 3).squeeze(1)
    torch.testing.assert_close(caps(children), expected)


def test_dropout_keeps_the_expected_sum_of_votes() -> None:
    caps, children = layer(capsule_drop=0.5, steps=1), sets(1)
    couplings = torch.rand(1, 1, 4, 9, dtype=torch.float64)
    torch.manual_seed(0)
    with torch.no_grad():
        whole = caps.votes(children).combine(couplings)
        dropped = [caps.dropout(poses.expand(20_000, -1, -1)) for poses in children]
        mean = caps.votes(dropped).combine(couplings.expand(20_000, -1, -1, -1)).mean(0, keepdim=True)
        torch.testing.assert_close(mean, whole, rtol=0.05, atol=0.1)
        assert not torch.equal(caps(children), caps(children))
        caps.eval()
        assert torch.equal(caps(children), layer(steps=1)(children))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
def test_nothing_is_nan(variant: str, dtype: torch.dtype, scale: float) -> None:
    caps = layer(variant=variant).to(dtype)
    children = [(poses * scale).to(dtype).requires_grad_() for poses in sets()]
    out = caps(children)
    out.float().sum().backward()
    assert out.dtype == dtype and out.isfinite().all()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (*children, *caps.parameters()))
    if scale == 1.0:
        exact = layer(variant=variant)([poses.detach().double() for poses in children])
        limit = 1e-4 if dtype == torch.float32 else 0.03
        assert (out.double() - exact).abs().max() < limit


def test_one_child_and_one_class() -> None:
    caps, pose = MultiDimClassCaps((1,), (2,), 1, 3), torch.randn(2, 1, 2)
    s = (pose @ caps.weights[0][0]).squeeze(1)
    torch.testing.assert_close(
        caps([pose]).squeeze(1), s * s.norm(dim=-1, keepdim=True) / (1 + s.square().sum(-1, True))
    )
    assert caps([pose[:0]]).shape == (0, 1, 3)


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="variant is 'mean'"):
        layer(variant="mean")
    with pytest.raises(UsageError, match="senders is"):
        MultiDimClassCaps((3, 2), (2,), 4)
    with pytest.raises(UsageError, match="2 sets of children"):
        layer()(sets()[:2])
