"""The Res2Net block with its gate: loops over groups, the ordinary bottleneck, a half-open gate, sizes, refusals."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.errors import UsageError
from mereo.layers import ConvNorm, Res2SEBlock

D = torch.float64


def some(inputs: int, outputs: int, stride: int = 1, scale: int = 4) -> tuple[Res2SEBlock, Tensor]:
    torch.manual_seed(0)
    block = Res2SEBlock(inputs, outputs, stride, scale, 2).double()
    maps = torch.randn(2, inputs, 5, 6, dtype=D)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        block(maps)
    return block.eval(), maps


def applied(layer: ConvNorm, maps: Tensor, stride: int = 1) -> Tensor:
    convolution, norm = layer[0], layer[1]
    made = F.conv2d(maps, convolution.weight, None, stride, convolution.kernel_size[0] // 2)
    made = F.batch_norm(made, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
    return made.relu() if len(layer) > 2 else made


def gated(block: Res2SEBlock, maps: Tensor) -> Tensor:
    means = maps.mean((2, 3))
    hidden = (means @ block.gate.squeeze.weight.flatten(1).mT + block.gate.squeeze.bias).relu()
    scores = hidden @ block.gate.excite.weight.flatten(1).mT + block.gate.excite.bias
    return maps / (1 + (-scores).exp())[..., None, None]


@pytest.mark.parametrize(("inputs", "outputs", "stride"), [(8, 8, 1), (3, 8, 1), (8, 8, 2), (3, 8, 2)])
@pytest.mark.parametrize("scale", [1, 2, 4])
def test_equals_its_equations_with_gradients(inputs: int, outputs: int, stride: int, scale: int) -> None:
    block, maps = some(inputs, outputs, stride, scale)
    maps.requires_grad_()
    entered, width = applied(block.enter, maps), outputs // scale
    made: list[Tensor] = []
    for k in range(scale):
        group = entered[:, k * width : (k + 1) * width]
        if scale == 1:
            made.append(applied(block.groups[0], group, stride))
        elif k == 0:
            made.append(group if stride == 1 else F.avg_pool2d(group, 3, stride, 1))
        else:
            chained = k > 1 and stride == 1
            made.append(applied(block.groups[k - 1], group + made[-1] if chained else group, stride))
    branch = gated(block, applied(block.leave, torch.cat(made, 1)))
    same = stride == 1 and inputs == outputs
    expected = (branch + (maps if same else applied(block.shortcut, maps, stride))).relu()
    got = block(maps)
    assert got.shape == (2, outputs, -(-5 // stride), 6 // stride)
    torch.testing.assert_close(got, expected)
    weights, given = torch.randn_like(expected), (maps, *block.parameters())
    pairs = (torch.autograd.grad((x * weights).sum(), given) for x in (got, expected))
    for ours, theirs in zip(*pairs, strict=True):
        torch.testing.assert_close(ours, theirs)


@torch.no_grad()
@pytest.mark.parametrize("stride", [1, 2])
def test_equals_the_block_of_timm(stride: int) -> None:
    """There the group that passes unchanged, or pooled, is the last one."""
    res2net = pytest.importorskip("timm.models.res2net")
    from timm.layers import SEModule

    block, maps = some(8, 8, stride)
    gate = partial(SEModule, rd_channels=4)
    short = None if stride == 1 else nn.Sequential(*list(block.shortcut)[:2])
    arguments = {"stride": stride, "downsample": short, "base_width": 64, "norm_layer": nn.BatchNorm2d}
    theirs = res2net.Bottle2neck(8, 2, scale=4, attn_layer=gate, **arguments).double().eval()
    order = torch.arange(8).roll(-2)
    norms = [(theirs.bn1, block.enter[1], order), (theirs.bn3, block.leave[1], torch.arange(8))]
    theirs.conv1.weight.copy_(block.enter[0].weight[order])
    theirs.conv3.weight.copy_(block.leave[0].weight[:, order])
    for conv, norm, group in zip(theirs.convs, theirs.bns, block.groups, strict=True):
        conv.weight.copy_(group[0].weight)
        norms.append((norm, group[1], torch.arange(2)))
    for norm, ours, channels in norms:
        norm.load_state_dict({k: v if v.dim() == 0 else v[channels] for k, v in ours.state_dict().items()})
    for their, own in ((theirs.se.fc1, block.gate.squeeze), (theirs.se.fc2, block.gate.excite)):
        their.weight.copy_(own.weight.view_as(their.weight))
        their.bias.copy_(own.bias)
    torch.testing.assert_close(theirs(maps), block(maps))


def test_one_group_is_the_ordinary_bottleneck() -> None:
    block, maps = some(6, 6, scale=1)
    plain = nn.Sequential(block.enter, block.groups[0], block.leave, block.gate)
    assert len(block.groups) == 1
    torch.testing.assert_close(block(maps), (maps + plain(maps)).relu())


@torch.no_grad()
def test_a_gate_without_weights_halves_the_branch() -> None:
    block, maps = some(8, 8)
    block.gate.excite.weight.zero_()
    block.gate.excite.bias.zero_()
    branch = block.leave(block._scales(block.enter(maps)))
    torch.testing.assert_close(block(maps), (maps + branch / 2).relu())


def test_only_strides_have_no_chain() -> None:
    chained, strided = some(8, 8)[0], some(8, 8, 2)[0]
    assert isinstance(chained.pool, nn.Identity) and isinstance(strided.pool, nn.AvgPool2d)
    # With a chain the last group sees all groups but the first, without one only itself.
    for block, seen in ((chained, [False, True, True, True]), (strided, [False, False, False, True])):
        entered = torch.randn(1, 8, 4, 4, dtype=D, requires_grad=True)
        block._scales(entered)[:, -2:].sum().backward()
        assert entered.grad is not None
        assert [bool(part.any()) for part in entered.grad.chunk(4, 1)] == seen


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="scale is 3 and outputs 8"):
        Res2SEBlock(8, 8, 1, 3)
    with pytest.raises(UsageError, match="stride is 0"):
        Res2SEBlock(8, 8, 0)
