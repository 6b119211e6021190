"""The residual networks for CIFAR-10 against the paper's table of sizes and a block from its equation."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mereo
from mereo.models.registry import outline
from mereo.models.vision.cifar_resnet import BasicBlock


@pytest.mark.parametrize(("layers", "millions"), [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85), (110, 1.7)])
def test_layers_and_parameters_of_table_6(layers: int, millions: float) -> None:
    model = outline(f"resnet{layers}")
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) + 1 == layers
    found = sum(p.numel() for p in model.parameters()) / 1e6
    assert found == pytest.approx(millions, abs=0.005 if millions < 1 else 0.05)


@torch.no_grad()
@pytest.mark.parametrize(("inputs", "outputs", "stride"), [(4, 4, 1), (3, 8, 2)])
def test_a_block_is_its_equation(inputs: int, outputs: int, stride: int) -> None:
    block = BasicBlock(inputs, outputs, stride).double().eval()
    for module in block.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight, module.bias, module.running_mean):
                nn.init.normal_(tensor)
            nn.init.uniform_(module.running_var, 0.5, 2)
    x = torch.randn(2, inputs, 7, 9, dtype=torch.float64)

    def norm_conv(x: torch.Tensor, layer: nn.Sequential, stride: int) -> torch.Tensor:
        conv, norm = layer[0], layer[1]
        y = F.conv2d(x, conv.weight, stride=stride, padding=1)
        y = (y - norm.running_mean[:, None, None]) / (norm.running_var[:, None, None] + norm.eps).sqrt()
        return y * norm.weight[:, None, None] + norm.bias[:, None, None]

    residual = norm_conv(norm_conv(x, block.first, stride).clamp(min=0), block.second, 1)
    for channel in range(outputs):
        source = channel - (outputs - inputs) // 2
        if 0 <= source < inputs:
            for row in range(residual.shape[2]):
                for column in range(residual.shape[3]):
                    residual[:, channel, row, column] += x[:, source, row * stride, column * stride]
    torch.testing.assert_close(block(x), residual.clamp(min=0))


def test_maps_of_stages() -> None:
    narrow, wide = (16, 32, 64), (64, 128, 256)
    presets = {"resnet20": (32, 1, narrow), "resnet20_224": (224, 4, narrow), "resnet8_64": (64, 4, wide)}
    presets["resnet14_64"] = (64, 2, (24, 48, 96))
    for name, (side, stride, widths) in presets.items():
        sides = [side // (stride * 2**stage) for stage in range(3)]
        backbone = mereo.create_model(name, features_only=True).eval()
        maps = backbone(torch.rand(1, 3, side, side))
        assert [tuple(x.shape[1:]) for x in maps] == [(w, s, s) for w, s in zip(widths, sides, strict=True)]
        assert backbone.feature_info.reduction() == [side // s for s in sides]
