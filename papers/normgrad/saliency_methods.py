"""All methods of saliency on scenes of two shapes: the pointing game and class sensitivity by depth, and every check.

The most salient pixel of the map for a shape that is there must lie on that shape, not on the other one.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from mereo.errors import UsageError
from mereo.explain import rank_correlation
from mereo.explain.saliency import (
    METHODS,
    Mean,
    Saliency,
    check_saliency,
    class_sensitivity,
    extract_aggregate,
    meta_saliency,
    pointing_game,
    saliency_map,
)
from mereo.explain.saliency.two_phase import Phase1
from mereo.models import VisionModel
from mereo.pictures import displayable, new_figure, save_figure
from mereo.tasks.interval import wilson_interval
from papers.common.settings import Settings
from papers.normgrad.two_shapes import NAMES, Scenes, make_scenes, networks, train

TRAIN, STEPS, BATCH = 4000, {"CNN": 700, "ViT": 4000, "MSPCaps": 500}, 32
"""Training images, steps of each network, and images of a step."""
EVERY = tuple(METHODS)
IMAGES, CHECKED, PASSES = 100, 24, 8
"""Scenes of the pointing game, scenes of the checks, and steps of their curves."""
TOLERANCE = 1
"""Pixels of 32; the paper's 15 are of about 500."""
BY_DEPTH = ("normgrad", "selective_normgrad", "linear_approximation", "gradcam")
META = 2.5e-3
VIRTUAL: tuple[Phase1, ...] = ("conv1x1", "conv3x3")
PICTURE = "maps.png"


def hits(model: VisionModel, scenes: Scenes, method: str | Saliency, layers: list[str] | None) -> Tensor:
    """For each shape that is there, in the order of images and classes, whether the map for it hits it."""
    found = []
    for number in range(len(NAMES)):
        there = scenes.present[:, number]
        if bool(there.any()):
            maps = saliency_map(model, scenes.images[there], number, layers, method=method)
            found.append(pointing_game(maps, scenes.masks[there] == number + 1, TOLERANCE))
    return torch.cat(found)


def share(found: Tensor) -> tuple[float, str]:
    """Percent of hits, and Wilson's interval in words."""
    mean = float(found.double().mean())
    low, high = wilson_interval(mean, len(found))
    return 100 * mean, f"{100 * low:.0f} to {100 * high:.0f}"


def correlation(values: Tensor) -> float:
    """The mean of those that are numbers; 1 if every map is the same everywhere."""
    known = values[values.isfinite()]
    return float(known.mean()) if len(known) else 1.0


def words(mean: Mean | None) -> str:
    """A mean with its interval; a dash if there is none."""
    return "-" if mean is None or not mean.images else str(mean)


def depth_rows(name: str, model: VisionModel, scenes: Scenes) -> Iterator[dict[str, Any]]:
    """Hits and correlations of some methods at each layer, and of the product over all layers."""
    layers = [str(info["module"]) for info in model.feature_info]
    if name == "ViT":  # only the class token of the last block counts: patches act by their norm before it
        layers[-1] += ".norm1"
    for given in (*([each] for each in layers), layers):
        row: dict[str, Any] = {"network": name, "layer": given[0] if len(given) == 1 else "all, product"}
        for method in BY_DEPTH:
            row[f"{method} hits %"] = share(hits(model, scenes, method, given))[0]
            row[f"{method} classes"] = correlation(class_sensitivity(model, scenes.images, given, method=method))
        yield row


def method_rows(name: str, model: VisionModel, scenes: Scenes, settings: Settings) -> Iterator[dict[str, Any]]:
    """Everything known of each method, at the layer that it chooses itself."""
    few = Scenes(*(field[:CHECKED] for field in scenes))
    for method in EVERY:
        row: dict[str, Any] = {"network": name, "method": method}
        try:
            checks = check_saliency(model, few.images, method=method, steps=PASSES)
        except UsageError as reason:
            settings.say(f"{name}: {reason}")
            continue
        settings.say(f"{name}: {method}")
        percent, interval = share(hits(model, few if method == "attention_flow" else scenes, method, None))
        yield row | {
            "hits %": percent,
            "interval": interval,
            "shuffled weights": words(checks.randomised),
            "classes": words(checks.sensitivity),
            "deletion": words(checks.deletion),
            "insertion": words(checks.insertion),
            "fails": ", ".join(checks.failures) or "nothing",
        }


