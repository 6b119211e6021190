"""Processor time of a prompt and of a generated token under each intervention, divided by the plain decoder's."""

import copy
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any

import torch
from torch import Tensor

import mereo
from mereo.data.captions import DESCRIBE, scene_rows, text_rows
from mereo.interventions import folded, paint, redistribute_visual_attention, vision_aware_heads
from papers.common.settings import Settings

SIZES: dict[str, Any] = {"dim": 512, "depth": 6, "num_heads": 8, "visual": 256, "context": 320}
REPEATS, TOKENS = 10, 24


def run(settings: Settings) -> dict[str, Any]:
    """A table of ratios, medians over prompts and tokens, which all cases read in turns."""
    torch.manual_seed(0)
    model: Any = mereo.create_model("tinyvl", **SIZES).eval()
    with torch.no_grad():
        model.positions[[0, 6], 0] += 30.0
    rows = scene_rows(torch.randn(1, SIZES["visual"], 16), torch.full((1, 24), DESCRIBE))
    token = text_rows(torch.full((1, 1), DESCRIBE))
    cases: dict[str, Callable[[Any], Any]] = {
        "plain": lambda model: nullcontext(),
        "plain, a copy": lambda model: nullcontext(),
        "redistribution": lambda model: redistribute_visual_attention(model, dims=[0], rho=0.0),
        "paint": paint,
        "vision-aware heads, chosen": vision_aware_heads,
        "vision-aware heads, folded": vision_aware_heads,
    }
    models = {name: copy.deepcopy(model) for name in cases}
    prompts, tokens = ({name: list[float]() for name in cases} for _ in range(2))
    with torch.inference_mode(), ExitStack() as stack:
        for name, case in cases.items():
            heads = stack.enter_context(case(models[name]))
            if heads is not None:
                heads.prompt = rows.shape[1]
                heads.prepare(rows)
                heads.busy = True  # the selection is a cost of its own
            if name.endswith("folded"):
                stack.enter_context(folded(heads))
        for _ in range(REPEATS + 1):
            caches = {name: model.new_cache() for name in cases}
            for name in cases:
                prompts[name].append(_seconds(models[name], rows, caches[name]))
            for _ in range(TOKENS):
                for name in cases:
                    tokens[name].append(_seconds(models[name], token, caches[name]))
        with vision_aware_heads(model) as heads:
            start = time.process_time()
            heads.prepare(rows)
            selection = time.process_time() - start
    table = [
        {"intervention": name, "prompt": _ratio(prompts, name, 1), "token": _ratio(tokens, name, TOKENS)}
        for name in cases
    ]
    passes = selection / statistics.median(prompts["plain"])
    notes = [f"choosing the heads takes {passes:.1f} passes over the prompt, once"]
    return {"tables": {"Time, by that of the plain decoder": table}, "notes": notes, "pictures": []}


def _seconds(model: Any, rows: Tensor, cache: Any) -> float:
    start = time.process_time()
    model(rows, cache=cache)
    return time.process_time() - start


def _ratio(times: dict[str, list[float]], name: str, first: int) -> float:
    """The median ratio to the plain decoder's time right before, without the first round."""
    pairs = zip(times[name][first:], times["plain"][first:], strict=True)
    return round(statistics.median(own / plain for own, plain in pairs), 3)
