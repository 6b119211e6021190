"""Which sparse attention finds a token far away by its content: local blocks, clusters, or summaries of regions?

Each sequence is a list of pairs of a key and a value; its last quarter asks for the values of keys of its first
quarter, which no local block reaches.
"""

import math
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.training.step import descend
from papers.common.deep_pictures import draw_losses
from papers.common.deep_training import Curve
from papers.common.settings import Settings
from papers.routing_transformer.attention_kinds import DIM, MIXERS, make_blocks

TOKENS, SIDE, VALUES, BATCH, RATE = 128, 16, 8, 16, 3e-3
STEPS, PER_EPOCH, TESTED = 300, 100, 256
"""Steps by default, steps of an epoch of `--epochs`, and sequences of the test."""
QUARTER = TOKENS // 4
PICTURE = "far_recall.png"


class Recall(nn.Module):
    """Pairs (batch, tokens), of keys and of values or the number VALUES, to scores (batch, tokens, VALUES)."""

    def __init__(self, mixer: str) -> None:
        super().__init__()
        self.keys, self.values = nn.Embedding(TOKENS, DIM), nn.Embedding(VALUES + 1, DIM)
        self.block = make_blocks(mixer, 1, TOKENS, SIDE)[0]
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VALUES)

    def forward(self, keys: Tensor, values: Tensor) -> Tensor:
        scores: Tensor = self.head(self.norm(self.block(self.keys(keys) + self.values(values))))
        return scores


def sequences(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values with those asked for hidden, and the answers: (count, tokens), (count, tokens), (count, quarter)."""
    keys = torch.rand(count, TOKENS, generator=generator).argsort(1)
    values = torch.randint(VALUES, (count, TOKENS), generator=generator)
    asked = torch.rand(count, QUARTER, generator=generator).argsort(1)
    keys[:, -QUARTER:] = keys.gather(1, asked)
    answers = values.gather(1, asked)
    values[:, -QUARTER:] = VALUES
    return keys, values, answers


def _train(mixer: str, steps: int, size: int, seed: int, device: torch.device) -> Curve:
    """One training and its test."""
    torch.manual_seed(seed)
    model, losses = Recall(mixer).to(device), []
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    draws, began = torch.Generator().manual_seed(seed), time.monotonic()
    for _ in range(steps):
        keys, values, answers = (x.to(device) for x in sequences(size, draws))
        loss = F.cross_entropy(model(keys, values)[:, -QUARTER:].flatten(0, 1), answers.flatten())
        descend(optimizer, RATE, loss)
        losses.append(loss.item())
    seconds = time.monotonic() - began
    keys, values, answers = (x.to(device) for x in sequences(TESTED, torch.Generator().manual_seed(2**31 + seed)))
    with torch.inference_mode():
        scores = model.eval()(keys, values)[:, -QUARTER:]
    return Curve(losses, True, 100 * (scores.argmax(-1) == answers).float().mean().item(), seconds)


def run(settings: Settings) -> dict[str, Any]:
    """A table of losses and accuracies, and the curves."""
    steps = STEPS if settings.epochs is None else PER_EPOCH * settings.epochs
    device, rows, curves = settings.chosen_device(), [], {}
    for name in settings.chosen(MIXERS):
        size = settings.batch_size or BATCH
        runs = [_train(name, steps, size, seed, device) for seed in range(settings.seeds)]
        rows.append(
            {
                "attention": name,
                "loss": sum(curve.end for curve in runs) / len(runs),
                "correct %": sum(curve.accuracy for curve in runs) / len(runs),
                "worst seed %": min(curve.accuracy for curve in runs),
                "ms a step": 1000 * sum(curve.seconds for curve in runs) / len(runs) / steps,
            }
        )
        curves[name] = [curve.smooth() for curve in runs]
        settings.say(f"{name}: {rows[-1]['correct %']:.1f} % correct, {rows[-1]['ms a step']:.0f} ms a step")
    draw_losses(
        {"one layer": curves}, "Loss of recalling values from far away", math.log(VALUES), settings.folder / PICTURE
    )
    return {
        "tables": {f"{steps} steps, {TOKENS} tokens, {settings.seeds} seeds": rows},
        "notes": [
            f"Chance is {100 / VALUES:.1f} % and a loss of {math.log(VALUES):.3f}. The token asked for is at least"
            f" {TOKENS // 2} tokens away; blocks, clusters and rows have {SIDE}.",
        ],
        "pictures": [PICTURE],
        "losses": curves,
    }
