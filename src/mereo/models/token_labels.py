"""Token labelling: a network learns a label for every token of an image, in addition to the label of the image.

Source: Jiang et al. 2021, arXiv:2104.10858.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.errors import UsageError

Box = tuple[int, int, int, int]
"""Top, left, bottom and right of a rectangle of tokens."""


class TokenLabels(NamedTuple):
    """Logits of the classes, logits of the classes for each token, and the box in which images were mixed."""

    classes: Tensor
    tokens: Tensor
    box: Box


def draw_box(rows: int, columns: int) -> Box:
    """A random rectangle of about the share 1 - lambda of a grid, lambda uniform; cut off at the border."""
    share = float(1 - torch.rand(())) ** 0.5
    high, wide = int(rows * share), int(columns * share)
    y, x = int(torch.randint(rows, ())), int(torch.randint(columns, ()))
    top, left = max(y - high // 2, 0), max(x - wide // 2, 0)
    return top, left, min(y + (high + 1) // 2, rows), min(x + (wide + 1) // 2, columns)


def choose_box(box: Box | None, rows: int, columns: int, training: bool) -> Box:
    """The box given, or a random one; in eval nothing is mixed. UsageError unless it is inside rows x columns."""
    if not training:
        return (0, 0, 0, 0)
    top, left, bottom, right = chosen = draw_box(rows, columns) if box is None else box
    if not (0 <= top <= bottom <= rows and 0 <= left <= right <= columns):
        raise UsageError(f"box is {box}; it must be top, left, bottom and right of {rows} x {columns} tokens.")
    return chosen


def exchanged(x: Tensor, box: Box, cells: int = 1) -> Tensor:
    """Inside the box, the cells of the image at the mirrored place of the batch.

    Args:
        x: (batch, channels, rows, columns).
        cells: number of cells of x along each side of a token; the box counts tokens.
    """
    top, left, bottom, right = (cells * edge for edge in box)
    inside = torch.zeros(x.shape[2:], dtype=torch.bool, device=x.device)
    inside[top:bottom, left:right] = True
    return torch.where(inside, x.flip(0), x)


def token_label_loss(output: TokenLabels, labels: Tensor, token_targets: Tensor, weight: float = 0.5) -> Tensor:
    """CE(class logits, labels mixed by the share of the box) + weight * mean CE(token logits, token targets).

    Args:
        output: of a network's `token_labels`.
        labels: of the images, int64 (batch,).
        token_targets: soft labels of the tokens of each image, from an annotator: (batch, tokens, classes).
        weight: of the tokens.

    Reference: arXiv:2104.10858, eq. 3 and section 3.2.
    """
    top, left, bottom, right = output.box
    share = (bottom - top) * (right - left) / output.tokens.shape[1]
    own, other = (F.cross_entropy(output.classes, each) for each in (labels, labels.flip(0)))
    tokens = F.cross_entropy(output.tokens.flatten(0, 1), token_targets.flatten(0, 1))
    return (1 - share) * own + share * other + weight * tokens
