"""A small vision-language decoder with random weights and a sink, prompts for it, and decoding in two ways."""

from typing import Any

import torch
from torch import Tensor

import mereo
from mereo.data.captions import scene_rows
from mereo.tasks.captions import generate


def tiny_vl(**changes: Any) -> Any:
    """Weights large enough that heads differ; the start and an image token are sinks in dimension 0."""
    torch.manual_seed(0)
    model = mereo.create_model("tinyvl", dim=16, depth=4, num_heads=4, **changes).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3 if parameter.dim() > 1 else 1)
        model.positions[[0, 6], 0] += 100.0
    return model


def prompts(count: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.tensor([[2, 7]] * count)
    return scene_rows(torch.randn(count, 16, 16, generator=generator), tokens)


def decoded(model: Any, rows: Tensor, length: int = 4) -> Tensor:
    """Tokens by a cache."""
    with torch.no_grad():
        return generate(model, rows, length)[0]


def recomputed(model: Any, rows: Tensor, tokens: Tensor) -> Tensor:
    """Scores of all the text in one pass per token, without a cache, the last of them: (batch, text, vocabulary)."""
    from mereo.data.captions import text_rows

    with torch.no_grad():
        for end in range(tokens.shape[1] + 1):
            scores = model(torch.cat((rows, text_rows(tokens[:, :end])), 1))
    return scores[:, rows.shape[1] - 1 :]


def cached(model: Any, rows: Tensor, tokens: Tensor) -> Tensor:
    """The same scores with a cache."""
    from mereo.data.captions import text_rows

    cache = model.new_cache()
    with torch.no_grad():
        parts = [model(rows, cache=cache)[:, -1:]]
        parts += [model(text_rows(token.unsqueeze(1)), cache=cache) for token in tokens.unbind(1)]
    return torch.cat(parts, 1)
