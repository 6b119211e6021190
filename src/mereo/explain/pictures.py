"""A picture of an explanation: image, scores, couplings, and which parts voted for the class."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from mereo.errors import UsageError
from mereo.explain.captions import caption_of
from mereo.explain.columns import map_columns
from mereo.explain.explanation import explain
from mereo.explain.layout import make_sheet
from mereo.explain.panels import (
    colour_scale,
    draw_answer,
    draw_image,
    draw_map,
    draw_title,
    outline,
    short,
)
from mereo.explain.wording import UNBOUNDED, WORDINGS, bars_of
from mereo.inference.labelled import UNKNOWN
from mereo.inference.predict import class_names
from mereo.models import VisionModel
from mereo.pictures import save_figure
from mereo.tasks.explained import Explained

MOST_ROWS = 12


def _true_classes(true_labels: Tensor | Sequence[int] | None, count: int, num_classes: int) -> list[set[int]]:
    if true_labels is None:
        return [set() for _ in range(count)]
    labels = torch.as_tensor(true_labels)
    if labels.dim() not in {1, 2} or len(labels) < count or labels.is_floating_point():
        raise UsageError(
            f"true_labels is of shape {tuple(labels.shape)}; it must be whole numbers, one or several per image."
        )
    rows = [set(row) - {UNKNOWN} for row in labels.reshape(len(labels), -1)[:count].tolist()]
    if not all(0 <= c < num_classes for row in rows for c in row):
        raise UsageError(f"true_labels has values outside 0 .. {num_classes - 1}.")
    return rows


def check_titles(titles: Sequence[str] | None, count: int) -> None:
    """UsageError unless there is one title for each image, or none at all."""
    if titles is not None and len(titles) != count:
        raise UsageError(f"titles has {len(titles)} lines for {count} images; give one for each.")


def draw_explanation(
    model: VisionModel,
    images: Tensor,
    path: str | Path,
    *,
    titles: Sequence[str] | None = None,
    true_labels: Tensor | Sequence[int] | None = None,
    classes: Tensor | Explained | None = None,
    shown: Tensor | None = None,
) -> Path:
    """Draw the explanations of a few images, one a row, as PNG.

    Columns: the image; the scores of the classes (at most the ten highest); effects of hiding each place; which parts
    voted for the class and which against it; couplings of routings and attention, on a scale that begins at their
    uniform value, if replacing them by uniform ones changes an answer; the reconstruction.

    Args:
        model: any classifier.
        images: in [0, 1], not normalised; at most 12 are drawn, the first ones, and the caption states this.
        path: of the file.
        titles: a line above each image.
        true_labels: the class of each image, -1 if it is not known, or several for each image: (batch,) or (batch, k).
        classes: which class to explain for each image, (batch,), or what a task explains of them; when None the
            predicted class, or what the task chooses.
        shown: the images at a multiple of their size, which are drawn instead.

    Shapes: images (batch, channels, height, width), shown (batch, channels, k height, k width).
    """
    path, total = Path(path), len(images)
    check_titles(titles, total)
    images = images[:MOST_ROWS]
    explanation = explain(model, images, target=classes[:MOST_ROWS] if isinstance(classes, Tensor) else classes)
    about, words = explanation.about, WORDINGS[explanation.kind]
    true = _true_classes(None if about else true_labels, len(images), explanation.scores.shape[1])
    model = getattr(model, "_orig_mod", model)
    names, bars = list(class_names(model)), bars_of(explanation.scores, explanation.kind)

    columns = map_columns(explanation)
    scales = [colour_scale(column.cells, signed=column.signed, start=column.start) for column in columns]
    caption = caption_of(explanation, columns, true_known=any(true), asked=classes is not None, total=total)
    rebuilt = explanation.rebuilt
    pictures = 1 + len(columns) + (rebuilt is not None)
    height, width = images.shape[-2:]
    letters = 0 if about else max(len(short(name)) for name in names)
    sheet = make_sheet(len(images), (height, width), pictures, letters, caption)
    for i, row in enumerate(sheet.axes):
        draw_image(row[0], images[i] if shown is None else shown[i])
        if titles is not None:
            draw_title(row[0], titles[i])
        draw_answer(
            row[1], images[i] if shown is None else shown[i], about or explanation.explained, i, bars[i], names,
            true[i], bounded=explanation.kind not in UNBOUNDED, ticks=i == len(sheet.axes) - 1,
        )  # fmt: skip
        for axes, column, scale in zip(row[2:], columns, scales, strict=False):
            numbers = "+.2f" if column.signed else ".2f"
            draw_map(axes, images[i], column.heat[i], column.cells[i], column.grid, scale, numbers)
            outline(axes, about, i)
        if rebuilt is not None:
            draw_image(row[-1], rebuilt[i])
    heads = [("image", ""), words.column, *[(c.title, c.note) for c in columns]]
    sheet.head([*heads, ("rebuilt", "from that capsule")] if rebuilt is not None else heads)
    for place, (column, scale) in enumerate(zip(columns, scales, strict=True), start=2):
        sheet.scale_bar(place, scale, f"{column.label}\n(white: uniform)" if column.start else column.label)
    save_figure(sheet.figure, path)
    return path
