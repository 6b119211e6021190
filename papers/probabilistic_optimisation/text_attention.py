"""Small networks of text: biases by distance beyond the trained length, caches of few bits, and dropped blocks."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mereo.core import Causal, Coupling
from mereo.core.kernels.attention import attend
from mereo.core.rotary import rotate
from mereo.data import TokenWindows
from mereo.layers import StaircaseCache
from mereo.mechanisms.attention.sparse.pr_flash_attention import distance_law, pr_flash_attention
from mereo.models import create_model
from mereo.models.sequence import CausalTransformer
from mereo.tasks.language import LanguageObjective, inputs_and_targets, token_losses
from papers.common.fitting import batches, fit
from papers.common.settings import Settings

DEPTH, RATE = 2, 3e-3
CPU = torch.device("cpu")
BIASES: dict[str, dict[str, Any]] = {
    "rotary": {},
    "linear": {"rotary": False, "distance": "linear"},
    "rotary, linear": {"distance": "linear"},
    "rotary, harmonic": {"distance": "harmonic"},
}
"""Positions of attention: turned queries and keys, a bias by distance, or both."""
READ = 16
"""Bytes that are read at a time."""
LAWS: dict[str, tuple[str, float]] = {
    "1 / (1 + d)^0.5": ("power", 0.5),
    "1 / (1 + d)": ("power", 1.0),
    "1 / (1 + d)^2": ("power", 2.0),
    "exp(-0.3 d)": ("exponential", 0.3),
    "d <= 3": ("window", 3.0),
}
DROPPED_BLOCK = 16
"""Tokens of a block of dropped attention."""


def trained(positions: dict[str, Any], train: TokenWindows, settings: Settings, batch_size: int, seed: int) -> Any:
    """A network that has read each window once."""
    torch.manual_seed(seed)
    model: Any = create_model("causal_transformer_tiny", depth=DEPTH, context=train.length, positions=positions)
    objective = LanguageObjective(model.train())
    fit(
        lambda batch: objective(batch)[0], model.parameters(), train, epochs=1, batch_size=batch_size, lr=RATE,
        device=CPU, title=f"{positions or 'rotary'}, {train.length} bytes, seed {seed}", say=settings.say, seed=seed,
    )  # fmt: skip
    return model.eval()


@torch.inference_mode()
def bits_of_the_last(model: CausalTransformer, windows: Tensor, scored: int, seen: int) -> float:
    """Bits per byte of the last `scored` bytes of windows, of which only the last `seen` bytes are read.

    Shapes: int64 (windows, bytes + 1), the inputs and behind them the last target.
    """
    nats = 0.0
    for part in windows[:, -seen - 1 :].split(16):
        scores = model(part[:, :-1])[:, -scored:]
        nats += token_losses(scores, part[:, -scored:])[0].item()
    return nats / (len(windows) * scored * math.log(2))


@torch.inference_mode()
def with_cache(
    model: CausalTransformer, test: TokenWindows, bits: Sequence[int] | None, block: int, group: int
) -> dict[str, float]:
    """Bits per byte of windows that are read part by part, and the bytes that the caches take at their end."""
    nats, count, taken, tokens = 0.0, 0, 0, 0
    for batch in batches(test, 16, CPU):
        inputs, targets = inputs_and_targets(batch)
        state = None if bits is None else model.quantised_state(bits, block=block, group=group)
        for part, wanted in zip(inputs.split(READ, 1), targets.split(READ, 1), strict=True):
            scores, state = model.extend(part, state)
            total, counted = token_losses(scores, wanted)
            nats, count = nats + total.item(), count + int(counted)
        assert state is not None
        for kept in state.blocks:
            exact = 0 if isinstance(kept, StaircaseCache) else sum(x.numel() * x.element_size() for x in kept)
            taken += exact or kept.num_bytes()
        tokens += inputs.numel()
    return {
        "bits per byte": nats / count / math.log(2),
        "perplexity of a byte": math.exp(nats / count),
        "bytes a token and layer": taken / tokens / DEPTH,
    }


@torch.inference_mode()
def heads_of(model: CausalTransformer, test: TokenWindows) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of the last layer on some windows: (windows, heads, tokens, dim) each."""
    inputs, _ = inputs_and_targets(test.batch(torch.arange(min(4, len(test)))))
    x = model.embed(inputs)
    *before, block = model.blocks
    for each in before:
        x = each(x)
    layer: Any = block
    q, k, v = layer.qkv(layer.norm1(x)).unflatten(-1, (3, layer.num_heads, -1)).transpose(1, 3).unbind(2)
    return rotate(q), rotate(k), v


@torch.inference_mode()
def dropped(
    heads: tuple[Tensor, Tensor, Tensor], law: str, strength: float, rounds: int, *, rescale: bool
) -> dict[str, float]:
    """How far attention to random blocks is from attention to all, as shares of the size of its outputs.

    The bias is the distance of the mean over the draws, without the deviation that remains in a mean of
    that number of draws.
    """
    q, k, v = (x.double() for x in heads)
    full = attend(q, k, v, Coupling("senders", topology=Causal()))
    probabilities = distance_law(-(-q.shape[2] // DROPPED_BLOCK), law, strength)
    draws = torch.Generator().manual_seed(0)
    mean, squares, kept_blocks = torch.zeros_like(full), torch.zeros_like(full), 0.0
    rows = len(probabilities)
    below = torch.arange(rows, 0, -1)  # blocks at each distance
    for _ in range(rounds):
        kept = torch.rand(rows, dtype=torch.float64, generator=draws) < probabilities
        given = probabilities if rescale else None
        out = pr_flash_attention(q, k, v, kept, DROPPED_BLOCK, probabilities=given)
        mean, squares = mean + out / rounds, squares + out.square() / rounds
        kept_blocks += (below * kept).sum().item() / below.sum().item() / rounds
    size = full.square().mean().item()
    variance = (squares - mean.square()).clamp(min=0).mean().item() * rounds / (rounds - 1)
    bias = max((mean - full).square().mean().item() - variance / rounds, 0.0)
    return {
        "blocks %": 100 * kept_blocks,
        "bias %": 100 * (bias / size) ** 0.5,
        "deviation %": 100 * (variance / size) ** 0.5,
    }
