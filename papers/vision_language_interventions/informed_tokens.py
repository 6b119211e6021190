"""PAINT on TinyVL: nothing to mend in a short sequence, and ablations with an encoder behind a long prefix."""

from functools import partial
from typing import Any

import torch
from torch import nn

import mereo
from mereo.data.captions import CELLS, test_set
from mereo.interventions import head_sensitivity, paint
from mereo.pictures import new_figure, save_figure
from papers.common.settings import Settings
from papers.vision_language_interventions.measures import SEED, caption_figures, swept
from papers.vision_language_interventions.networks import FILLER, STEPS, trained

IMAGES, ALPHAS = 600, (0.0, 0.25, 0.5, 0.75, 1.0)
GAMMA = 2.0
PICTURE = "boosts.png"
LAYERS = (1, 2)


def run(settings: Settings) -> dict[str, Any]:
    """Tables of attention to the image, of the parent method on the plain network, and of ablations and a sweep."""
    count = settings.images or IMAGES
    plain, long = (trained(settings, kind, 0, STEPS) for kind in ("plain", "long"))
    tables: dict[str, Any] = {"Attention of the prompt's end to the image": [
        {"network": name, **_masses(model, count, filler)}
        for name, model, filler in (("plain", plain, 0), ("48 filler tokens", long, FILLER))
    ]}  # fmt: skip
    raised = {f"raised by {alpha}": alpha for alpha in (0.0, 0.3, 0.7, 1.5)}
    tables["All image tokens, plain network"] = swept(
        settings.say, raised,
        lambda alpha: caption_figures([plain], 0.9, count, partial(paint, alpha=alpha, beta=0.0, layers=LAYERS)),
    )  # fmt: skip
    every, nobody = torch.ones(CELLS, dtype=torch.bool), torch.zeros(CELLS, dtype=torch.bool)
    rows = test_set(48, 0.9, 1, FILLER, most=0).batch(torch.arange(48)).rows
    assert rows is not None
    gains = head_sensitivity(long, rows[:, : CELLS + FILLER + 1])
    cases: dict[str, Any] = {
        "none": {"alpha": 0.0, "beta": 0.0},
        "all image tokens": {"local": every, "summary": nobody},
        "local only": {"beta": 0.0},
        "summary only": {"alpha": 0.0},
        "both": {},
        "both, gains of heads": {"head_gain": gains},
        "both, heads above the median": {"head_gain": gains * (gains > gains.median(1, keepdim=True).values)},
    }
    for together in (0.9, 0.0):
        made = [
            {
                "case": name,
                **caption_figures([long], together, count, partial(paint, layers=LAYERS, **given), filler=FILLER),
            }
            for name, given in cases.items()
        ]
        settings.say(f"pairs together {together}: done")
        contrasted = caption_figures([long], together, count, partial(paint, layers=LAYERS), filler=FILLER, gamma=GAMMA)
        tables[f"Long prefix, pairs together {together}"] = [*made, {"case": f"both, gamma {GAMMA}", **contrasted}]
    tables["Long prefix, by alpha"] = swept(
        settings.say, {f"alpha {alpha}": alpha for alpha in ALPHAS},
        lambda alpha: caption_figures(
            [long], 0.9, count, partial(paint, alpha=alpha, beta=3 * alpha / 7, layers=LAYERS), filler=FILLER
        ),
    )  # fmt: skip
    _draw(tables["Long prefix, by alpha"], settings)
    return {"tables": tables, "notes": ["beta is 3 / 7 of alpha in the sweep, as by default"], "pictures": [PICTURE]}


def _masses(model: nn.Module, count: int, filler: int) -> dict[str, float]:
    rows = test_set(count, 0.9, SEED, filler, most=0).batch(torch.arange(count)).rows
    assert rows is not None
    with mereo.record(model) as trace, torch.no_grad():
        model(rows[:, : CELLS + filler + 1])
    names = [name for name in trace if name.startswith("blocks.")]
    return {
        f"layer {layer}": round(float(trace[name][:, :, -1, 1 : 1 + CELLS].sum(-1).mean()), 3)
        for layer, name in enumerate(names)
    }


def _draw(rows: list[dict[str, Any]], settings: Settings) -> None:
    figure = new_figure(4.5, 3)
    axes = figure.subplots()
    for name, label in (("chair_s", "CHAIR_S"), ("chair_i", "CHAIR_I"), ("recall", "recall")):
        axes.plot(ALPHAS, [row[name] for row in rows], marker="o", label=label)
    axes.set(xlabel="alpha", ylabel="%", ylim=(0, 100))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    save_figure(figure, settings.folder / PICTURE)
