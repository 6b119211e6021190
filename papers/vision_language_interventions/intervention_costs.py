"""Processor time of a prompt and of a generated token under each intervention, divided by the plain decoder's."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

import mereo
from mereo.data.captions import DESCRIBE, scene_rows, text_rows
from mereo.interventions import folded, paint, redistribute_visual_attention, vision_aware_heads
from papers.common.settings import Settings

SIZES: dict[str, Any] = {"dim": 512, "depth": 6, "num_heads": 8, "visual": 256, "context": 320}
REPEATS, TOKENS = 15, 24


def run(settings: Settings) -> dict[str, Any]:
    """A table of ratios, the fastest of alternating measurements."""
    torch.manual_seed(0)
    model: Any = mereo.create_model("tinyvl", **SIZES).eval()
    with torch.no_grad():
        model.positions[[0, 6], 0] += 30.0
    rows = scene_rows(torch.randn(1, SIZES["visual"], 16), torch.full((1, 24), DESCRIBE))

    def measure() -> tuple[float, float]:
        cache = model.new_cache()
        start = time.process_time()
        model(rows, cache=cache)
        middle = time.process_time()
        for _ in range(TOKENS):
            model(text_rows(torch.full((1, 1), DESCRIBE)), cache=cache)
        return middle - start, (time.process_time() - middle) / TOKENS

    cases: dict[str, Callable[[], Any]] = {
        "plain": nullcontext,
        "redistribution": lambda: redistribute_visual_attention(model, dims=[0], rho=0.0),
        "paint": lambda: paint(model),
        "vision-aware heads, chosen": lambda: vision_aware_heads(model),
        "vision-aware heads, folded": lambda: vision_aware_heads(model),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    with torch.inference_mode():
        for _ in range(REPEATS + 1):
            for name, case in cases.items():
                with case() as heads:
                    if heads is not None:
                        heads.prompt = rows.shape[1]
                        heads.prepare(rows)
                        heads.busy = True  # the selection is a cost of its own
                    with folded(heads) if name.endswith("folded") else nullcontext():
                        times[name].append(measure())
        start = time.process_time()
        with vision_aware_heads(model) as heads:
            heads.prepare(rows)
        selection = time.process_time() - start
    table = []
    for name, found in times.items():
        prompt, token = (
            min(part) / min(base)
            for part, base in zip(zip(*found[1:], strict=True), zip(*times["plain"][1:], strict=True), strict=True)
        )
        table.append({"intervention": name, "prompt": round(prompt, 3), "token": round(token, 3)})
    passes = selection / min(each for each, _ in times["plain"])
    notes = [f"choosing the heads takes {passes:.1f} passes over the prompt, once"]
    return {"tables": {"Time, by that of the plain decoder": table}, "notes": notes, "pictures": []}
