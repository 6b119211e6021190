"""Merging parts of a softmax: the worked numbers, parts without senders, gradients of the plain and fused forms."""

import pytest
import torch

from mereo.core.distributed import expected_traffic
from mereo.core.distributed.partial import Kernel, empty_sums, merge
from mereo.core.distributed.ring import head_groups
from mereo.errors import UsageError

INFINITY = float("inf")


def test_worked_merge() -> None:
    q, keys = torch.ones(1, 1, 1, 1), torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    out, lse = empty_sums(q, q)
    parts = []
    for k, v in zip(keys, values, strict=True):
        part, part_lse = Kernel(1.0).forward(q, k.view(1, 1, 2, 1), v.view(1, 1, 2, 1), False)
        parts.append((part.item(), part_lse.item()))
        merge(out, lse, part, part_lse)
    assert parts[0] == pytest.approx((1.73106, 1.31326), abs=1e-5)
    assert parts[1] == pytest.approx((3.73106, 3.31326), abs=1e-5)
    assert (out.item(), lse.item()) == pytest.approx((3.49265, 3.44019), abs=1e-5)
    assert out.item() == pytest.approx((keys.flatten().softmax(0) @ values.flatten()).item())


def test_parts_without_senders_change_nothing() -> None:
    out, lse = torch.randn(2, 3, 4), torch.randn(2, 3)
    expected = out.clone(), lse.clone()
    merge(out, lse, torch.zeros(2, 3, 4), torch.full((2, 3), -INFINITY))
    torch.testing.assert_close((out, lse), expected)
    nothing, none = torch.zeros(2, 3, 4), torch.full((2, 3), -INFINITY)
    merge(nothing, none, torch.zeros(2, 3, 4), torch.full((2, 3), -INFINITY))
    assert (nothing == 0).all() and (none == -INFINITY).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("block", [None, 1, 3, 100])
def test_kernels_equal_autograd(causal: bool, block: int | None) -> None:
    q, k, v = (torch.randn(2, 3, 7, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    kernel = Kernel(0.3, block)
    scores = q @ k.mT * 0.3
    if causal:
        scores = scores.masked_fill(torch.ones(7, 7).triu(1).bool(), -INFINITY)
    expected, expected_lse = scores.softmax(-1) @ v, scores.logsumexp(-1)
    out, lse = kernel.forward(q.detach(), k.detach(), v.detach(), causal)
    torch.testing.assert_close((out, lse), (expected, expected_lse))
    grad, grad_lse = torch.randn_like(out), torch.randn_like(lse)
    for given in (None, grad_lse):
        loss = (expected * grad).sum() + (0 if given is None else (expected_lse * given).sum())
        wanted = torch.autograd.grad(loss, (q, k, v), retain_graph=True)
        found = kernel.backward(grad, given, q.detach(), k.detach(), v.detach(), out, lse, causal)
        torch.testing.assert_close(tuple(found), wanted)


def test_worked_traffic() -> None:
    sizes = {"length": 1024, "dim": 512, "ranks": 4}
    assert expected_traffic("ring", **sizes) == expected_traffic("allgather", **sizes) == 786_432
    assert expected_traffic("alltoall", **sizes) == 393_216
    assert expected_traffic("heads", **sizes) == 786_432
    assert expected_traffic("ring", 16, 32, 2) == 512 and expected_traffic("ring", 16, 32, 4) == 768
    assert expected_traffic("ring", 16, 32, 4, backward=True) == 768 + 4 * 2 * 4 * 32
    assert expected_traffic("ring", 16, 32, 1) == 0
    with pytest.raises(UsageError, match="mode"):
        expected_traffic("star", **sizes)


def test_groups_of_heads() -> None:
    assert [(g.start, g.stop) for g in head_groups(16, 2**22)] == [(i, i + 2) for i in range(0, 16, 2)]
    assert list(head_groups(3, 10)) == [slice(0, 3)], "little is sent at once"
    assert [g.stop - g.start for g in head_groups(7, 2**19)] == [2, 2, 2, 1]
