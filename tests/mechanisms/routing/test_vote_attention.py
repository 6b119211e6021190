"""Routing by vote attention, against its equations."""

from typing import Any

import pytest
import torch
from torch import Tensor

import mereo
from mereo.errors import UsageError
from mereo.mechanisms.routing import DynamicRouting, VoteAttentionRouting


def perturbed(*sizes: int, **options: Any) -> VoteAttentionRouting:
    """In float64, with no parameter at its start."""
    module = VoteAttentionRouting(*sizes, **options).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.rand_like(parameter))
    return module


def squashed(vector: Tensor) -> Tensor:
    length = vector.norm()
    return length**2 / (1 + length**2) * vector / length


def by_loops(module: VoteAttentionRouting, children: Tensor) -> Tensor:
    """Without groups."""
    parents, senders, _, dim = module.weight.shape
    attention, images = module.attention, []
    d = attention.key_dim
    for image in children:
        votes = [torch.cat([image[s] @ module.weight[r, s] for r in range(parents)]) for s in range(senders)]
        made = [attention.weight @ vote + attention.bias for vote in votes]
        total = torch.zeros(parents * dim, dtype=image.dtype)
        for r in range(senders):
            grown = [torch.dot(made[r][:d], made[s][d : 2 * d]).exp() for s in range(senders)]
            gathered = sum(g / sum(grown) * made[s][2 * d :] for s, g in enumerate(grown))
            total = total + votes[r] + attention.gamma[0] * gathered
        mean = total if module.reduce == "sum" else total / senders
        images.append(torch.stack([squashed(part) for part in mean.split(dim)]))
    return torch.stack(images)


@pytest.mark.parametrize("reduce", ["mean", "sum"])
@pytest.mark.parametrize("sizes", [(5, 3, 4, 2), (1, 3, 4, 2), (5, 1, 4, 2), (1, 1, 1, 1)])
def test_loops_give_the_same_output_and_gradients(sizes: tuple[int, ...], reduce: str) -> None:
    module = perturbed(*sizes, reduce=reduce)
    children = torch.randn(2, sizes[0], sizes[2], dtype=torch.float64, requires_grad=True)
    output, expected = module(children), by_loops(module, children)
    torch.testing.assert_close(output, expected)
    inputs, weights = [children, *module.parameters()], torch.randn_like(output)
    ours, theirs = (torch.autograd.grad((x * weights).sum(), inputs, allow_unused=True) for x in (output, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


def test_at_the_start_its_sum_is_the_routing_that_counts_every_vote_whole() -> None:
    module, plain = VoteAttentionRouting(200, 5, 6, 8, reduce="sum"), DynamicRouting(200, 5, 6, 8, steps=0)
    with torch.no_grad():
        plain.weight.copy_(module.weight)
    children = torch.randn(3, 200, 6)
    torch.testing.assert_close(module(children), plain(children), rtol=1e-5, atol=1e-6)
    module.reduce = "mean"
    sums = torch.einsum("bsd,rsde->bre", children, module.weight)
    from_mean, from_sum = module(children), plain(children)
    torch.testing.assert_close(from_mean, torch.stack([torch.stack([squashed(x / 200) for x in y]) for y in sums]))
    assert (from_mean.norm(dim=-1) < from_sum.norm(dim=-1)).all()


def test_identical_votes_gather_their_own_value() -> None:
    module = perturbed(6, 3, 4, 2)
    with torch.no_grad():
        module.weight.copy_(module.weight[:, :1].expand_as(module.weight))
    children = torch.randn(2, 1, 4, dtype=torch.float64).expand(-1, 6, -1)
    with mereo.record(module) as trace:
        output = module(children)
    torch.testing.assert_close(trace["attention.coupling"], torch.full((2, 1, 6, 6), 1 / 6, dtype=torch.float64))
    votes = torch.einsum("bd,rde->bre", children[:, 0], module.weight[:, 0]).flatten(1)
    _, _, values = module.attention.project(votes.unsqueeze(1))
    expected = (votes + module.attention.gamma * values.view(2, -1)).unflatten(1, (3, 2))
    torch.testing.assert_close(output, torch.stack([torch.stack([squashed(x) for x in image]) for image in expected]))


def test_per_class_each_parent_has_an_attention_of_its_own() -> None:
    module = perturbed(5, 3, 4, 2, per_class=True)
    children = torch.randn(2, 5, 4, dtype=torch.float64)
    parents = []
    for r in range(3):
        single = VoteAttentionRouting(5, 1, 4, 2).double()
        with torch.no_grad():
            single.weight.copy_(module.weight[r : r + 1])
            for name, parameter in single.attention.named_parameters():
                parameter.copy_(module.attention.get_parameter(name).unflatten(0, (3, -1))[r])
        parents.append(single(children))
    torch.testing.assert_close(module(children), torch.cat(parents, 1))
    assert sum(p.numel() for p in module.attention.parameters()) == 3 * (2 * (2 + 1) + 2 * 2 + 2 + 1)


@pytest.mark.parametrize("per_class", [False, True])
def test_what_children_add_to_each_other(per_class: bool) -> None:
    module, children = perturbed(5, 3, 4, 2, per_class=per_class), torch.randn(2, 5, 4, dtype=torch.float64)
    seen: list[Tensor] = []
    module.attention.register_forward_hook(lambda _, inputs, output: seen.extend((inputs[0], output)))
    with mereo.record(module) as trace:
        module(children)
    couplings = trace["attention.coupling"]
    assert couplings.shape == (2, 3 if per_class else 1, 5, 5)
    votes, attended = seen
    added = module.attention.votes(votes).combine(couplings).mean(1)
    torch.testing.assert_close(votes + added, attended)
    assert trace["coupling"].shape == (2, 1, 3, 5)
    torch.testing.assert_close(trace["coupling"], torch.full((2, 1, 3, 5), 0.2, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [0.0, 1e4, 1e30])
def test_blank_and_huge_children(dtype: torch.dtype, size: float) -> None:
    module = perturbed(5, 3, 4, 2).to(dtype)
    children = (torch.randn(2, 5, 4) * min(size, torch.finfo(dtype).max / 4)).to(dtype).requires_grad_()
    output = module(children)
    output.sum().backward()
    assert output.dtype == dtype and output.isfinite().all()
    assert children.grad is not None and children.grad.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())


def test_many_children_make_no_map() -> None:
    module, children = VoteAttentionRouting(600, 2, 3, 4), torch.randn(1, 600, 3)

    def largest() -> int:
        with torch.profiler.profile(profile_memory=True) as profile:
            module(children).sum().backward()
        return max(event.self_cpu_memory_usage for event in profile.events())

    one_map = 4 * 600 * 600
    assert largest() < one_map / 2
    with mereo.record(module):
        assert largest() >= one_map


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="reduce is 'max'"):
        VoteAttentionRouting(5, 3, 4, 2, reduce="max")
    with pytest.raises(UsageError, match="senders is 0"):
        VoteAttentionRouting(0, 3, 4, 2)
