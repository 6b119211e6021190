"""The inverted bottleneck against its equations and against the other ways that it is computed."""

import math

import pytest
import torch
from torch import Tensor, nn

from mereo.errors import UsageError
from mereo.layers import InvertedBottleneck
from mereo.layers.inverted_bottleneck import same_padding
from mereo.models.folding import folded


def trained(*sizes: int, **options: str) -> InvertedBottleneck:
    block = InvertedBottleneck(*sizes, activation=nn.SiLU, **options)
    with torch.no_grad():
        for parameter in block.parameters():
            nn.init.normal_(parameter, std=0.5)
        for norm in (block.norm, block.wide_norm, block.mixed_norm):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
    return block.double().eval()


def by_loops(block: InvertedBottleneck, x: Tensor, before: int) -> Tensor:
    """The equations, cell by cell, with a given number of zero cells before the map."""

    def norm(value: Tensor, layer: nn.BatchNorm2d) -> Tensor:
        return (value - layer.running_mean) / (layer.running_var + layer.eps).sqrt() * layer.weight + layer.bias

    def silu(value: Tensor) -> Tensor:
        return value / (1 + (-value).exp())

    batch, _, height, width = x.shape
    step = block.stride
    rows, columns = height // step, width // step
    out = x.new_zeros(batch, len(block.narrow.weight), rows, columns)
    for image in range(batch):
        wide = {}
        for i in range(height):
            for j in range(width):
                wide[i, j] = silu(norm(block.widen.weight @ norm(x[image, :, i, j], block.norm), block.wide_norm))
        mixed = {}
        for i in range(rows):
            for j in range(columns):
                total = torch.zeros_like(wide[0, 0])
                for a in range(3):
                    for b in range(3):
                        cell = wide.get((i * step + a - before, j * step + b - before))
                        total = total if cell is None else total + block.depthwise.weight[:, 0, a, b] * cell
                mixed[i, j] = silu(norm(total, block.mixed_norm))
        mean = sum(mixed.values()) / len(mixed)
        squeeze, excite = (layer.weight.flatten(1) for layer in (block.gate.squeeze, block.gate.excite))
        hidden = silu(squeeze @ mean + block.gate.squeeze.bias)
        gate = 1 / (1 + (-(excite @ hidden + block.gate.excite.bias)).exp())
        for (i, j), cell in mixed.items():
            branch = block.narrow.weight @ (gate * cell)
            if block.narrow.bias is not None:
                branch = branch + block.narrow.bias
            patch = x[image, :, i * step : (i + 1) * step, j * step : (j + 1) * step].mean((1, 2))
            if block.project is not None:
                patch = block.project.weight @ patch + (0 if block.project.bias is None else block.project.bias)
            out[image, :, i, j] = patch + branch
    return out


@pytest.mark.parametrize(
    ("sizes", "padding", "before"),
    [((4, 4, 6, 2), "same", 1), ((4, 4, 6, 2, 2), "same", 0), ((4, 6, 8, 2, 2), "symmetric", 1)],
)
def test_loops_give_the_same(sizes: tuple[int, ...], padding: str, before: int) -> None:
    block = trained(*sizes, padding=padding)
    x = torch.randn(2, 4, 6, 4, dtype=torch.float64)
    torch.testing.assert_close(block(x), by_loops(block, x, before))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("padding", ["same", "symmetric"])
def test_every_way_to_compute_it_gives_the_same(stride: int, padding: str) -> None:
    block = trained(8, 8, 16, 4, stride, padding=padding).float()
    x = torch.randn(2, 8, 8, 6)
    expected = block(x)  # keeps what gradients need
    ready = folded(nn.Sequential(block))
    assert not any(isinstance(module, nn.BatchNorm2d) for module in ready.modules())
    with torch.no_grad():
        for way in (block(x), ready(x), block(x.to(memory_format=torch.channels_last))):
            torch.testing.assert_close(way, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ready.double()(x.double()).float(), expected, atol=1e-5, rtol=1e-5)


def test_training_normalises_by_the_batch() -> None:
    block, x = trained(4, 4, 6, 2).train(), torch.randn(3, 4, 4, 4, dtype=torch.float64)
    out = block(x)
    with torch.no_grad():
        for norm in (block.norm, block.wide_norm, block.mixed_norm):
            norm.momentum = None
            norm.reset_running_stats()
        block(x)
        # Statistics of one batch, with the biased variance that training divides by.
        for norm, count in ((block.norm, 48), (block.wide_norm, 48), (block.mixed_norm, 48)):
            norm.running_var.mul_((count - 1) / count)
    torch.testing.assert_close(block.eval()(x), out)


@pytest.mark.parametrize(
    ("size", "stride", "expected"), [(8, 2, (0, 1)), (7, 2, (1, 1)), (7, 1, (1, 1)), (1, 1, (1, 1))]
)
def test_same_padding_is_that_of_tensorflow(size: int, stride: int, expected: tuple[int, int]) -> None:
    assert same_padding(size, 3, stride) == expected
    assert (size + sum(expected) - 3) // stride + 1 == math.ceil(size / stride)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match="stride is 1, from 4 to 6 channels"):
        InvertedBottleneck(4, 6, 8, 2)
    with pytest.raises(UsageError, match="even height"):
        InvertedBottleneck(4, 4, 8, 2, 2)(torch.randn(1, 4, 5, 4))
    with pytest.raises(UsageError, match="padding is 'valid'"):
        InvertedBottleneck(4, 4, 8, 2, padding="valid")
