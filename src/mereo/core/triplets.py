"""Losses of triplets: an image should be nearer to one of the same value than to one of another value."""

import torch
from torch import Tensor

from mereo.errors import UsageError

UNKNOWN = -1
"""The value of an image without a label, which is in no triplet."""


def _pairs(values: Tensor) -> tuple[Tensor, Tensor]:
    """Which other images have the same value as each image, and which have another one: bool (batch, batch) each."""
    known = (values != UNKNOWN).unsqueeze(0) & (values != UNKNOWN).unsqueeze(1)
    same = values.unsqueeze(0) == values.unsqueeze(1)
    itself = torch.eye(len(values), dtype=torch.bool, device=values.device)
    return same & known & ~itself, ~same & known


def triplet_loss(embeddings: Tensor, values: Tensor, margin: float = 0.2) -> Tensor:
    """The mean over all triplets of a batch: an image, one of the same value, and one of another value.

    L = mean_{a, p, n} max(0, m - e_a e_p + e_a e_n),   v_p = v_a, p != a,   v_n != v_a

    Without a triplet the loss is 0. All triplets are compared at once, so that memory grows with the cube of the batch:
    a number for each, 4 MB for 100 images and 4 GB for 1,000.

    Args:
        embeddings: of length one.
        values: identities, or values of one attribute; `UNKNOWN` for none.
        margin: m.

    Shapes: embeddings (batch, dim), values int64 (batch,) -> ().
    """
    same, other = _pairs(values)
    similar = embeddings @ embeddings.T
    triplets = same.unsqueeze(2) & other.unsqueeze(1)
    losses = (margin - similar.unsqueeze(2) + similar.unsqueeze(1)).clamp(min=0).masked_fill(~triplets, 0)
    return losses.sum() / triplets.sum().clamp(min=1)


def hard_triplet_loss(features: Tensor, values: Tensor, margin: float = 0.3) -> Tensor:
    """The mean over the images of a batch of their hardest triplet.

    L = mean_a max(0, m + max_p |f_a - f_p| - min_n |f_a - f_n|),   v_p = v_a, p != a,   v_n != v_a

    Images without such a p or n are left out; without any triplet the loss is 0.

    Args:
        features: of any length.
        values, margin: see `triplet_loss`.

    Shapes: features (batch, dim), values int64 (batch,) -> ().

    Reference: arXiv:1703.07737, eq. 5.
    """
    if values.dim() != 1 or values.shape != features.shape[:1]:
        raise UsageError(f"values is {tuple(values.shape)} for features of {tuple(features.shape)}; give one each.")
    same, other = _pairs(values)
    squares = (features.unsqueeze(1) - features.unsqueeze(0)).square().sum(2)
    distances = squares.clamp(min=1e-12).sqrt()  # equal features would have an infinite gradient
    farthest = distances.masked_fill(~same, 0).amax(1)
    nearest = distances.masked_fill(~other, torch.finfo(distances.dtype).max).amin(1)
    complete = same.any(1) & other.any(1)
    losses = (margin + farthest - nearest).clamp(min=0).masked_fill(~complete, 0)
    return losses.sum() / complete.sum().clamp(min=1)
