"""A picture of input gradients: image, scores, the gradient of the class's score, and integrated gradients."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mereo.explain.captions import about_line
from mereo.explain.gradients import input_gradients, integrated_gradients
from mereo.explain.layout import make_sheet
from mereo.explain.observation import observe
from mereo.explain.panels import VOTES, draw_answer, draw_image, draw_title, outline, short
from mereo.explain.pictures import MOST_ROWS, check_titles
from mereo.explain.target import resolve_target, value_of
from mereo.explain.wording import UNBOUNDED, WORDINGS, bars_of, kind_of
from mereo.inference.predict import class_names
from mereo.models import VisionModel
from mereo.pictures import save_figure
from mereo.tasks.explained import Explained

BRIGHTEST = 0.995
"""Quantile of pixel values that gets the strongest colour: otherwise a few pixels would make the others pale."""


def draw_gradients(
    model: VisionModel,
    images: Tensor,
    path: str | Path,
    *,
    titles: Sequence[str] | None = None,
    classes: Tensor | Explained | None = None,
) -> Path:
    """Draw which pixels a class depends on, one image a row, as PNG.

    Columns: the image; the scores of the classes; the gradient of the explained score with respect to the image; the
    same integrated from a black image on. Colours are sums over the channels.

    Args:
        model: any classifier.
        images: in [0, 1], not normalised; at most 12 are drawn, the first ones, and the caption states this.
        path: of the file.
        titles: a line above each image.
        classes: which class to explain for each image, (batch,), or what a task explains of them; when None the
            predicted class, or what the task chooses.

    Shapes: images (batch, channels, height, width).
    """
    total = len(images)
    check_titles(titles, total)
    images = images[:MOST_ROWS]
    asked = classes[:MOST_ROWS] if isinstance(classes, Tensor) else classes
    observation = observe(model, images, target=asked)
    scores, model = observation.scores, observation.model
    explained = resolve_target(model, scores, asked)
    assert isinstance(explained, Tensor | Explained)
    about = explained if isinstance(explained, Explained) else None
    plain, integrated = (f(model, images, explained) for f in (input_gradients, integrated_gradients))
    names, kind = list(class_names(model)), about.kind if about else kind_of(model)
    words, bars = WORDINGS[kind], bars_of(scores, kind)
    black = observe(model, torch.zeros_like(images), target=explained).scores
    risen = value_of(scores, explained) - value_of(black, explained)
    what = about_line(words) if about else "Orange bar: the class explained."
    caption = [
        f"{what} Red: a brighter pixel {words.raises}; blue: {words.lowers}.",
        "Each picture has its own scale, which leaves the strongest pixels beyond its end.",
        f"Integrated gradients sum to the {words.one} minus the {words.one} of a black image; here to within"
        f" {float((integrated.flatten(1).sum(1) - risen).abs().max()):.3f}.",
    ]
    if total > MOST_ROWS:
        caption.append(f"The first {MOST_ROWS} of {total} images.")
    letters, (height, width) = 0 if about else max(len(short(name)) for name in names), images.shape[-2:]
    sheet = make_sheet(len(images), (height, width), 3, letters, caption)
    for i, row in enumerate(sheet.axes):
        draw_image(row[0], images[i])
        if titles is not None:
            draw_title(row[0], titles[i])
        draw_answer(
            row[1], images[i], explained, i, bars[i], names, bounded=kind not in UNBOUNDED,
            ticks=i == len(sheet.axes) - 1,
        )  # fmt: skip
        for axes, gradient in zip(row[2:], (plain[i], integrated[i]), strict=True):
            _draw_signed(axes, gradient.sum(0))
            outline(axes, about, i)
    of = "" if about else f"of the {words.one}"
    sheet.head([("image", ""), words.column, ("gradient", of), ("integrated", "from black")])
    path = Path(path)
    save_figure(sheet.figure, path)
    return path


def _draw_signed(axes: Any, values: Tensor) -> None:
    """Values (height, width) from blue over white, which is 0, to red."""
    from matplotlib.colors import LinearSegmentedColormap

    values = values.float().cpu()
    top = max(float(values.abs().flatten().quantile(BRIGHTEST)), 1e-12)
    colours = LinearSegmentedColormap.from_list("gradient", VOTES)
    axes.imshow(values.numpy(), cmap=colours, vmin=-top, vmax=top, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    for side in axes.spines.values():
        side.set(edgecolor="#ced4da", linewidth=0.6)
