"""Misclassified images as one picture, each with its file name, its classes and the reason."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

import numpy as np
import numpy.typing as npt

from mereo.data.decode import FORMATS, decode
from mereo.escape import for_terminal
from mereo.inference.labelled import FolderAnswers
from mereo.pictures import new_figure, save_figure
from mereo.runtime.text import percent

MOST = 24
"""Errors on the picture, the most confident."""
COLUMNS, WIDE, HIGH, HEAD = 4, 2.5, 3.25, 0.5
LETTERS, NAME_LETTERS, LINES = 38, 30, 2
"""Letters of a line below an image, of the file name in bold, and lines of the reason."""
LARGEST = 256
"""Rows and columns of an image on the picture."""
INK, WRONG, RIGHT, FAINT = "#24292f", "#c92a2a", "#2b8a3e", "#57606a"


def read_shown(path: Path, in_pairs: bool = False) -> npt.NDArray[np.uint8]:
    """The file as it is shown, its shorter side up to 256 pixels, (height, width, 3).

    With `in_pairs` the file holds the views of two cameras side by side, and is shown in red and cyan as everywhere.
    """
    from PIL import Image

    with path.open("rb") as stream:
        with Image.open(stream, formats=FORMATS) as image:
            side = max(min(*image.size, LARGEST), 1)
        stream.seek(0)
        pixels = decode(stream, (side, side), 2)[[0, 1, 1]] if in_pairs else decode(stream, (side, side), 3)
        return pixels.transpose(1, 2, 0)


def fitting_name(name: str, most: int = NAME_LETTERS) -> str:
    """A file name of at most so many letters, its middle left out: names often differ at their ends."""
    shown = for_terminal(name)
    if len(shown) <= most:
        return shown
    head = (most - 1) // 3
    return f"{shown[:head]}…{shown[head + 1 - most :]}"


def draw_errors(answers: FolderAnswers, path: Path, places: Sequence[int] | None = None) -> Path | None:
    """Draw the most confident errors as PNG; None where there is no error.

    Args:
        answers: of a labelled folder.
        path: of the picture.
        places: of the images to draw; by default the first 24 errors.
    """
    chosen = list(answers.errors if places is None else places)[:MOST]
    if not chosen:
        return None
    columns = min(COLUMNS, len(chosen))
    rows = -(-len(chosen) // columns)
    width, height = max(columns * WIDE, 2 * WIDE), rows * HIGH + HEAD
    figure = new_figure(width, height, layout=None)
    total = len(answers.errors)
    title = f"{total} misclassified" if total <= MOST else f"{MOST} of {total} misclassified, the most confident"
    figure.text(0.1 / width, 1 - 0.12 / height, title, ha="left", va="top", fontsize=11, color=INK, weight="bold")
    for number, place in enumerate(chosen):
        left, top = (number % columns) * WIDE + 0.1, height - HEAD - (number // columns) * HIGH
        side = WIDE - 0.2
        axes = figure.add_axes((left / width, (top - side) / height, side / width, side / height))
        axes.imshow(read_shown(answers.paths[place], answers.in_pairs), interpolation="nearest")
        axes.set_axis_off()
        shares = answers.probabilities[place]
        label, predicted = int(answers.labels[place]), int(answers.predicted[place])
        reason = wrap(answers.reason(place), LETTERS, max_lines=LINES, placeholder=" …")
        names = [fitting_name(answers.names[c], 20) for c in (predicted, label)]
        lines = [
            (fitting_name(answers.paths[place].name), INK, "bold"),
            (f"predicted {names[0]}, {percent(float(shares[predicted]), 0)}", WRONG, "normal"),
            (f"labelled {names[1]}, {percent(float(shares[label]), 0)}", RIGHT, "normal"),
            *((line, FAINT, "normal") for line in reason),
        ]
        for row, (text, colour, weight) in enumerate(lines):
            figure.text(
                left / width, (top - side - 0.05 - 0.165 * row) / height, text, ha="left", va="top", fontsize=7.5,
                color=colour, weight=weight,
            )  # fmt: skip
    save_figure(figure, path)
    return path
