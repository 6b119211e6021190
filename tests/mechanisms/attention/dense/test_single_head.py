"""Single-head attention on a part of the channels, against its equations."""

import math

import pytest
import torch
from torch import Tensor, nn

import mereo
from mereo.errors import UsageError
from mereo.mechanisms.attention import SingleHeadAttention


def perturbed(dim: int = 6, attended: int = 2, key_dim: int = 3) -> SingleHeadAttention:
    """In eval mode, with no parameter and no running statistic at its start."""
    module = SingleHeadAttention(dim, attended, key_dim)
    with torch.no_grad():
        for tensor in module.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(torch.rand_like(tensor))
    return module.eval()


def normed(x: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    """A vector of channels through a batch normalisation in eval mode."""
    shares = (x - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
    return shares * norm.weight + norm.bias


def by_loops(module: SingleHeadAttention, maps: Tensor) -> Tensor:
    p, d = module.attended, module.key_dim
    output = torch.zeros_like(maps)
    height, width = maps.shape[2:]
    cells = [(row, column) for row in range(height) for column in range(width)]
    for image in range(len(maps)):
        first = maps[image, :p]
        mean, variance = first.mean(), first.var(unbiased=False)
        z = (first - mean) / (variance + 1e-5).sqrt() * module.norm.weight[:, None, None]
        z = z + module.norm.bias[:, None, None]
        weight, norm = module.qkv[0].weight[:, :, 0, 0], module.qkv[1]
        qkv = {cell: normed(weight @ z[:, cell[0], cell[1]], norm) for cell in cells}
        for r in cells:
            scores = [torch.dot(qkv[r][:d], qkv[s][d : 2 * d]).item() / math.sqrt(d) for s in cells]
            total = sum(math.exp(score) for score in scores)
            y = sum(math.exp(score) / total * qkv[s][2 * d :] for score, s in zip(scores, cells, strict=True))
            joined = torch.cat((y, maps[image, p:, r[0], r[1]])).clamp(min=0)
            output[image, :, r[0], r[1]] = normed(module.output[0].weight[:, :, 0, 0] @ joined, module.output[1])
    return output


def test_loops_give_the_same() -> None:
    module, maps = perturbed().double(), torch.randn(2, 6, 2, 3, dtype=torch.float64)
    torch.testing.assert_close(module(maps), by_loops(module, maps))


def test_the_output_starts_as_zero() -> None:
    assert not SingleHeadAttention(8, 3)(torch.randn(2, 8, 4, 4)).any()


def test_cells_in_another_order() -> None:
    module, maps = perturbed(), torch.randn(2, 6, 4, 5)
    order = torch.randperm(20)
    moved = maps.flatten(2)[:, :, order].view_as(maps)
    expected = module(maps).flatten(2)[:, :, order].view_as(maps)
    torch.testing.assert_close(module(moved), expected, rtol=1e-5, atol=1e-5)


def test_the_other_channels_pass_unchanged_and_change_nothing_in_the_first() -> None:
    module, seen = perturbed(), []
    module.output.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    maps = torch.randn(1, 6, 3, 3)
    other = torch.cat((maps[:, :2], torch.randn(1, 4, 3, 3)), 1)
    module(maps), module(other)
    for joined, x in zip(seen, (maps, other), strict=True):
        assert torch.equal(joined[:, 2:], x[:, 2:].relu())
    assert torch.equal(seen[0][:, :2], seen[1][:, :2]) and not torch.equal(seen[0], seen[1])


def test_the_norm_by_hand() -> None:
    module = SingleHeadAttention(2, 1)
    expected = torch.tensor([[[[-1.341635, -0.447212], [0.447212, 1.341635]]]])
    torch.testing.assert_close(module.norm(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])), expected)


def test_with_all_channels_and_identities_it_is_single_head_attention() -> None:
    module = SingleHeadAttention(3, 3, key_dim=3, norm_weight=1.0).eval()
    with torch.no_grad():
        module.qkv[0].weight.copy_(torch.eye(3).repeat(3, 1)[:, :, None, None])
        module.output[0].weight.copy_(torch.eye(3)[:, :, None, None])
        for part in (module.qkv, module.output):
            part[1].running_var.fill_(1 - part[1].eps)
    maps = torch.randn(2, 3, 4, 5)
    z = module.norm(maps).flatten(2).mT
    expected = torch.softmax(z @ z.mT / math.sqrt(3), -1) @ z
    torch.testing.assert_close(module(maps).flatten(2).mT, expected.relu(), rtol=1e-5, atol=1e-5)


def test_couplings_are_of_cells() -> None:
    module = perturbed()
    with mereo.record(module) as trace:
        module(torch.randn(2, 6, 3, 4))
    assert trace["coupling"].shape == (2, 1, 12, 12)


@pytest.mark.parametrize("arguments", [(4, 5), (4, 0)])
def test_attended_channels_are_some_of_the_channels(arguments: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="attended is"):
        SingleHeadAttention(*arguments)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("batch", [1, 2])
def test_gradients_are_those_of_differences(batch: int, training: bool) -> None:
    torch.manual_seed(0)
    layer = SingleHeadAttention(4, 3, key_dim=2, norm_weight=1.0).double().train(training)
    maps = torch.randn(batch, 4, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (maps,))
