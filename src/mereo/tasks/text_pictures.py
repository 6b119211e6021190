"""Text drawn byte by byte, on colours."""

from collections.abc import Sequence
from math import nan
from pathlib import Path

from mereo.pictures import new_figure, save_figure

_COLUMNS, _MOST_ROWS, _MOST_BITS = 96, 3, 8.0
_BREAK, _OTHER = "\u00b6", "\u00b7"


def shown(tokens: Sequence[int]) -> str:
    """One character for each byte: printable ASCII as it is, line breaks as a pilcrow, everything else as a dot."""
    return "".join(chr(t) if 32 <= t < 127 else _BREAK if t == 10 else _OTHER for t in tokens)


def draw_text(rows: Sequence[Sequence[int]], bits: Sequence[Sequence[float]] | None, path: Path) -> None:
    """Rows of bytes as text, broken into lines; with `bits`, each byte on a colour from 0 to 8 bits.

    Args:
        rows: bytes of each window; the first 288 are drawn.
        bits: number of bits that each byte needed.
    """
    lines: list[tuple[str, list[float]]] = []
    for i, row in enumerate(rows):
        for start in range(0, min(len(row), _COLUMNS * _MOST_ROWS), _COLUMNS):
            here = slice(start, start + _COLUMNS)
            lines.append((shown(row[here]), [0.0] * len(row[here]) if bits is None else list(bits[i][here])))
    figure = new_figure(1.5 + 0.1 * max((len(text) for text, _ in lines), default=1), 0.4 + 0.17 * max(len(lines), 1))
    axes = figure.subplots()
    columns = max((len(values) for _, values in lines), default=1)
    padded = [values + [nan] * (columns - len(values)) for _, values in lines] or [[0.0]]
    picture = axes.imshow(padded, cmap="YlOrRd", vmin=0, vmax=_MOST_BITS, aspect="auto", interpolation="nearest")
    for y, (text, values) in enumerate(lines):
        for x, (character, value) in enumerate(zip(text, values, strict=True)):
            colour = "white" if value > _MOST_BITS / 2 else "black"
            axes.text(x, y, character, ha="center", va="center", fontsize=6, family="monospace", color=colour)
    axes.set_axis_off()
    if bits is not None:
        figure.colorbar(picture, ax=axes, label="bits", shrink=0.8)
    save_figure(figure, path)
