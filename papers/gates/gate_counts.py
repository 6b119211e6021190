"""Parameters and multiply-adds of gates, alone and in ResNet-50 and the MobileNets, beside the published figures."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import timm
import torch
from torch import Tensor, nn

import mereo
from mereo.core.operations import forward_operations
from mereo.mechanisms.gate import (
    CBAM,
    GAAM,
    ULSAM,
    GAAMFeatures,
    LayerStackHead,
    PolarizedSelfAttention,
    SqueezeExcite,
)
from mereo.surgery.inserted import Inserted
from papers.common.settings import Settings

ELA_CHANNELS = {
    "tiny": {64: 448, 256: 1_792, 512: 3_584},
    "base": {64: 576, 256: 2_304, 512: 4_608},
    "small": {64: 2_688, 256: 10_752, 512: 21_504},
    "large": {64: 3_712, 256: 14_848, 512: 29_696},
}
RESNET50 = {
    "tiny": (105_728, 26_432),
    "base": (135_936, 33_984),
    "small": (634_368, 158_592),
    "large": (876_032, 219_008),
}
"""ELA at the end of the residual branch of each bottleneck, and behind its 3 x 3 convolution."""

WIDTHS = (64, 128, 128, 256, 256, *(512,) * 6, 1024, 1024)
"""Of layers 2 to 14 of MobileNet-V1; the first layer, a convolution, has 32."""

Published = tuple[str, tuple[int, ...], bool, str, str]
"""Row, layers, whether they are replaced, and the published millions of parameters and of multiply-adds."""

MOBILENET_V1: Mapping[float, Sequence[Published]] = {
    1.0: (
        ("as published", (), True, "4.2", "569"),
        ("ULSAM after layer 11", (11,), False, "-", "569.2"),
        ("ULSAM after layer 12", (12,), False, "-", "569.2"),
        ("ULSAM after layer 13", (13,), False, "-", "569.1"),
        ("ULSAM in place of layer 12", (12,), True, "3.9", "517"),
    ),
    0.75: (
        ("width 0.75", (), True, "-", "325"),
        ("width 0.75, ULSAM in place of layer 12", (12,), True, "-", "296"),
    ),
    0.5: (
        ("width 0.50", (), True, "-", "149"),
        ("width 0.50, ULSAM in place of layer 12", (12,), True, "-", "136"),
    ),
}
"""Rows of each width."""

MOBILENET_V2: Sequence[Published] = (
    ("as published", (), True, "3.4", "300"),
    ("ULSAM after layer 17", (17,), False, "-", "300.01"),
    ("ULSAM in place of layer 14", (14,), True, "3.28", "277.34"),
    ("ULSAM in place of layer 17", (17,), True, "3.08", "284.54"),
    ("ULSAM in place of layers 11, 14", (11, 14), True, "3.23", "267.06"),
    ("ULSAM in place of layers 16, 17", (16, 17), True, "2.77", "269.08"),
    ("ULSAM in place of layers 14, 17", (14, 17), True, "2.96", "261.88"),
    ("ULSAM in place of layers 13, 14, 16, 17", (13, 14, 16, 17), True, "2.54", "223.77"),
)
STAGES = (1, 2, 3, 4, 3, 3, 1)
"""Bottlenecks of the stages of MobileNet-V2, which are its layers 2 to 18."""


def _convolution(channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    layer = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [layer, nn.BatchNorm2d(out), nn.ReLU()]


class _MobileNetV1(nn.Module):
    """MobileNet-V1 (arXiv:1704.04861), whose `layers[k - 1]` is layer k."""

    image_shape = (3, 224, 224)

    def __init__(self, width: float) -> None:
        super().__init__()
        channels, layers = int(32 * width), [nn.Sequential(*_convolution(3, int(32 * width), 3, 2))]
        for number, published in enumerate(WIDTHS):
            out = int(published * width)
            stride = 2 if number in (1, 3, 5, 11) else 1
            depthwise = _convolution(channels, channels, 3, stride, channels)
            layers.append(nn.Sequential(*depthwise, *_convolution(channels, out, 1)))
            channels = out
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(channels, 1000)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.head(self.layers(images).mean((2, 3)))
        return scores


def _v2_layer(number: int) -> str:
    """The name in timm's network of layer `number`, 2 to 18."""
    number -= 2
    for stage, blocks in enumerate(STAGES):
        if number < blocks:
            return f"blocks.{stage}.{number}"
        number -= blocks
    raise IndexError(number)


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _rows(
    rows: Sequence[Published], make: Callable[[], nn.Module], layer_name: Callable[[int], str]
) -> list[dict[str, Any]]:
    """Counts of networks with ULSAM of the paper's equations in some layers, and their change from the first row's."""
    found: list[dict[str, Any]] = []
    images = torch.zeros(1, 3, 224, 224)
    for title, layers, replace, parameters, operations in rows:
        network = make()
        if layers:
            names = [layer_name(layer) for layer in layers]
            mereo.insert(network, "ulsam", where=names, replace=replace, batch_norm=False)
        # The gain of an inserted mechanism is ours.
        gains = sum(each.gain.numel() for each in network.modules() if isinstance(each, Inserted))
        ours = (_parameters(network) - gains) / 1e6, forward_operations(network, images) / 2e6
        first = found[0] if found else {"parameters": ours[0], "multiply-adds": ours[1]}
        found.append(
            {
                "network": title, "page, parameters": parameters, "parameters": ours[0],
                "change": ours[0] - first["parameters"], "page, multiply-adds": operations, "multiply-adds": ours[1],
                "change of multiply-adds": ours[1] - first["multiply-adds"],
            }
        )  # fmt: skip
    return found


