"""What does sparse attention lose on text, and what do clusters or summaries of regions win back?

Decoders that differ in their attention only read windows of bytes, with the same windows in the same order.
"""

import math
import time
from typing import Any

import torch
from torch import Tensor, nn

from mereo.data import Batch, TokenWindows
from mereo.models.sequence_model import SequenceModel
from mereo.tasks.language import compressed_bits, inputs_and_targets, token_losses
from papers.common.deep_pictures import draw_losses
from papers.common.deep_training import Curve
from papers.common.fitting import batches, fit
from papers.common.settings import Settings
from papers.routing_transformer.attention_kinds import DIM, MIXERS, make_blocks

CONTEXT, SIDE, DEPTH, BATCH, RATE = 256, 16, 2, 16, 3e-3
WINDOWS, TESTED = 3200, 128
"""Windows to train on, an epoch by default, and to test on."""
PICTURE = "sparse_text.png"


class Decoder(SequenceModel):
    """A decoder of bytes around one kind of attention, with learned positions."""

    def __init__(self, mixer: str) -> None:
        super().__init__(256, DIM, CONTEXT, make_blocks(mixer, DEPTH, CONTEXT, SIDE), nn.LayerNorm(DIM))
        self.positions = nn.Parameter(0.02 * torch.randn(CONTEXT, DIM))

    def embed(self, tokens: Tensor, position: int = 0) -> Tensor:
        return super().embed(tokens, position) + self.positions[position : position + tokens.shape[1]]


def _train(name: str, train: TokenWindows, test: TokenWindows, settings: Settings, seed: int) -> dict[str, Any]:
    """One training and its test: losses, bits per byte and milliseconds a step."""
    device, size = settings.chosen_device(), settings.batch_size or BATCH
    torch.manual_seed(seed)
    model, losses = Decoder(name).to(device), []

    def loss(batch: Batch) -> Tensor:
        inputs, targets = inputs_and_targets(batch)
        total, count = token_losses(model(inputs), targets)
        losses.append((total / count).item())
        return total / count

    began = time.monotonic()
    fit(
        loss, model.parameters(), train, epochs=settings.epochs or 1, batch_size=size, lr=RATE, device=device,
        title=name, say=lambda line: None, seed=seed,
    )  # fmt: skip
    took, nats, counted = 1000 * (time.monotonic() - began) / len(losses), 0.0, 0
    with torch.inference_mode():
        for batch in batches(test, size, device):
            inputs, targets = inputs_and_targets(batch)
            total, count = token_losses(model.eval()(inputs), targets)
            nats, counted = nats + total.item(), counted + int(count)
    return {"losses": losses, "bits": nats / counted / math.log(2), "ms": took}


def run(settings: Settings) -> dict[str, Any]:
    """A table of bits per byte, compared with compressors, and the curves."""
    data = str(settings.data)
    settings.say(f"{data}: windows of {CONTEXT} bytes")
    train, test = settings.windows(CONTEXT, WINDOWS)
    tested = min(settings.images or TESTED, len(test))
    chosen = test.subset(torch.arange(tested) * (len(test) // tested))
    rows, curves = [], {}
    for name in settings.chosen(MIXERS):
        runs = [_train(name, train, chosen, settings, seed) for seed in range(settings.seeds)]
        rows.append(
            {
                "attention": name,
                "bits per byte": sum(each["bits"] for each in runs) / len(runs),
                "worst seed": max(each["bits"] for each in runs),
                "ms a step": sum(each["ms"] for each in runs) / len(runs),
            }
        )
        curves[name] = [Curve(each["losses"], True, 0.0, 0.0).smooth() for each in runs]
        settings.say(f"{name}: {rows[-1]['bits per byte']:.3f} bits per byte, {rows[-1]['ms a step']:.0f} ms a step")
    draw_losses({f"{DEPTH} layers": curves}, f"Training loss on {data}", math.log(256), settings.folder / PICTURE)
    peers = ", ".join(f"{name} {bits:.3f}" for name, bits in compressed_bits(test.content).items())
    return {
        "tables": {f"{len(curves[rows[0]['attention']][0])} steps on {data}, windows of {CONTEXT} bytes": rows},
        "notes": [
            f"Test: {tested} windows, each read by itself. Blocks, clusters, rows: {SIDE} tokens. Adam at {RATE:g}.",
            f"Compressors on the whole test split, bits per byte: {peers}.",
        ],
        "pictures": [PICTURE],
        "data": data,
        "losses": curves,
    }
