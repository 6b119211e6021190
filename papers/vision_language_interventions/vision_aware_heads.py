"""Vision-aware heads on TinyVL: captions by alpha, ablations, and which heads images choose."""

import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import mereo
from mereo.data.captions import CELLS, END, FIRST, test_set, text_rows
from mereo.interventions import token_divergence, vision_aware_divergence, vision_aware_heads
from mereo.pictures import new_figure, save_figure
from mereo.tasks.captions import generate
from papers.common.settings import Settings
from papers.vision_language_interventions.measures import SEED, caption_figures
from papers.vision_language_interventions.networks import STEPS, trained

IMAGES, ALPHAS, TOGETHER = 600, (0.5, 1.0, 1.5, 2.0, 3.0), (0.9, 0.0)
PICTURE = "alpha.png"


def run(settings: Settings) -> dict[str, Any]:
    """Tables by alpha, of ablations, of the chosen heads and of divergences, and a picture of the first."""
    count, bundled = settings.images or IMAGES, mereo.load("tinyvl.captions")
    seeds = [trained(settings, "plain", seed, STEPS) for seed in range(settings.seeds)]
    networks: dict[str, list[Any]] = {"bundled": [bundled], "mean of seeds": seeds}
    tables: dict[str, Any] = {}
    for together in TOGETHER:
        tables[f"By alpha, pairs together {together}"] = [
            {
                "network": name, "alpha": alpha,
                **caption_figures(models, together, count, partial(vision_aware_heads, alpha=alpha)),
            }
            for name, models in networks.items()
            for alpha in ALPHAS
        ]  # fmt: skip
        settings.say(f"pairs together {together}: done")
    cases: dict[str, Any] = {
        "alpha 2": {}, "only layer 1": {"layers": [1]}, "only layer 2": {"layers": [2]},
        "with outliers": {"drop_outliers": False},
    }  # fmt: skip
    rows: list[dict[str, Any]] = []
    for name, models in networks.items():
        rows += [
            {"network": name, "case": case, **caption_figures(models, 0.9, count, partial(vision_aware_heads, **given))}
            for case, given in cases.items()
        ]
        parts = [caption_figures([model], 0.9, count, partial(_held, gates=_gates(model, 1))) for model in models]
        fixed = {figure: round(statistics.mean(part[figure] for part in parts), 2) for figure in parts[0]}
        rows.append({"network": name, "case": "heads of one image", **fixed})
    tables["Ablations, pairs together 0.9"] = rows
    tables["Heads that images choose"] = _choices(_gates(bundled, count))
    tables["Divergence at words"] = _words(bundled, count)
    _draw(tables, settings)
    return {"tables": tables, "notes": ["alpha 1 is the network without an intervention"], "pictures": [PICTURE]}


def _prompts(count: int, together: float = 0.9) -> tuple[Tensor, Tensor]:
    """Rows of images with their prompt, and the classes that are there."""
    split = test_set(count, together, SEED, most=0)
    rows = split.batch(torch.arange(count)).rows
    assert rows is not None
    return rows[:, : CELLS + 1], split.scenes.present


def _gates(model: nn.Module, count: int) -> dict[int, Tensor]:
    with vision_aware_heads(model) as heads:
        heads.prepare(_prompts(count)[0])
    return heads.gates


@contextmanager
def _held(model: nn.Module, gates: Mapping[int, Tensor]) -> Iterator[None]:
    """The same gates for every image."""
    with vision_aware_heads(model) as heads:
        heads.gates, heads.busy = dict(gates), True
        yield


def _choices(gates: dict[int, Tensor]) -> list[dict[str, Any]]:
    """Of each layer: the share of images that choose each head, and how often two images choose the same set."""
    rows = []
    for layer, gate in gates.items():
        chosen = gate > 1
        _, counts = chosen.unique(dim=0, return_counts=True)
        share, number = counts.double() / len(chosen), len(chosen)
        same = float((share * (counts - 1) / max(number - 1, 1)).sum())
        heads = {f"head {head}": round(float(each), 2) for head, each in enumerate(chosen.double().mean(0))}
        rows.append({"layer": layer, **heads, "sets": len(counts), "same set": round(same, 2)})
    return rows


def _words(model: nn.Module, count: int) -> list[dict[str, Any]]:
    """Token-VHD, summed over layers with k 1, where captions name what is there and what is not."""
    prompts, present = _prompts(count)
    with torch.no_grad():
        tokens, _ = generate(model, prompts)
    values: dict[str, list[float]] = {"there": [], "not there": []}
    for place in range(tokens.shape[1]):
        live = (tokens[:, : place + 1] == END).sum(1) == 0
        live &= tokens[:, place] >= FIRST
        if not bool(live.any()):
            break
        rows = torch.cat((prompts[live], text_rows(tokens[live, :place])), 1)
        found = token_divergence(vision_aware_divergence(model, rows), 1)
        true = present[live].gather(1, tokens[live, place, None] - FIRST).squeeze(1)
        values["there"] += found[true].tolist()
        values["not there"] += found[~true].tolist()
    return [
        {"word": name, "number": len(each), "token-VHD": round(statistics.mean(each or [0.0]), 3)}
        for name, each in values.items()
    ]


def _draw(tables: dict[str, Any], settings: Settings) -> None:
    figure = new_figure(7, 3)
    for axes, together in zip(figure.subplots(1, 2), TOGETHER, strict=True):
        rows = [row for row in tables[f"By alpha, pairs together {together}"] if row["network"] == "bundled"]
        for name, label in (("chair_s", "CHAIR_S"), ("chair_i", "CHAIR_I"), ("recall", "recall")):
            axes.plot(ALPHAS, [row[name] for row in rows], marker="o", label=label)
        axes.set(xlabel="alpha", ylabel="%", title=f"pairs together {together}", ylim=(0, 100))
        axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    save_figure(figure, settings.folder / PICTURE)
