"""Which places of an image a prediction depends on: the class score, or another target, with each place hidden."""

import torch
from torch import Tensor

from mereo.core import Grid
from mereo.errors import check_positive
from mereo.explain.observation import normalised, ready
from mereo.explain.target import Target, check_finite, resolve_target, value_of
from mereo.inference.mode import evaluating
from mereo.models import VisionModel

CELLS, WINDOW = 8, 2
"""Number of squares along the shorter side of an image, and along the side of the hidden window."""


def occlusion_grid(height: int, width: int, cells: int = CELLS) -> Grid:
    """Squares that cover an image, `cells` along its shorter side, or one for each pixel of a smaller one."""
    side = -(-min(height, width) // cells)
    return Grid(-(-height // side), -(-width // side), 1, side / 2, side)


@torch.no_grad()
def occlusion_maps(
    model: VisionModel, images: Tensor, target: Target | None = None, *, cells: int = CELLS, window: int = WINDOW
) -> tuple[Tensor, Grid]:
    """How much the score of a class falls when a part of the image is replaced by the image's mean colour.

    drop_s = mean over the windows w that hold square s of score_class(image) - score_class(image with w hidden)

    Args:
        model: any network of images; it runs in evaluation mode, once for each window, and is left as it was.
        images: in [0, 1], not normalised.
        target: the class to explain, one for all images or int64 (batch,); or a function from the outputs to (batch,),
            in place of the score. The predicted class when None.
        cells: squares along the shorter side.
        window: squares along the side of the hidden window, which moves by one square; 1 hides each square by
            itself.

    Shapes: images (batch, channels, height, width) -> (batch, rows, columns), and the grid of the squares.

    Reference: arXiv:1311.2901, section 4.2, which uses a grey square.
    Deviates: the mean over the windows that hold a square; windows at the border are cut off by it.
    """
    check_positive(cells=cells, window=window)
    model, images = ready(model, images)
    grid = occlusion_grid(images.shape[-2], images.shape[-1], cells)
    side, mean = int(grid.step), images.mean((2, 3), keepdim=True)
    with evaluating(model):
        outputs = model(normalised(model, images))
        chosen = resolve_target(model, outputs, target)
        whole = value_of(outputs, chosen)
        drops = whole.new_zeros(len(images), grid.rows, grid.columns)
        for top in range(1 - window, grid.rows):
            for left in range(1 - window, grid.columns):
                rows, columns = slice(max(top, 0), top + window), slice(max(left, 0), left + window)
                hidden = images.clone()
                down, across = (slice(part.start * side, part.stop * side) for part in (rows, columns))
                hidden[:, :, down, across] = mean
                without = model(normalised(model, hidden))
                check_finite(without)
                drops[:, rows, columns] += (whole - value_of(without, chosen))[:, None, None] / window**2
    return drops, grid
