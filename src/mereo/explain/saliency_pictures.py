"""A picture of saliency: image, scores, and the map of each method, with the checks of the methods below."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from mereo.explain.captions import about_line
from mereo.explain.layout import make_sheet
from mereo.explain.observation import observe
from mereo.explain.panels import SHARES, VOTES, draw_answer, draw_image, draw_title, outline, short
from mereo.explain.pictures import MOST_ROWS, check_titles
from mereo.explain.saliency import SaliencyChecks, saliency_map
from mereo.explain.saliency.signals import Layers
from mereo.explain.target import resolve_target
from mereo.explain.wording import UNBOUNDED, WORDINGS, bars_of, kind_of
from mereo.inference.predict import class_names
from mereo.models import VisionModel
from mereo.pictures import displayable, save_figure
from mereo.tasks.explained import Explained


def describe_checks(method: str, checks: SaliencyChecks) -> str:
    """What the checks of a method found, in two sentences at most."""
    figures = [f"correlation with shuffled weights {checks.randomised}"]
    if checks.sensitivity is not None:
        figures.append(f"between classes {checks.sensitivity}")
    figures += [f"deletion {checks.deletion}", f"insertion {checks.insertion} against the same map moved"]
    failed = f" Do not rely on it: {'; '.join(checks.failures.values())}." if checks.failures else " No check failed."
    return f"{method}: {', '.join(figures)}.{failed}"


def draw_saliency(
    model: VisionModel,
    images: Tensor,
    path: str | Path,
    methods: Sequence[str],
    layers: Layers = None,
    *,
    titles: Sequence[str] | None = None,
    classes: Tensor | Explained | None = None,
    checks: Mapping[str, SaliencyChecks] = {},
) -> Path:
    """Draw the maps of methods, one image a row, as PNG.

    Args:
        model: any classifier.
        images: in [0, 1], not normalised; at most 12 are drawn, the first ones.
        path: of the file.
        methods: names of `METHODS`, a column each.
        layers: see `saliency_map`.
        titles: a line above each image.
        classes: which class to explain for each image, (batch,), or what a task explains of them; when None the
            predicted class, or what the task chooses.
        checks: of the methods, by name, for the caption.

    Shapes: images (batch, channels, height, width).
    """
    check_titles(titles, len(images))
    total, images = len(images), images[:MOST_ROWS]
    asked = classes[:MOST_ROWS] if isinstance(classes, Tensor) else classes
    observation = observe(model, images, target=asked)
    model, names = observation.model, list(class_names(observation.model))
    explained = resolve_target(model, observation.scores, asked)
    assert isinstance(explained, Tensor | Explained)
    about = explained if isinstance(explained, Explained) else None
    kind = about.kind if about else kind_of(model)
    maps = [saliency_map(model, images, explained, layers, method=method).cpu() for method in methods]
    caption = [about_line(WORDINGS[kind])] if about else []
    caption += [
        f"Each map has its own scale: red counts for {'it' if about else 'the class'}, blue against it; orange where no"
        " sign is given."
    ]
    caption += [describe_checks(method, each) for method, each in checks.items()]
    caption += [f"The first {MOST_ROWS} of {total} images."] if total > MOST_ROWS else []
    letters = 0 if about else max(len(short(name)) for name in names)
    sheet = make_sheet(len(images), (images.shape[2], images.shape[3]), 1 + len(maps), letters, caption)
    for i, row in enumerate(sheet.axes):
        draw_image(row[0], images[i])
        if titles is not None:
            draw_title(row[0], titles[i])
        bars = bars_of(observation.scores, kind)[i]
        draw_answer(
            row[1], images[i], explained, i, bars, names, bounded=kind not in UNBOUNDED, ticks=i == len(sheet.axes) - 1
        )
        for axes, each in zip(row[2:], maps, strict=True):
            _overlay(axes, images[i], each[i])
            outline(axes, about, i)
    where = "" if layers is None else f"layers {', '.join(map(str, layers))}"
    sheet.head([("image", ""), WORDINGS[kind].column, *((method.replace("_", " "), where) for method in methods)])
    save_figure(sheet.figure, Path(path))
    return Path(path)


def _overlay(axes: Any, image: Tensor, values: Tensor) -> None:
    """A map (height, width) over the faint image."""
    from matplotlib.colors import LinearSegmentedColormap

    values, signed = values.float(), bool((values < 0).any())
    top = max(float(values.abs().flatten().quantile(0.995)), 1e-12)
    grey = displayable(image.mean(0, keepdim=True))
    axes.imshow(grey, cmap="gray", vmin=-1, vmax=1, interpolation="nearest")  # the upper half of the greys
    colours = LinearSegmentedColormap.from_list("saliency", VOTES if signed else SHARES)
    low = -top if signed else 0
    axes.imshow(values.numpy(), cmap=colours, vmin=low, vmax=top, interpolation="nearest", alpha=0.75)
    axes.set(xticks=[], yticks=[])
    for side in axes.spines.values():
        side.set(edgecolor="#ced4da", linewidth=0.6)
