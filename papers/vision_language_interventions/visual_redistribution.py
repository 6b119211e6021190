"""Redistribution on TinyVL with a planted sink: sweeps, ablations, and what sinks do."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import mereo
from mereo.core.observe import Call
from mereo.data.captions import CELLS, test_set
from mereo.interventions import find_sink_dimensions, redistribute_visual_attention
from mereo.interventions.redistribute_visual_attention import sink_values, threshold
from mereo.pictures import new_figure, save_figure
from papers.common.settings import Settings
from papers.vision_language_interventions.measures import SEED, caption_figures, swept
from papers.vision_language_interventions.networks import PLANTED, STEPS, planted, trained

IMAGES, RHOS, TAKES = 600, (0.0, 0.2, 0.5, 0.8), (0.2, 0.4, 0.6, 0.8, 1.0)
LAYERS = (1, 2)
"""Of three, since the rule of the paper (from the third on but the last) leaves none."""
PICTURE = "redistribution.png"
WIDTH = 48
_SINKS = (0, 1 + PLANTED)


def run(settings: Settings) -> dict[str, Any]:
    """Tables of sinks, sweeps, ablations and knock-outs, and a picture of the sweeps."""
    count = settings.images or IMAGES
    model = trained(settings, "planted", 0, STEPS)
    tables: dict[str, Any] = {}
    with planted(model):
        tables["Sinks"] = _sinks(model, count)
        for together in (0.9, 0.0):
            cases: dict[str, Any] = {"none": {"take": 0.0}} | {f"take {take}": {"take": take} for take in TAKES}
            cases |= {f"rho {rho}": {"rho": rho} for rho in RHOS}
            tables[f"Sweeps, pairs together {together}"] = swept(
                settings.say, cases, figures_at(model, together, count)
            )
        ablations: dict[str, Any] = {"every head": {"rho": 0.0, "min_visual": 0.0}, "image-centric heads": {}}
        rows = swept(settings.say, ablations, figures_at(model, 0.9, count))
        for target in ("image and text", "text"):
            rows.append(
                {"case": f"budget to {target}", **caption_figures([model], 0.9, count, partial(_given, target=target))}
            )
        tables["Ablations, pairs together 0.9"] = rows
        tables["Knock-out"] = _knock_out(model, count)
        dims = find_sink_dimensions(model, _rows(min(count, 48)), first_layer=1)
        tables["Contributions"] = _contributions(model, count)
    _draw(tables, settings)
    found = ", ".join(map(str, dims)) or "none"
    notes = [f"dimensions in which the start is huge: {found}; dimension 0 is used"]
    notes += ["layers 1 and 2 of 0 to 2 are changed; rho is 0.5 and take 0.6 where a case does not say otherwise"]
    return {"tables": tables, "notes": notes, "pictures": [PICTURE]}


def figures_at(model: nn.Module, together: float, count: int) -> Callable[[dict[str, Any]], dict[str, float]]:
    """Captions of a network by the arguments of the intervention."""

    def figures(changes: dict[str, Any]) -> dict[str, float]:
        change = partial(redistribute_visual_attention, layers=LAYERS, dims=[0], **changes)
        return caption_figures([model], together, count, change)

    return figures


def _rows(count: int) -> Tensor:
    rows = test_set(count, 0.9, SEED, most=0).batch(torch.arange(count)).rows
    assert rows is not None
    return rows[:, : CELLS + 1]


def _sinks(model: nn.Module, count: int) -> list[dict[str, Any]]:
    """Of the state that enters each layer: the sink value of start, planted token and others, and their attention."""
    entering: dict[int, Tensor] = {}
    blocks: Any = model.blocks
    handles = [
        block.norm1.register_forward_pre_hook(lambda _, given, n=n: entering.__setitem__(n, given[0]))
        for n, block in enumerate(blocks)
    ]
    with mereo.record(model) as trace, torch.no_grad():
        model(_rows(count))
    for handle in handles:
        handle.remove()
    rows = []
    for layer, x in entering.items():
        values, couplings = sink_values(x, [0]), trace[f"blocks.{layer}.coupling"][:, :, -1].mean((0, 1))
        others = [j for j in range(1, 17) if j not in _SINKS]
        rows.append(
            {
                "layer": layer, "threshold": round(threshold("relative", x.shape[-1]), 2),
                "start": round(float(values[:, 0].mean()), 2), "planted": round(float(values[:, _SINKS[1]].mean()), 2),
                "other image tokens": round(float(values[:, others].mean()), 2),
                "attention to planted": round(float(couplings[_SINKS[1]]), 3),
                "to another image token": round(float(couplings[others].mean()), 3),
                "to start": round(float(couplings[0]), 3),
                "image sinks that are planted": round(_planted_share(values), 3),
            }
        )  # fmt: skip
    return rows


def _planted_share(values: Tensor) -> float:
    """The share of image tokens above the threshold that are the planted one."""
    sinks = values[:, 1:] >= threshold("relative", WIDTH)
    return float(sinks[:, PLANTED].sum() / sinks[:, :CELLS].sum().clamp(min=1))


@contextmanager
def _given(model: nn.Module, target: str) -> Iterator[None]:
    """The same heads and budget, given to text tokens, or to text and image tokens, that are no sinks."""

    def change(couplings: Tensor, call: Call) -> Tensor:
        senders = couplings.shape[-1]
        sinks = torch.zeros(senders, dtype=torch.bool).index_fill(0, torch.tensor(_SINKS), True)
        text = torch.arange(senders) > CELLS
        image = ~sinks & ~text
        targets = text if target == "text" else ~sinks
        tail = couplings[:, :, max(CELLS + 1 - (senders - couplings.shape[2]), 0) :]
        mass, good = (
            tail[..., image | (sinks & (torch.arange(senders) > 0))].sum(-1, True),
            tail[..., image].sum(-1, True),
        )
        chosen = (mass >= 0.2) & (good / mass >= 0.5)
        budget, there = 0.6 * tail[..., sinks].sum(-1, True), tail[..., targets].sum(-1, True)
        moved = torch.where(sinks, 0.4 * tail, tail * (1 + targets * budget / there.clamp(min=1e-9)))
        tail = torch.where(chosen & (there > 0), moved, tail)
        return torch.cat((couplings[:, :, : couplings.shape[2] - tail.shape[2]], tail), 2)

    with mereo.intervene(model, {f"blocks.{layer}.coupling": change for layer in LAYERS}):
        yield


def _knock_out(model: nn.Module, count: int) -> list[dict[str, Any]]:
    """The mean change of the scores of the first word if text does not attend to a token, and by attention removed."""
    rows, generator = _rows(count), torch.Generator().manual_seed(0)
    names, samples = [f"blocks.{layer}.coupling" for layer in LAYERS], torch.arange(len(rows))
    with torch.no_grad(), mereo.record(model, names) as trace:
        plain = model(rows)[:, -1]
    table = []
    for name in ("planted sink", "random image token"):
        places = torch.full((len(rows),), _SINKS[1])
        if name != "planted sink":
            places = torch.randint(1, 1 + PLANTED, (len(rows),), generator=generator)

        def mask(scores: Tensor, places: Tensor = places) -> Tensor:
            scores = scores.clone()
            scores[samples, :, -1, places] = -torch.inf
            return scores

        with torch.no_grad(), mereo.intervene(model, scores=dict.fromkeys(names, mask)):
            change = float((model(rows)[:, -1] - plain).norm(dim=1).mean())
        removed = sum(float(trace[each][samples, :, -1, places].mean()) for each in names)
        shown = {"change of the scores": change, "attention removed": removed, "change by attention": change / removed}
        table.append({"knocked out": name, **{key: round(value, 3) for key, value in shown.items()}})
    return table


def _contributions(model: nn.Module, count: int) -> list[dict[str, Any]]:
    """||a_ij x_j W_V W_O|| of the last prompt token, the mean over heads, of the sink and of other image tokens."""
    values: dict[int, Tensor] = {}
    blocks: Any = model.blocks
    handles = [
        block.qkv.register_forward_hook(lambda _, given, out, n=n: values.__setitem__(n, out.chunk(3, -1)[2]))
        for n, block in enumerate(blocks)
    ]
    with mereo.record(model) as trace, torch.no_grad():
        model(_rows(count))
    for handle in handles:
        handle.remove()
    table = []
    for layer in LAYERS:
        block, heads = blocks[layer], blocks[layer].num_heads
        v = values[layer].unflatten(-1, (heads, -1))
        weight = block.proj.weight.detach().unflatten(1, (heads, -1))
        lengths = torch.einsum("bjhd,ohd->bhjo", v, weight).norm(dim=-1) * trace[f"blocks.{layer}.coupling"][:, :, -1]
        mean = lengths.mean((0, 1))
        others = [j for j in range(1, 17) if j not in _SINKS]
        shown = {"planted sink": mean[_SINKS[1]], "another image token": mean[others].mean(), "start": mean[0]}
        table.append({"layer": layer, **{name: round(float(each), 3) for name, each in shown.items()}})
    return table


def _draw(tables: dict[str, Any], settings: Settings) -> None:
    figure = new_figure(7, 3)
    for axes, (word, values) in zip(figure.subplots(1, 2), (("take", TAKES), ("rho", RHOS)), strict=True):
        rows = {row["case"]: row for row in tables["Sweeps, pairs together 0.9"]}
        places = ([0.0, *values], ["none", *(f"take {v}" for v in values)]) if word == "take" else (
            [*values], [f"rho {v}" for v in values]
        )  # fmt: skip
        for name, label in (("chair_s", "CHAIR_S"), ("chair_i", "CHAIR_I"), ("recall", "recall")):
            axes.plot(places[0], [rows[case][name] for case in places[1]], marker="o", label=label)
        axes.set(xlabel=word, ylabel="%", ylim=(0, 100))
        axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    save_figure(figure, settings.folder / PICTURE)
