"""Position attention, against its equations."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import mereo
from mereo.core.kernels.attention import FEW_PAIRS
from mereo.errors import UsageError
from mereo.mechanisms.attention import PositionAttention


def perturbed(*arguments: int, **options: Any) -> PositionAttention:
    """In float64, with no parameter at its start."""
    module = PositionAttention(*arguments, **options).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.rand_like(parameter))
    return module


def by_loops(module: PositionAttention, maps: Tensor) -> Tensor:
    """One group."""
    places = [(row, column) for row in range(maps.shape[2]) for column in range(maps.shape[3])]
    d, images = module.key_dim, []
    for image in maps:
        made = {place: module.weight @ image[:, place[0], place[1]] + module.bias for place in places}
        columns = []
        for r in places:
            grown = [(torch.dot(made[r][:d], made[s][d : 2 * d]) * module.scale).exp() for s in places]
            shares = [g / sum(grown) for g in grown]
            gathered = sum(share * made[s][2 * d :] for share, s in zip(shares, places, strict=True))
            columns.append(image[:, r[0], r[1]] + module.gamma[0] * gathered)
        images.append(torch.stack(columns, 1).view_as(image))
    return torch.stack(images)


@pytest.mark.parametrize("scale", [False, True])
def test_loops_give_the_same_output_and_gradients(scale: bool) -> None:
    module, maps = perturbed(5, 2, scale=scale), torch.randn(2, 5, 2, 3, dtype=torch.float64, requires_grad=True)
    assert module.scale == (2**-0.5 if scale else 1)
    output, expected, weights = module(maps), by_loops(module, maps), torch.randn(2, 5, 2, 3, dtype=torch.float64)
    torch.testing.assert_close(output, expected)
    inputs = [maps, *module.parameters()]
    ours, theirs = (torch.autograd.grad((x * weights).sum(), inputs) for x in (output, expected))
    # The bias of the keys has no part in the shares, so that its gradient is zero but for rounding.
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_two_places_by_hand() -> None:
    module = PositionAttention(1, 1)
    with torch.no_grad():
        # At the values 1 and 0: queries (1, 0), keys (2, 1), values (3, 5).
        module.weight.copy_(torch.tensor([[1.0], [1.0], [-2.0]]))
        module.bias.copy_(torch.tensor([0.0, 1.0, 5.0]))
        module.gamma.fill_(1)
    maps = torch.tensor([1.0, 0.0]).view(1, 1, 1, 2)
    with mereo.record(module) as trace:
        output = module(maps)
    torch.testing.assert_close(trace["coupling"][0, 0], torch.tensor([[0.731059, 0.268941], [0.5, 0.5]]))
    torch.testing.assert_close((output - maps).flatten(), torch.tensor([3.537883, 4.0]))
    torch.testing.assert_close(module(maps), output)


def test_it_starts_as_the_identity() -> None:
    maps = torch.randn(2, 16, 3, 4)
    assert torch.equal(PositionAttention(16)(maps), maps)


def test_each_matrix_starts_as_xavier() -> None:
    for group in PositionAttention(160, groups=2).weight.unflatten(0, (2, -1)):
        for matrix in group.split((10, 10, 80)):
            bound = (6 / (len(matrix) + 80)) ** 0.5
            assert 0.98 * bound < matrix.abs().max() <= bound


@pytest.mark.parametrize(
    ("arguments", "options", "count"),
    [((256,), {}, 82_241), ((160,), {}, 2 * (160 * 20 + 20) + 160 * 160 + 160 + 1), ((6, 2), {"groups": 3}, 3 * 19)],
)
def test_counts(arguments: tuple[int, ...], options: dict[str, int], count: int) -> None:
    assert sum(p.numel() for p in PositionAttention(*arguments, **options).parameters()) == count


def test_rows_sum_to_one_and_the_order_of_the_places_is_free() -> None:
    module, maps, order = perturbed(6, 3), torch.randn(2, 6, 4, 5, dtype=torch.float64), torch.randperm(20)
    moved = maps.flatten(2)[:, :, order].view_as(maps)
    with mereo.record(module) as trace:
        output, then = module(maps), module(moved)
    before, after = trace.steps("coupling")
    torch.testing.assert_close(before.sum(-1), torch.ones(2, 1, 20, dtype=torch.float64))
    torch.testing.assert_close(after, before[:, :, order][..., order])
    torch.testing.assert_close(then, output.flatten(2)[:, :, order].view_as(maps))


def test_sources_in_another_order_change_columns_only() -> None:
    module, tokens, order = perturbed(6, 3), torch.randn(2, 7, 6, dtype=torch.float64), torch.randperm(7)
    queries, keys, values = module.project(tokens)
    shares = module.coupling(queries @ keys.mT)
    moved = module.coupling(queries @ keys[:, :, order].mT)
    torch.testing.assert_close(moved, shares[..., order])
    torch.testing.assert_close(moved @ values[:, :, order], shares @ values)


def test_on_a_constant_map_the_gathered_are_the_values() -> None:
    module, vector = perturbed(6, 3), torch.randn(1, 6, 1, 1, dtype=torch.float64)
    _, _, values = module.project(vector.flatten(2).mT)
    gathered = module(vector.expand(-1, -1, 3, 4)) - vector
    torch.testing.assert_close(gathered, (module.gamma * values).view(1, 6, 1, 1).expand(-1, -1, 3, 4))


def test_groups_are_modules_of_their_own() -> None:
    module, maps = perturbed(6, 3, groups=2), torch.randn(2, 6, 2, 3, dtype=torch.float64)
    parts = []
    for group, channels in enumerate(maps.split(3, 1)):
        single = PositionAttention(3, 3).double()
        with torch.no_grad():
            for name, parameter in single.named_parameters():
                parameter.copy_(module.get_parameter(name).unflatten(0, (2, -1))[group])
        parts.append(single(channels))
    torch.testing.assert_close(module(maps), torch.cat(parts, 1))
    with mereo.record(module) as trace:
        module(maps)
    assert trace["coupling"].shape == (2, 2, 6, 6)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [(torch.float32, 0.0), (torch.float32, 1e30), (torch.bfloat16, 1e30), (torch.float16, 6e4), (torch.float16, 0.0)],
)
@pytest.mark.parametrize("places", [(3, 4), (1, 1)])
def test_blank_and_huge_maps_are_finite(dtype: torch.dtype, size: float, places: tuple[int, int]) -> None:
    module = perturbed(8, 2).to(dtype)
    with torch.no_grad():
        module.gamma.fill_(0.25)
    maps = (size * torch.rand(2, 8, *places)).to(dtype).requires_grad_()
    output = module(maps)
    output.sum().backward()
    assert not output.isnan().any() and maps.grad is not None and maps.grad.isfinite().all()


def test_one_place_adds_its_own_value() -> None:
    module, maps = perturbed(6, 3), torch.randn(2, 6, 1, 1, dtype=torch.float64)
    _, _, values = module.project(maps.flatten(2).mT)
    torch.testing.assert_close(module(maps), maps + module.gamma * values.reshape(2, 6, 1, 1))


def test_a_negligible_share_has_a_finite_gradient() -> None:
    module = perturbed(2, 1)
    with torch.no_grad():
        module.weight[:2] *= 30
    maps = torch.tensor([[3.0, -3.0], [1.0, 0.0]], dtype=torch.float64).view(1, 2, 1, 2).requires_grad_()
    with mereo.record(module) as trace:
        module(maps).sum().backward()
    assert trace["coupling"].min() < 1e-12
    assert maps.grad is not None and maps.grad.isfinite().all()


def test_the_map_of_many_places_is_not_made() -> None:
    """The fused call, for which queries and keys are widened, gives the same outputs and gradients."""
    module, side = perturbed(9, 2).float(), math.isqrt(math.isqrt(FEW_PAIRS)) + 1
    maps = torch.randn(1, 9, side, side, requires_grad=True)
    with torch.profiler.profile() as profile:
        output = module(maps)
        output.square().sum().backward()
    names = {event.key for event in profile.key_averages()}
    assert any("flash_attention_for_cpu" in name for name in names)
    assert not any("softmax" in name for name in names)
    fused = [maps.grad, *(p.grad for p in module.parameters())]
    maps.grad = None
    module.zero_grad()
    with mereo.record(module):
        watched = module(maps)
        watched.square().sum().backward()
    torch.testing.assert_close(output, watched, rtol=1e-4, atol=1e-4)
    for ours, plain in zip(fused, [maps.grad, *(p.grad for p in module.parameters())], strict=True):
        assert ours is not None and plain is not None
        torch.testing.assert_close(ours, plain, rtol=1e-3, atol=1e-3 * float(plain.abs().max()))


@pytest.mark.parametrize(
    ("arguments", "options", "named"),
    [((6,), {"groups": 4}, "dim is 6"), ((6, 0), {}, "key_dim is 0"), ((0,), {}, "dim is 0")],
)
def test_wrong_arguments(arguments: tuple[int, ...], options: dict[str, int], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        PositionAttention(*arguments, **options)
