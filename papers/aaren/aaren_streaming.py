"""A stream of tokens through Aaren and through causal attention: what is kept, and the time of a token."""

import time
from functools import partial
from typing import Any

import torch

from mereo.models import create_model
from mereo.models.sequence.causal_transformer import KeyValueState
from mereo.models.sequence_model import SequenceModel, SequenceState
from mereo.pictures import new_figure, save_figure
from mereo.runtime.turns import median_seconds
from papers.common.settings import Settings

TOKENS, REPEATS = (1024, 4096, 16384, 65536), 21
MODELS = {"Aaren": "aaren_tiny", "causal attention": "causal_transformer_tiny"}
PART = 1024
"""Tokens that Aaren reads at a time before the ones that are timed."""
PICTURE = "streaming.png"


def after(model: SequenceModel, count: int) -> SequenceState:
    """The state after some tokens; keys and values of attention are drawn, since reading them takes their square."""
    generator = torch.Generator().manual_seed(0)
    if model.config["model"] == MODELS["causal attention"]:
        heads = int(model.config["args"]["num_heads"])
        shape = 2, 1, heads, count, model.num_features // heads
        blocks = (KeyValueState(*torch.randn(shape, generator=generator)) for _ in model.blocks)
        return SequenceState(count, tuple(blocks))
    state = None
    for part in torch.randint(256, (1, count), generator=generator).split(PART, 1):
        _, state = model.extend(part, state)
    assert state is not None
    return state


def bytes_of(state: Any) -> int:
    """Bytes of all tensors in nested tuples."""
    if isinstance(state, torch.Tensor):
        return state.numel() * state.element_size()
    return sum(map(bytes_of, state)) if isinstance(state, tuple) else 0


@torch.inference_mode()
def run(settings: Settings) -> dict[str, Any]:
    """A table of bytes and times by the tokens read before, and a picture."""
    rows, made = [], {}
    for name, preset in MODELS.items():
        torch.manual_seed(0)
        made[name] = create_model(preset).eval()
    for count in TOKENS:
        row: dict[str, Any] = {"tokens": count}
        for name, model in made.items():
            assert isinstance(model, SequenceModel)
            step = partial(model.step, torch.zeros(1, dtype=torch.long), after(model, count))
            row[f"{name}, bytes"] = bytes_of(step()[1].blocks)
            row[f"{name}, ms a token"] = 1000 * median_seconds({name: step}, REPEATS, time.process_time)[name]
        times = (f"{name} {row[f'{name}, ms a token']:.1f} ms a token" for name in MODELS)
        settings.say(f"{count:,} tokens: {', '.join(times)}")
        rows.append(row)
    figure = new_figure(7.6, 3.0)
    for axes, (what, label) in zip(
        figure.subplots(1, 2), (("bytes", "bytes kept"), ("ms a token", "processor time of a token, ms")), strict=True
    ):
        for name in MODELS:
            axes.plot(TOKENS, [row[f"{name}, {what}"] for row in rows], marker="o", label=name)
        axes.set(xscale="log", yscale="log", xlabel="tokens read before", ylabel=label)
        axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    save_figure(figure, settings.folder / PICTURE)
    return {
        "tables": {"One stream": rows},
        "notes": ["Four layers of 64 in float32; processor time of one thread, median."],
        "pictures": [PICTURE],
    }
