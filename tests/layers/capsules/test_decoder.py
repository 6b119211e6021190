"""Decoders: masks, sizes, layers."""

import pytest
import torch
import torch.nn.functional as F

from mereo.layers.capsules import FullyConnectedDecoder, UpsamplingDecoder, mask_poses


def test_mask_keeps_one_capsule_and_lays_them_side_by_side() -> None:
    poses = torch.arange(1.0, 13).view(2, 3, 2).requires_grad_()
    masked = mask_poses(poses, torch.tensor([2, 0]))
    assert masked.tolist() == [[0, 0, 0, 0, 5, 6], [7, 8, 0, 0, 0, 0]]
    masked.sum().backward()
    assert poses.grad.tolist() == [[[0, 0], [0, 0], [1, 1]], [[1, 1], [0, 0], [0, 0]]]


def test_mask_keeps_the_type() -> None:
    assert mask_poses(torch.ones(1, 2, 3, dtype=torch.bfloat16), torch.tensor([1])).dtype == torch.bfloat16


@torch.no_grad()
def test_fully_connected_decoder() -> None:
    decoder = FullyConnectedDecoder(6, (2, 3, 4), hidden=(5, 7))
    poses = torch.randn(2, 6)
    image = decoder(poses)
    w1, b1, w2, b2, w3, b3 = decoder.parameters()
    expected = ((((poses @ w1.T + b1).relu() @ w2.T + b2).relu() @ w3.T + b3).sigmoid()).view(2, 2, 3, 4)
    torch.testing.assert_close(image, expected)
    assert image.shape == (2, 2, 3, 4)
    assert sum(p.numel() for p in FullyConnectedDecoder(160, (1, 28, 28)).parameters()) == 1_411_344


@pytest.mark.parametrize(
    ("sides", "start"),
    [((48, 48), (8, 8)), ((28, 28), (6, 6)), ((32, 32), (6, 6)), ((33, 47), (7, 8)), ((1, 1), (3, 3))],
)
def test_upsampling_decoder_uses_the_smallest_map_that_covers_the_image(
    sides: tuple[int, int], start: tuple[int, int]
) -> None:
    decoder = UpsamplingDecoder(10, (2, *sides), widths=(3, 4, 5))
    assert decoder.start == (1, *start)
    assert all(8 * k - 16 >= side > 8 * (k - 1) - 16 for k, side in zip(start, sides, strict=True))
    image = decoder(torch.randn(2, 10))
    assert image.shape == (2, 2, *sides) and (image > 0).all() and (image < 1).all()


@torch.no_grad()
def test_upsampling_decoder_layer_by_layer() -> None:
    decoder = UpsamplingDecoder(80, (2, 48, 48))
    assert sum(p.numel() for p in decoder.parameters()) == 229_570
    poses = torch.randn(2, 80)
    maps = decoder.project(poses).view(2, 1, 8, 8)
    sides = [8]
    for conv in decoder.convs:
        for axis in (2, 3):  # a new line lies a quarter from an old one, at the border on it
            before = torch.cat([maps.narrow(axis, 0, 1), maps.narrow(axis, 0, maps.shape[axis] - 1)], axis)
            after = torch.cat([maps.narrow(axis, 1, maps.shape[axis] - 1), maps.narrow(axis, -1, 1)], axis)
            lines = torch.stack([0.75 * maps + 0.25 * before, 0.75 * maps + 0.25 * after], axis + 1)
            maps = lines.flatten(axis, axis + 1)
        sides.append(maps.shape[-1])
        maps = F.conv2d(maps, conv.weight, conv.bias)
        maps = torch.where(maps > 0, maps, 0.2 * maps)
        sides.append(maps.shape[-1])
    expected = F.conv2d(maps, decoder.last.weight, decoder.last.bias).sigmoid()
    assert [*sides, expected.shape[-1]] == [8, 16, 14, 28, 26, 52, 50, 48]
    torch.testing.assert_close(decoder(poses), expected)
