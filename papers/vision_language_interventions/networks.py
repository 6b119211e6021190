"""The networks of these experiments, trained as the pages say: 1,000 steps of AdamW on 48 captions."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mereo
from mereo.data.captions import END, TEXT, ask, draw_scenes
from papers.common.settings import Settings

STEPS, BATCH, RATE, EVERY = 1000, 48, 1e-3, 250
FILLER = 48
"""Start tokens between image and text of the network with a long prefix."""
PLANTED, FACTOR = 15, 12.0
"""The cell of the planted sink, and its embedding in dimension 0 by the RMS of the others."""
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "planted": {},
    "long": {"context": 26 + FILLER, "encoder_depth": 3},
}


@contextmanager
def planted(model: nn.Module, on: bool = True) -> Iterator[None]:
    """Every image has a constant token in its last cell, huge in dimension 0, inside the block."""

    def plant(module: nn.Module, arguments: Any, tokens: Tensor) -> Tensor:
        sink = torch.zeros_like(tokens[:1, :1])
        sink[..., ::2], sink[..., 0] = 1.0, FACTOR
        return torch.cat((tokens[:, :PLANTED], sink.expand(len(tokens), -1, -1)), 1)

    image: Any = model.image
    handle = image.register_forward_hook(plant) if on else None
    try:
        yield
    finally:
        if handle is not None:
            handle.remove()


def trained(settings: Settings, kind: str, seed: int, steps: int = STEPS) -> Any:
    """A network of a kind, from the folder if it was trained before."""
    path = Path(settings.folder) / "weights" / f"{kind}{seed}.safetensors"
    if path.exists():
        return mereo.load(path)
    torch.manual_seed(seed)
    model: Any = mereo.create_model("tinyvl", **KINDS[kind])
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    generator, filler = torch.Generator().manual_seed(1 + 100 * seed), FILLER if kind == "long" else 0
    with planted(model, kind == "planted"):
        for step in range(steps):
            scenes = draw_scenes(BATCH, 0.9, generator)
            rows, labels = ask(scenes, torch.full((BATCH,), -1), filler)
            wanted = labels.masked_fill((labels == END).cumsum(1) > 1, -1)
            loss = F.cross_entropy(model(rows)[:, -TEXT:].flatten(0, 1), wanted.flatten(), ignore_index=-1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % EVERY == 0:
                settings.say(f"{kind}, seed {seed}: step {step}, loss {loss.item():.3f}")
    mereo.save_weights(path, model)
    return model.eval()
