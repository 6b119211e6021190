"""Mixing matrices as pictures: receivers down, senders across."""

import math
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from mereo.core.recurrence import Recurrence
from mereo.errors import UsageError
from mereo.pictures import new_figure, save_figure

ACROSS, SIDE, TITLE = 5, 1.9, 0.36


def draw_mixing_matrices(matrices: Mapping[str, Tensor], title: str, path: Path) -> None:
    """A panel for each matrix. If all entries are positive, white is 0 and dark the largest; otherwise red is
    positive and blue negative. Of complex entries the real part is drawn.

    Args:
        matrices: name -> (receivers, senders), or (batch, heads, receivers, senders); the first of these are drawn.
        title: of the picture.
        path: of the PNG.
    """
    if not matrices:
        raise UsageError("matrices is empty; give at least one.")
    across = min(ACROSS, len(matrices))
    down = math.ceil(len(matrices) / across)
    figure = new_figure(SIDE * across + 0.2, (SIDE + TITLE) * down + 0.4)
    figure.suptitle(title, fontsize=10)
    panels = figure.subplots(down, across, squeeze=False).flat
    for panel in panels:
        panel.set_axis_off()
    for panel, (name, matrix) in zip(figure.axes, matrices.items(), strict=False):
        shown = matrix.detach().real.double().cpu()
        shown = shown[(0,) * (shown.dim() - 2)]
        largest = max(float(shown.abs().max()), 1e-12)
        signed = bool((shown < -1e-9 * largest).any())
        panel.imshow(
            shown.numpy(), cmap="RdBu_r" if signed else "Greys", vmin=-largest if signed else 0.0, vmax=largest,
            interpolation="nearest",
        )  # fmt: skip
        panel.set_axis_on()
        panel.set_xticks([])
        panel.set_yticks([])
        panel.set_title(name, fontsize=8)
    figure.axes[0].set_xlabel("senders", fontsize=7)
    figure.axes[0].set_ylabel("receivers", fontsize=7)
    save_figure(figure, path)


def draw_kernels(mixers: Mapping[str, Recurrence], path: Path) -> None:
    """The kernels of mixers side by side, of the first sample and head: the share of each token in each later one.

    Args:
        mixers: name -> what `mereo.recurrence` gives; errors above 1e-5, of softmax attention, are in the titles.
        path: of the PNG.
    """
    errors = {name: made.error or 0.0 for name, made in mixers.items()}
    titles = {name: f"{name}\n(error {error:.0e})" if error > 1e-5 else name for name, error in errors.items()}
    matrices = {titles[name]: made.kernel()[:1, :1] for name, made in mixers.items()}
    draw_mixing_matrices(matrices, "Share of each token (across) in each later token (down)", path)
