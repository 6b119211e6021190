"""Primary capsules: SAME padding as TensorFlow defines it, the order of channels and capsules, the depthwise form."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mereo.core import squash, squash_exponential
from mereo.layers.capsules import DepthwisePrimaryCapsules, PaddedConv2d, PrimaryCapsules
from mereo.layers.capsules.primary import same_padding


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "expected"),
    [
        (24, 9, 1, (4, 4)),
        (24, 9, 2, (3, 4)),
        (25, 9, 2, (4, 4)),
        (5, 3, 2, (1, 1)),
        (6, 3, 2, (0, 1)),
        (6, 2, 1, (0, 1)),
        (4, 1, 2, (0, 0)),
        (7, 2, 4, (0, 0)),
        (1, 9, 2, (4, 4)),
    ],
)
def test_same_padding(size: int, kernel: int, stride: int, expected: tuple[int, int]) -> None:
    assert same_padding(size, kernel, stride) == expected


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel", [2, 3, 5])
@pytest.mark.parametrize("sides", [(6, 7), (5, 10), (1, 2)])
@torch.no_grad()
def test_same_padding_against_loops(sides: tuple[int, int], kernel: int, stride: int) -> None:
    conv = PaddedConv2d(2, 3, kernel, stride, same=True).double()
    image = torch.randn(1, 2, *sides, dtype=torch.float64)
    out = [-(-side // stride) for side in sides]
    # The first window starts half of the missing zeros before the image, rounded down.
    starts = [-(max((o - 1) * stride + kernel - side, 0) // 2) for o, side in zip(out, sides, strict=True)]
    expected = conv.bias.view(1, 3, 1, 1).expand(1, 3, *out).clone()
    for i in range(out[0]):
        for j in range(out[1]):
            for y in range(kernel):
                for x in range(kernel):
                    row, column = starts[0] + i * stride + y, starts[1] + j * stride + x
                    if 0 <= row < sides[0] and 0 <= column < sides[1]:
                        expected[0, :, i, j] += conv.weight[:, :, y, x] @ image[0, :, row, column]
    torch.testing.assert_close(conv(image), expected)


def test_without_padding_it_is_an_ordinary_convolution() -> None:
    conv, image = PaddedConv2d(2, 3, 3, 2, same=False), torch.randn(2, 2, 8, 9)
    assert torch.equal(conv(image), F.conv2d(image, conv.weight, conv.bias, 2))


@pytest.mark.parametrize("same", [False, True])
@torch.no_grad()
def test_order_of_channels_and_capsules(same: bool) -> None:
    types, dim = 3, 4
    primary = PrimaryCapsules(2, types, dim, kernel=3, stride=2, same=same)
    image = torch.randn(2, 2, 9, 6)
    maps = primary.conv(image)
    rows, columns = maps.shape[2:]
    assert (rows, columns) == ((5, 3) if same else (4, 2))
    capsules = primary(image)
    assert capsules.shape == (2, types * rows * columns, dim)
    for kind in range(types):
        for row in range(rows):
            for column in range(columns):
                atoms = torch.stack([maps[:, kind * dim + atom, row, column] for atom in range(dim)], -1)
                torch.testing.assert_close(capsules[:, (kind * rows + row) * columns + column], squash(atoms))


@torch.no_grad()
def test_depthwise_capsules_against_loops() -> None:
    primary = DepthwisePrimaryCapsules(6, 3, (2, 3))
    primary.bias.normal_()
    maps = torch.randn(2, 6, 2, 3)
    capsules = primary(maps)
    assert capsules.shape == (2, 2, 3)
    for b in range(2):
        for n in range(2):
            atoms = torch.stack(
                [(maps[b, n * 3 + a] * primary.weight[n * 3 + a, 0]).sum() + primary.bias[n * 3 + a] for a in range(3)]
            )
            torch.testing.assert_close(capsules[b, n], squash_exponential(atoms))


@torch.no_grad()
def test_a_depthwise_kernel_smaller_than_the_map_reads_its_top_left() -> None:
    primary = DepthwisePrimaryCapsules(4, 2, (5, 5))
    maps = torch.randn(2, 4, 6, 6)
    changed = maps.clone()
    changed[..., 5, :], changed[..., :, 5] = 7, 7
    assert torch.equal(primary(maps), primary(changed))
    atoms = F.conv2d(maps, primary.weight, primary.bias, stride=2, groups=4)
    torch.testing.assert_close(primary(maps), squash_exponential(atoms.view(2, 2, 2)), rtol=1e-5, atol=1e-6)


def test_start_of_the_depthwise_kernel() -> None:
    torch.manual_seed(0)
    primary = DepthwisePrimaryCapsules(128, 8, (9, 9))
    # As PyTorch counts the fans of (128, 1, 9, 9): 81 in, 128 * 81 out.
    bound = (6 / (81 + 128 * 81)) ** 0.5
    assert 0.99 * bound < primary.weight.abs().max() <= bound
    assert (primary.bias == 0).all()


@pytest.mark.parametrize("make", [lambda: PrimaryCapsules(2, 2, 3, 3), lambda: DepthwisePrimaryCapsules(2, 2, (5, 5))])
def test_blank_maps_have_finite_gradients(make: Callable[[], nn.Module]) -> None:
    primary = make()
    for parameter in primary.parameters():
        nn.init.zeros_(parameter)
    maps = torch.zeros(1, 2, 5, 5, requires_grad=True)
    capsules = primary(maps)
    capsules.sum().backward()
    assert (capsules == 0).all() and maps.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in primary.parameters())