def _mobilenets() -> dict[str, list[dict[str, Any]]]:
    first = []
    for width, rows in MOBILENET_V1.items():
        first += _rows(rows, partial(_MobileNetV1, width), lambda layer: f"layers.{layer - 1}")
    second = _rows(MOBILENET_V2, partial(timm.create_model, "mobilenetv2_100"), _v2_layer)
    return {"ULSAM in MobileNet-V1, millions": first, "ULSAM in MobileNet-V2, millions": second}


def _in_resnet50(preset: str, where: str) -> int:
    network = timm.create_model("resnet50")
    mereo.insert(network, "ela", where=where, preset=preset, img_size=64)
    return sum(_parameters(each.mechanism) for each in network.modules() if isinstance(each, Inserted))


def _ela() -> list[dict[str, Any]]:
    rows = []
    for preset, published in ELA_CHANNELS.items():
        for channels, page in published.items():
            ours = _parameters(mereo.create_mechanism("ela", channels, preset=preset))
            rows.append({"ELA": f"{preset}, {channels} channels", "page": page, "parameters": ours})
    places = {"ends of the branches": "blocks", "3 x 3 convolutions": "layer?.?.act2"}
    for preset, published_in in RESNET50.items():
        for (place, where), page in zip(places.items(), published_in, strict=True):
            ours = _in_resnet50(preset, where)
            rows.append({"ELA": f"{preset}, ResNet-50, {place}", "page": page, "parameters": ours})
    return rows


def _blocks() -> list[dict[str, Any]]:
    """Single gates: ULSAM's comparison at 512 channels of 14 x 14, polarized self-attention, and GAAM."""
    maps = torch.zeros(1, 512, 14, 14)
    gates: list[tuple[str, nn.Module, str, str]] = [
        ("ULSAM, equations", ULSAM(512, batch_norm=False), "1,024", "0.2"),
        ("squeeze and excite", SqueezeExcite(512, 32), "33,000", "0.03"),
        ("CBAM", CBAM(512, 32), "33,000", "0.05"),
    ]
    gates += [
        (f"ULSAM, code, {groups} subspaces", ULSAM(512, groups), f"{2560 + 3 * groups:,}", "-")
        for groups in (1, 2, 4, 8, 16)
    ]
    gates += [
        ("polarized, parallel", PolarizedSelfAttention(512, channel_gate="plain"), "524,800", "-"),
        ("polarized, sequential", PolarizedSelfAttention(512, "sequential", "bottleneck"), "443,584", "-"),
        ("polarized, paper", PolarizedSelfAttention(512), "527,105", "-"),
        ("GAAM, 4 heads of 5 Gaussians", GAAM(4, 5), "40", "-"),
    ]
    layers = torch.zeros(1, 24, 1024)
    of_layers = [
        ("GAAM of features, 8 heads, D 1024", GAAMFeatures(1024, 8), "16,384"),
        ("GAAM of features, 1 head, D 1024", GAAMFeatures(1024, 1), "2,048"),
        ("GAAM with its head, 24 layers, 100 classes", LayerStackHead(24, 1024, 100, 8), "2,695,804"),
    ]
    every = [(*gate, maps) for gate in gates] + [(*gate, "-", layers) for gate in of_layers]
    return [
        {
            "gate": title, "page, parameters": parameters, "parameters": _parameters(gate),
            "page, million multiply-adds": operations,
            "million multiply-adds": forward_operations(gate, inputs) / 2e6,
        }
        for title, gate, parameters, operations, inputs in every
    ]  # fmt: skip


def run(settings: Settings) -> dict[str, Any]:
    """Tables of published and counted figures."""
    torch.manual_seed(0)
    return {
        "tables": {
            "Gates, at 512 channels of 14 x 14": _blocks(),
            "Parameters of ELA": _ela(),
            **_mobilenets(),
        },
        "notes": [
            "ULSAM in the MobileNets follows the equations, without biases and batch norm. Changes are from the network"
            " as published. Multiply-adds of convolutions and matrix products are counted, at 224 x 224.",
        ],
        "pictures": [],
    }
