"""Routing by 3-D convolution: the 3-D form, loops, reductions, symmetry, zero and huge maps, precision, refusals."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.core import record
from mereo.errors import UsageError
from mereo.mechanisms.routing import Convolution3DRouting

D = torch.float64


def some(types: int = 4, **options: Any) -> tuple[Convolution3DRouting, Tensor]:
    torch.manual_seed(0)
    module = Convolution3DRouting(3, 2, 5, **options).double()
    torch.nn.init.normal_(module.bias)
    return module, torch.randn(2, types, 3, 4, 3, dtype=D)


@pytest.mark.parametrize(("stride", "kernel"), [(1, 3), (2, 3), (1, 1)])
def test_votes_are_those_of_a_3d_convolution(stride: int, kernel: int) -> None:
    module, maps = some(stride=stride, kernel=kernel)
    volume = maps.flatten(1, 2).unsqueeze(1)
    weight = module.weight.flatten(0, 1).unsqueeze(1)
    padding = (0, kernel // 2, kernel // 2)
    votes = F.conv3d(volume, weight, stride=(3, stride, stride), padding=padding)
    expected = votes.unflatten(1, (2, 5)).permute(0, 3, 1, 2, 4, 5)
    torch.testing.assert_close(module.votes_of(maps), expected, rtol=0, atol=1e-6)


def squashed(s: Tensor) -> Tensor:
    square = (s**2).sum()
    return square / (1 + square) * s / square.sqrt()


def by_loops(module: Convolution3DRouting, maps: Tensor) -> Tensor:
    """The passes with indices, differentiable."""
    out = []
    for votes in module.votes_of(maps):
        I, J, _, H, W = votes.shape  # noqa: E741
        b = torch.zeros(I, J, H, W, dtype=D)
        for _ in range(module.steps):
            c = torch.stack([b[i].exp() / b[i].exp().sum() for i in range(I)])
            parents = []
            for j in range(J):
                s = module.bias[j][:, None, None] + sum(c[i, j] * votes[i, j] for i in range(I))
                parents.append(squashed(s))
            b = b + torch.stack([torch.stack([(votes[i, j] * parents[j]).sum(0) for j in range(J)]) for i in range(I)])
        out.append(torch.stack(parents))
    return torch.stack(out)


@pytest.mark.parametrize("options", [{"steps": 1}, {"steps": 3}, {"steps": 4, "stride": 2}], ids=str)
def test_equals_loops_with_gradients(options: dict[str, Any]) -> None:
    module, maps = some(**options)
    inputs = (maps.requires_grad_(), *module.parameters())
    fast, slow = module(maps), by_loops(module, maps)
    torch.testing.assert_close(fast, slow)
    weights = torch.randn_like(slow)
    for got, expected in zip(*(torch.autograd.grad((x * weights).sum(), inputs) for x in (fast, slow)), strict=True):
        torch.testing.assert_close(got, expected)


def test_one_pass_couples_all_parents_and_positions_alike() -> None:
    module, maps = some(steps=1)
    with record(module) as trace:
        parents = module(maps)
    torch.testing.assert_close(trace["coupling"], torch.full((2, 1, 2 * 12, 4), 1 / 24, dtype=D))
    sums = module.votes_of(maps).sum(1) / 24 + module.bias[..., None, None]
    torch.testing.assert_close(parents[0, 1], squashed(sums[0, 1]))


def test_couplings_of_a_type_sum_to_one_over_parents_and_positions() -> None:
    module, maps = some()
    with record(module) as trace:
        parents = module(maps)
    for couplings in trace.steps("coupling"):
        torch.testing.assert_close(couplings.sum(2), torch.ones(2, 1, 4, dtype=D))
    assert (parents.flatten(2).norm(dim=-1) < 1).all()


def test_the_order_of_child_types_does_not_matter() -> None:
    module, maps = some()
    torch.testing.assert_close(module(maps[:, [2, 0, 3, 1]]), module(maps))


def test_one_type_of_children_and_of_parents() -> None:
    module, maps = some(1)
    torch.testing.assert_close(module(maps), by_loops(module, maps))
    single = Convolution3DRouting(3, 1, 5).double()
    torch.testing.assert_close(single(maps), by_loops(single, maps))


@pytest.mark.parametrize("scale", [0.0, 1e4, 1e30])
def test_zero_and_huge_maps_are_finite(scale: float) -> None:
    module, maps = some()
    module, maps = module.float(), (scale * maps).float().requires_grad_()
    parents = module(maps)
    parents.sum().backward()
    assert parents.isfinite().all() and maps.grad is not None and maps.grad.isfinite().all()


def test_zero_votes_without_a_bias_give_zero() -> None:
    module, maps = some()
    module.bias.data.zero_()
    assert module(torch.zeros_like(maps)).abs().max() < 1e-12


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    module, maps = some()
    expected = module(maps)
    got = module.to(dtype)(maps.to(dtype))
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), expected, rtol=0.05, atol=0.02)


def test_start() -> None:
    module = Convolution3DRouting(8, 32, 8)
    assert module.weight.std().item() == pytest.approx((2 / 72) ** 0.5, rel=0.02) and (module.bias == 0.1).all()
    assert [p.numel() for p in module.parameters()] == [18_432, 256]


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="steps is 0"):
        Convolution3DRouting(3, 2, 5, steps=0)
    module, maps = some()
    with pytest.raises(UsageError, match=r"maps are \(2, 4, 2, 4, 3\)"):
        module(maps[:, :, :2])
