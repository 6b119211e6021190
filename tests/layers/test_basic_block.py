"""The basic block of residual networks: both shortcuts against plain operations."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.errors import UsageError
from mereo.layers import BasicBlock, ConvNorm


def convolved(layer: ConvNorm, maps: Tensor, stride: int = 1, padding: int = 1) -> Tensor:
    convolution, norm = layer[0], layer[1]
    made = F.conv2d(maps, convolution.weight, stride=stride, padding=padding)
    return F.batch_norm(made, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)


@torch.no_grad()
@pytest.mark.parametrize("shortcut", ["padding", "projection"])
def test_a_block_that_changes_the_shape(shortcut: str) -> None:
    block, maps = BasicBlock(4, 8, 2, shortcut).eval(), torch.randn(2, 4, 6, 7)
    branch = convolved(block.second, convolved(block.first, maps, 2).relu())
    if shortcut == "padding":
        expected = branch.clone()
        expected[:, 2:6] += maps[:, :, ::2, ::2]
    else:
        expected = branch + convolved(block.projection, maps, 2, 0)
    torch.testing.assert_close(block(maps), expected.relu(), rtol=1e-4, atol=1e-5)


def test_a_block_that_keeps_the_shape_has_no_projection() -> None:
    assert BasicBlock(4, 4, 1, "projection").projection is None
    with pytest.raises(UsageError, match="shortcut is 'none'"):
        BasicBlock(4, 4, 1, "none")
