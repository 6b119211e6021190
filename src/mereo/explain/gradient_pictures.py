"""A picture of input gradients: image, lengths, the gradient of the class's length, and integrated gradients."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mereo.explain.explanation import explain
from mereo.explain.gradients import input_gradients, integrated_gradients
from mereo.explain.layout import make_sheet
from mereo.explain.panels import VOTES, draw_image, draw_lengths, draw_title, short
from mereo.explain.pictures import MOST_ROWS, check_titles
from mereo.inference.predict import class_names
from mereo.models import CapsuleClassifier
from mereo.pictures import save_figure

BRIGHTEST = 0.995
"""Quantile of the pixels that gets the strongest colour: otherwise single pixels would make the others pale."""


def draw_gradients(
    model: CapsuleClassifier,
    images: Tensor,
    path: str | Path,
    *,
    titles: Sequence[str] | None = None,
    classes: Tensor | None = None,
) -> Path:
    """Draw which pixels a class depends on, one image a row, as PNG.

    Columns: the image; the lengths of the class capsules; the gradient of the explained length with respect to the
    image; the same integrated from a black image on. Colours are sums over the channels.

    Args:
        model: any capsule classifier.
        images: in [0, 1], not normalised; of more than 12 the first 12 are drawn, and the caption says so.
        path: of the file.
        titles: a line above each image.
        classes: which class to explain for each image, (batch,); the predicted one when None.

    Shapes: images (batch, channels, height, width).
    """
    total = len(images)
    check_titles(titles, total)
    images = images[:MOST_ROWS]
    explanation = explain(model, images, classes=None if classes is None else classes[:MOST_ROWS])
    plain, integrated = (f(model, images, explanation.explained) for f in (input_gradients, integrated_gradients))
    model = getattr(model, "_orig_mod", model)
    names = list(class_names(model))
    black = explain(model, torch.zeros_like(images[:1])).lengths[0]
    rows = torch.arange(len(images), device=explanation.lengths.device)
    risen = explanation.lengths[rows, explanation.explained] - black[explanation.explained]
    caption = [
        "Orange bar: the class explained. Red: a brighter pixel makes its capsule longer; blue: shorter.",
        "Each picture has its own scale; the strongest pixels exceed it.",
        "Integrated gradients sum to the length minus that of a black image; here to within"
        f" {float((integrated.flatten(1).sum(1) - risen).abs().max()):.3f}.",
    ]
    if total > MOST_ROWS:
        caption.append(f"The first {MOST_ROWS} of {total} images.")
    letters, (height, width) = max(len(short(name)) for name in names), images.shape[-2:]
    sheet = make_sheet(len(images), (height, width), 3, False, titles is not None, letters, caption)
    for i, row in enumerate(sheet.axes):
        draw_image(row[0], images[i])
        if titles is not None:
            draw_title(row[0], titles[i])
        draw_lengths(row[1], explanation.lengths[i], int(explanation.explained[i]), set(), names)
        row[1].tick_params(labelbottom=i == len(sheet.axes) - 1)
        for axes, gradient in zip(row[2:], (plain[i], integrated[i]), strict=True):
            _draw_signed(axes, gradient.sum(0))
    sheet.head(
        [
            ("image", ""),
            ("class capsules", "their lengths"),
            ("gradient", "of the length"),
            ("integrated", "from black"),
        ]
    )
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
