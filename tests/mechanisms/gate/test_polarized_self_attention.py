"""Polarized self-attention against loops over its equations, and the three softmaxes by hand."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mereo
from mereo.errors import UsageError
from mereo.mechanisms.gate import PolarizedSelfAttention
from mereo.mechanisms.gate.polarized_self_attention import CHANNEL_GATES, LAYOUTS, SPATIAL_SOFTMAXES

Numbers = list[float]


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def softmax(values: Numbers) -> Numbers:
    grown = [math.exp(value - max(values)) for value in values]
    return [value / sum(grown) for value in grown]


def linear(layer: nn.Module, values: Numbers) -> Numbers:
    biases = [0.0] * len(layer.weight) if layer.bias is None else layer.bias.tolist()
    rows = zip(layer.weight.tolist(), biases, strict=True)
    return [sum(w * v for w, v in zip(row, values, strict=True)) + b for row, b in rows]


def up(gate: PolarizedSelfAttention, values: Numbers) -> Numbers:
    for layer in gate.channel_up:
        if isinstance(layer, nn.Linear):
            values = linear(layer, values)
        elif isinstance(layer, nn.LayerNorm):
            mean = sum(values) / len(values)
            deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / len(values) + layer.eps)
            affine = zip(values, layer.weight.tolist(), layer.bias.tolist(), strict=True)
            values = [(v - mean) / deviation * w + b for v, w, b in affine]
        else:
            values = [max(v, 0.0) for v in values]
    return values


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def literal(gate: PolarizedSelfAttention, image: Tensor) -> Tensor:
    """One image (channels, height, width), cell by cell, with every map of C / 2 channels."""
    cells: list[Numbers] = image.flatten(1).T.tolist()
    shares = softmax([linear(gate.channel_query, cell)[0] for cell in cells])
    values = [linear(gate.channel_value, cell) for cell in cells]
    pooled = [sum(a * v[d] for a, v in zip(shares, values, strict=True)) for d in range(len(values[0]))]
    channels = [sigmoid(value) for value in up(gate, pooled)]
    source = cells
    if gate.layout == "sequential":
        source = [[a * x for a, x in zip(channels, cell, strict=True)] for cell in cells]
    queries = [linear(gate.spatial_query, cell) for cell in source]
    query = [sum(q[d] for q in queries) / len(queries) for d in range(len(queries[0]))]
    keys = [linear(gate.spatial_value, cell) for cell in source]
    if gate.spatial_softmax == "channels":
        query = softmax(query)
    if gate.spatial_softmax == "values":
        columns = [softmax([key[d] for key in keys]) for d in range(len(query))]
        keys = [[column[p] for column in columns] for p in range(len(keys))]
    scores = [sum(q * k for q, k in zip(query, key, strict=True)) for key in keys]
    if gate.spatial_softmax == "scores":
        scores = softmax(scores)
    places = [sigmoid(score) for score in scores]
    if gate.layout == "sequential":
        out = [[u * place for u in cell] for cell, place in zip(source, places, strict=True)]
    else:
        out = [
            [x * (a + place) for x, a in zip(cell, channels, strict=True)]
            for cell, place in zip(cells, places, strict=True)
        ]
    return torch.tensor(out, dtype=torch.float64).T.reshape(image.shape)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channel_gate", CHANNEL_GATES)
@pytest.mark.parametrize("spatial_softmax", SPATIAL_SOFTMAXES)
def test_folded_and_literal_evaluation_agree(layout: Any, channel_gate: Any, spatial_softmax: Any) -> None:
    gate = PolarizedSelfAttention(16, layout, channel_gate, spatial_softmax)
    for parameter in gate.parameters():
        nn.init.normal_(parameter, std=0.3)
    images = torch.randn(2, 16, 3, 5)
    expected = torch.stack([literal(gate, image) for image in images])
    torch.testing.assert_close(gate(images).double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gate.double()(images.double()), expected)


@pytest.mark.parametrize(
    ("channels", "counts"), [(64, (8256, 7064, 8545)), (256, (131328, 111200, 132481)), (512, (524800, 443584, 527105))]
)
def test_parameters(channels: int, counts: tuple[int, int, int]) -> None:
    parallel = PolarizedSelfAttention(channels, "parallel", "plain", "scores")
    sequential = PolarizedSelfAttention(channels, "sequential", "bottleneck", "values")
    assert (count(parallel), count(sequential), count(PolarizedSelfAttention(channels))) == counts


def zeroed(*arguments: Any) -> PolarizedSelfAttention:
    gate = PolarizedSelfAttention(16, *arguments)
    for parameter in gate.parameters():
        nn.init.zeros_(parameter)
    return gate


def test_with_zero_weights_parallel_keeps_the_size_and_sequential_quarters_it() -> None:
    x = torch.randn(2, 16, 8, 6)
    torch.testing.assert_close(zeroed()(x), x)
    torch.testing.assert_close(zeroed("parallel", "plain", "scores")(x), 1.005208 * x, rtol=1e-6, atol=1e-6)
    for softmax_of in ("channels", "values"):
        torch.testing.assert_close(zeroed("sequential", "bottleneck", softmax_of)(x), 0.25 * x)


def test_worked_gates() -> None:
    x = torch.tensor([[[[1.0, 3.0]], [[2.0, 0.0]]]])
    expected = {"channels": (0.7311, 0.9526), "scores": (0.5006, 0.7306), "values": (0.5885, 0.9335)}
    for kind, places in expected.items():
        gate = PolarizedSelfAttention(2, "parallel", "plain", kind)  # type: ignore[arg-type]
        weights = {"channel_query": [1, 0], "channel_value": [0, 1], "spatial_query": [1, 1], "spatial_value": [1, 0]}
        for name, row in weights.items():
            gate.get_submodule(name).weight.data = torch.tensor([row], dtype=torch.float32)
        gate.channel_up[0].weight.data = torch.tensor([[1.0], [-1.0]])
        with mereo.record(gate) as trace:
            gate(x)
        shown = {name: trace.steps(name)[0].flatten().tolist() for name in trace}
        assert shown["coupling"] == pytest.approx([0.1192, 0.8808], abs=1e-4)
        assert shown["channel_gates"] == pytest.approx([0.5593, 0.4407], abs=1e-4)
        assert shown["spatial_gates"] == pytest.approx(places, abs=1e-4)


def test_a_constant_map_stays_constant_and_scores_cannot_suppress_a_position() -> None:
    for layout in LAYOUTS:
        out = PolarizedSelfAttention(16, layout)(torch.randn(1, 16, 1, 1).expand(-1, -1, 3, 5))
        torch.testing.assert_close(out, out[:, :, :1, :1].expand_as(out))
    gate = PolarizedSelfAttention(16, "parallel", "plain", "scores")
    with mereo.record(gate) as trace:
        gate(5 * torch.randn(4, 16, 3, 5))
    places = trace.steps("spatial_gates")[0]
    assert places.min() >= 0.5 and places.max() <= 0.7311


def test_widths_that_cannot_be_halved_or_normalised_are_refused() -> None:
    with pytest.raises(UsageError, match="channels is 7"):
        PolarizedSelfAttention(7)
    with pytest.raises(UsageError, match="channels is 8 with channel_gate 'bottleneck'"):
        PolarizedSelfAttention(8, "sequential", "bottleneck")
