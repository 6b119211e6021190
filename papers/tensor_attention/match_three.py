"""Match3 by one layer: do a token of a second group and one of a third sum with this one to 0 modulo a number?

Single tokens, and pairs of tokens of two groups, are independent of the answer. Tensor attention and attention to
single tokens have the same width, the same embedding and the same read-out.
"""

import math
import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.data.match3 import draw_triples
from mereo.mechanisms.attention import MultiHeadAttention, TensorAttention
from mereo.mechanisms.attention.higher_order.tensor_attention import tensor_attention
from mereo.pictures import new_figure, save_figure
from mereo.training.step import descend
from papers.common.measures import span
from papers.common.settings import Settings

MODULUS, GROUP, DIM, HEADS = 13, 3, 32, 4
"""The number, tokens of each of the three groups, and width and heads of the layer."""
BATCH, RATE, STEPS, TESTED = 64, 3e-3, 250, 4000
"""Steps of an epoch, and sequences of the test."""
EPOCHS, WARMUP = 8, 100
PICTURE = "match_three.png"


class OfPairs(TensorAttention):
    """Tensor attention from the first group to pairs of the others: (batch, 3 GROUP, dim) -> (batch, GROUP, dim)."""

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        first, second, third = tokens.unflatten(1, (3, GROUP)).unbind(1)

        def heads(layer: nn.Module, group: Tensor) -> Tensor:
            found: Tensor = layer(group).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            return found

        out = tensor_attention(
            heads(self.query, first), heads(self.key1, second), heads(self.value1, second),
            heads(self.key2, third), heads(self.value2, third),
        )  # fmt: skip
        merged: Tensor = self.proj(out.transpose(1, 2).flatten(2))
        return merged


class OfTokens(nn.Module):
    """Attention from the first group to all tokens: (batch, 3 GROUP, dim) -> (batch, GROUP, dim)."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(dim, num_heads)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.attention(tokens)
        return out[:, :GROUP]


LAYERS: dict[str, Callable[[int, int], nn.Module]] = {"tensor attention": OfPairs, "attention": OfTokens}


class OneLayer(nn.Module):
    """x + layer(norm(x)) between an embedding of angles and groups and a read-out.

    Shapes: int64 (batch, 3 GROUP) -> (batch, GROUP), a score for each token of the first group.
    """

    def __init__(self, layer: str) -> None:
        super().__init__()
        angles = 2 * math.pi * torch.arange(MODULUS)[:, None] * torch.arange(1, DIM // 2 + 1) / MODULUS
        self.embedding = nn.Embedding.from_pretrained(torch.cat((angles.cos(), angles.sin()), 1), freeze=False)
        self.groups = nn.Parameter(0.5 * torch.randn(3, 1, DIM))
        self.norm, self.layer = nn.LayerNorm(DIM), LAYERS[layer](DIM, HEADS)
        self.head = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, 1))

    def forward(self, tokens: Tensor) -> Tensor:
        x = (self.embedding(tokens).unflatten(1, (3, GROUP)) + self.groups).flatten(1, 2)
        scores: Tensor = self.head(x[:, :GROUP] + self.layer(self.norm(x)))
        return scores.squeeze(-1)


@torch.inference_mode()
def balanced_accuracy(model: nn.Module, tokens: Tensor, wanted: Tensor) -> float:
    """The mean of the shares of both answers that are right; 0.5 for any answer that ignores the tokens."""
    found = torch.cat([model(part) > 0 for part in tokens.split(500)])
    return statistics.mean((found == wanted)[wanted == answer].double().mean().item() for answer in (True, False))


def train(layer: str, seed: int, epochs: int, settings: Settings) -> list[float]:
    """The balanced accuracy after each epoch."""
    torch.manual_seed(seed)
    model, draws, steps = OneLayer(layer), torch.Generator().manual_seed(seed), epochs * STEPS
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    test = draw_triples(TESTED, MODULUS, GROUP, torch.Generator().manual_seed(1000))
    curve = []
    for step in range(steps):
        tokens, wanted = draw_triples(BATCH, MODULUS, GROUP, draws)
        rate = RATE * min(1, (step + 1) / WARMUP) * (1 + math.cos(math.pi * step / steps)) / 2
        descend(optimizer, rate, F.binary_cross_entropy_with_logits(model(tokens), wanted.float()))
        if step % STEPS == STEPS - 1:
            curve.append(balanced_accuracy(model, *test))
            settings.say(f"{layer}, seed {seed}: epoch {len(curve)}/{epochs}, balanced accuracy {curve[-1]:.3f}")
    return curve


def run(settings: Settings) -> dict[str, Any]:
    """A table of the accuracies and their curves."""
    epochs = settings.epochs or EPOCHS
    curves = {name: [train(name, seed, epochs, settings) for seed in range(settings.seeds)] for name in LAYERS}
    rows = []
    for name, found in curves.items():
        rows.append(
            {
                "layer": name,
                "parameters": sum(p.numel() for p in OneLayer(name).parameters()),
                **span("balanced accuracy %", [100 * curve[-1] for curve in found]),
            }
        )
    figure = new_figure(5, 3.2)
    axes = figure.subplots()
    for (name, found), colour in zip(curves.items(), ("#1971c2", "#e8590c"), strict=True):
        for number, curve in enumerate(found):
            steps = [STEPS * (epoch + 1) for epoch in range(epochs)]
            axes.plot(steps, curve, color=colour, marker=".", label=name if number == 0 else None)
    axes.axhline(0.5, color="#868e96", linestyle="--", label="chance")
    axes.set(xlabel="steps", ylabel="balanced accuracy", ylim=(0.4, 1.02))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    save_figure(figure, settings.folder / PICTURE)
    return {
        "tables": {f"Three groups of {GROUP} modulo {MODULUS}, {epochs * STEPS:,} steps, {settings.seeds} seeds": rows},
        "notes": [f"One layer of width {DIM}, {HEADS} heads, {BATCH} new sequences a step, Adam at {RATE:g}."],
        "pictures": [PICTURE],
    }