def run(settings: Settings) -> dict[str, Any]:
    """Train the networks, and take every method to their maps."""
    scenes = make_scenes(settings.images or IMAGES, 1)
    training = make_scenes(TRAIN, 0)
    models = {name: model for name, model in networks().items() if name in settings.chosen(STEPS)}
    facts, by_depth, by_method, moved = (list[dict[str, Any]]() for _ in range(4))
    for name, model in models.items():
        train(model, training, STEPS[name], BATCH)
        with torch.no_grad():
            top = torch.zeros_like(scenes.present).scatter(1, model(2 * scenes.images - 1).topk(2, 1).indices, True)
        right = 100 * float((top == scenes.present).all(1).double().mean())
        facts.append(
            {"network": name, "both shapes named %": right, "weights": sum(p.numel() for p in model.parameters())}
        )
        settings.say(f"{name}: {right:.1f} %")
        by_depth += depth_rows(name, model, scenes)
        by_method += method_rows(name, model, scenes, settings)
        few = scenes.images[:CHECKED]
        for method in BY_DEPTH:
            values = [
                correlation(class_sensitivity(model, few, method=m)) for m in (method, meta_saliency(method, META))
            ]
            moved.append({"network": name, "method": method, "classes": values[0], "after the step": values[1]})
    _draw(models, scenes, settings)
    chance = 100 * float(torch.stack([(scenes.masks == n + 1).double().mean((1, 2))[scenes.present[:, n]].mean()
                                      for n in range(len(NAMES)) if scenes.present[:, n].any()]).mean())  # fmt: skip
    tables = {
        "networks": facts,
        "by depth: hits %, and correlation of the maps for the most and least probable class": by_depth,
        "all methods at their own layer": by_method,
        f"class correlation after a step of {META:g}": moved,
    }
    if "CNN" in models:
        title = "virtual layers of the CNN against its own convolutions"
        tables[title] = _virtual(models["CNN"], scenes.images[:CHECKED])
    notes = [
        f"The shapes asked for cover {chance:.1f} % of their images: random pixels hit as often, or a little more."
    ]
    return {"tables": tables, "notes": notes, "pictures": [PICTURE]}


def _virtual(model: VisionModel, images: Tensor) -> list[dict[str, Any]]:
    """Rank correlation of NormGrad of a convolution with that of a virtual layer at its input."""
    rows = []
    for stage in range(3):
        block, row = f"stages.{stage}.0", {"convolution": f"stages.{stage}.0.second.0"}
        real = extract_aggregate(model, images, None, f"{block}.second.0", "real", "norm").flatten(1)
        for phase1 in VIRTUAL:
            virtual = extract_aggregate(model, images, None, f"{block}.first", phase1, "norm").flatten(1)
            row[f"virtual {phase1}"] = float(rank_correlation(real, virtual).mean())  # type: ignore[assignment]
        rows.append(row)
    return rows


def _draw(models: dict[str, VisionModel], scenes: Scenes, settings: Settings) -> None:
    """The maps of some methods for both shapes of two scenes, a row a network and shape."""
    methods = (*BY_DEPTH, "gradient", "integrated_gradients")
    rows = [
        (name, n, shape) for name in models for n in range(1) for shape in scenes.present[n].nonzero()[:, 0].tolist()
    ]
    figure = new_figure(1.35 * (1 + len(methods)), 1.5 * len(rows))
    for panels, (name, n, shape) in zip(figure.subplots(len(rows), 1 + len(methods), squeeze=False), rows, strict=True):
        panels[0].imshow(displayable(scenes.images[n]))
        panels[0].set_ylabel(f"{name}: {NAMES[shape]}", fontsize=8)
        for axes, method in zip(panels[1:], methods, strict=True):
            values = saliency_map(models[name], scenes.images[n : n + 1], shape, method=method)[0]
            top = float(values.abs().max().clamp(min=1e-12))
            axes.imshow(values.numpy(), cmap="RdBu_r", vmin=-top, vmax=top)
            axes.contour((scenes.masks[n] == shape + 1).numpy(), [0.5], colors="black", linewidths=0.8)
        for axes, title in zip(panels, ("image", *methods), strict=True):
            axes.set(xticks=[], yticks=[])
            if panels[0] is figure.axes[0]:
                axes.set_title(title.replace("_", "\n", 1).replace("_", " "), fontsize=8)
    save_figure(figure, settings.folder / PICTURE)
