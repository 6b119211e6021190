"""Random-feature attention, with and without a bias, and a random MLP of as many trained weights learn four averages.

Queries and keys are uniform on the unit sphere, and the targets have no noise. All models are ridge regressions whose
penalty is chosen on samples held out. The kernel of infinitely many heads learns the same.
"""

from collections.abc import Callable
from statistics import mean, stdev
from typing import Any

import torch
from scipy.stats import t
from torch import Tensor

from mereo.mechanisms.attention import RandomFeatureAttention, RandomFeatureMLP, kernel_ridge, random_feature_kernel
from mereo.pictures import grid_of_panels, save_figure
from papers.common.settings import Settings

DIM, KEYS, HEADS = 8, 8, 200
SAMPLES, HELD_OUT = (100, 400, 1600), 1000
PENALTIES = tuple(10.0**power for power in range(-6, 0))
PICTURE = "errors.png"
COLOURS = {"RFA": "#1971c2", "BRFA": "#2b8a3e", "RFMLP": "#e8590c", "RFA, all heads": "#868e96"}

Samples = tuple[Tensor, Tensor]
Errors = dict[tuple[str, int, str], float]
"""Error by target, number of samples and model."""

TARGETS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean <b, x_i>^2": lambda along, _: along.square(),
    "mean <b, x_i>^4": lambda along, _: along.pow(4),
    "mean <x_0, x_i> <b, x_i>": lambda along, fit: fit * along,
    "mean <x_0, x_i>^3 <b, x_i>": lambda along, fit: fit.pow(3) * along,
}
"""Of <b, x_i> with a fixed unit vector b, and <x_0, x_i>; each is averaged over the keys."""


def draw(samples: int) -> Samples:
    """Queries (samples, dim) and keys (samples, keys, dim), uniform on the unit sphere."""
    x = torch.nn.functional.normalize(torch.randn(samples, KEYS + 1, DIM, dtype=torch.float64), dim=-1)
    return x[:, 0], x[:, 1:]


def answers(query: Tensor, keys: Tensor) -> Tensor:
    """The targets: (samples, targets)."""
    along, fit = keys[..., 0], (keys @ query.unsqueeze(-1)).squeeze(-1)
    return torch.stack([function(along, fit).mean(1) for function in TARGETS.values()], 1)


def kernels() -> dict[str, Callable[[Samples, Samples], Tensor]]:
    """Each model as the products of its features, which are drawn here."""
    models = {
        "RFA": RandomFeatureAttention(DIM, HEADS).double(),
        "BRFA": RandomFeatureAttention(DIM, HEADS, bias="identity").double(),
        "RFMLP": RandomFeatureMLP(DIM, KEYS, HEADS * (DIM + 1)).double(),
    }
    return {name: model.gram for name, model in models.items()} | {
        "RFA, all heads": lambda inputs, others: random_feature_kernel(*inputs, *others)
    }


@torch.no_grad()
def errors_of(seed: int) -> Errors:
    """Mean squared errors on test samples as shares of the variance, with new samples and features."""
    torch.manual_seed(seed)
    train, valid, test = (draw(samples) for samples in (max(SAMPLES), HELD_OUT, HELD_OUT))
    targets, wanted, true = (answers(*samples) for samples in (train, valid, test))
    found: Errors = {}
    for name, kernel in kernels().items():
        within, to_valid, to_test = (kernel(samples, train) for samples in (train, valid, test))
        for n in SAMPLES:
            scores = []
            for penalty in PENALTIES:
                alpha, constant = kernel_ridge(within[:n, :n], targets[:n], penalty)
                pairs = ((to_valid, wanted), (to_test, true))
                both = [(to[:, :n] @ alpha + constant - y).square().mean(0) / y.var(0) for to, y in pairs]
                scores.append(torch.stack(both))
            on_valid, on_test = torch.stack(scores, 1)  # (penalties, targets) each
            chosen = on_test.gather(0, on_valid.argmin(0, keepdim=True)).squeeze(0)
            found |= {(target, n, name): error for target, error in zip(TARGETS, chosen.tolist(), strict=True)}
    return found


def interval(values: list[float]) -> tuple[float, float | None]:
    """The mean, and half of its 95 % interval by Student's t; None for a single value."""
    if len(values) < 2:
        return values[0], None
    return mean(values), float(t.ppf(0.975, len(values) - 1)) * stdev(values) / len(values) ** 0.5


def run(settings: Settings) -> dict[str, Any]:
    """The errors of all models by target and number of samples, the gain of the bias, and a picture."""
    found = []
    for seed in range(settings.seeds):
        settings.say(f"seed {seed}")
        found.append(errors_of(seed))
    rows, gains = [], []
    for target in TARGETS:
        for n in SAMPLES:
            row: dict[str, Any] = {"target": target, "samples": n}
            for name in COLOURS:
                row[name], row[f"{name} +-"] = interval([errors[target, n, name] for errors in found])
            rows.append(row)
            gain, half = interval([errors[target, n, "BRFA"] - errors[target, n, "RFA"] for errors in found])
            gains.append({"target": target, "samples": n, "BRFA - RFA": gain, "BRFA - RFA +-": half})
    _draw(rows, settings)
    return {
        "tables": {
            f"Test error as a share of the variance, {settings.seeds} seeds": rows,
            "What the bias changes, paired over seeds": gains,
        },
        "notes": [
            f"d = {DIM}, {KEYS} keys, {HEADS} heads, {HEADS * (DIM + 1):,} trained weights each; +- is half of a 95 %"
            " interval of the mean. All heads: the kernel of infinitely many.",
        ],
        "pictures": [PICTURE],
    }


def _draw(rows: list[dict[str, Any]], settings: Settings) -> None:
    """Error by the number of samples, a panel for each target."""
    figure, (panels,) = grid_of_panels(len(TARGETS), len(TARGETS), (2.7, 2.5), (0.4, 0.5), sharey=True)
    for axes, target in zip(panels, TARGETS, strict=True):
        shown = [row for row in rows if row["target"] == target]
        for name, colour in COLOURS.items():
            half = [row[f"{name} +-"] or 0.0 for row in shown]
            style = "--" if name == "RFA, all heads" else "-"
            axes.errorbar(
                SAMPLES, [row[name] for row in shown], half, label=name, color=colour, linestyle=style, marker="o",
                markersize=3.5, linewidth=1.4, capsize=2,
            )  # fmt: skip
        axes.set(xscale="log", yscale="log", xlabel="samples", xticks=SAMPLES, xticklabels=SAMPLES)
        axes.minorticks_off()
        axes.set_title(target, fontsize=9, loc="left")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("test error / variance")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=8)
    save_figure(figure, settings.folder / PICTURE)
