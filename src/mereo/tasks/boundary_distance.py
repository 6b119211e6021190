"""The distance between the boundaries of predicted and true masks, as MONAI's symmetric average surface distance.

Source: Heimann et al. 2009, https://doi.org/10.1109/TMI.2009.2013851, section III; on masks as MONAI computes it.
"""

import math

import torch
from torch import Tensor


def boundary_distance(predicted: Tensor, true: Tensor) -> float:
    """The mean distance in pixels from the boundary of either set of pixels to the boundary of the other.

    D(P, T) = (sum_{p in B(P)} min_{t in B(T)} |p - t| + sum_{t in B(T)} min_{p in B(P)} |p - t|) / (|B(P)| + |B(T)|)

    B(X) are the pixels of X with one of their four neighbours outside of X; what lies beyond the image is outside.
    Infinite if either set is empty.

    Shapes: predicted, true bool (height, width).
    """
    from scipy.ndimage import binary_erosion, distance_transform_edt, find_objects

    masks = [mask.cpu().numpy() for mask in (predicted, true)]
    if not all(mask.any() for mask in masks):
        return math.inf
    box = find_objects((masks[0] | masks[1]).astype("uint8"))[0]  # nothing lies outside of it
    edges = [mask[box] & ~binary_erosion(mask[box]) for mask in masks]
    apart = [distance_transform_edt(~other)[edge] for edge, other in zip(edges, reversed(edges), strict=True)]
    return float(sum(each.sum() for each in apart) / sum(map(len, apart)))


def boundary_distances(predicted: Tensor, true: Tensor, num_classes: int) -> Tensor:
    """`boundary_distance` of each class but the first, the background, in each image; infinite where either lacks it.

    Shapes: predicted, true int64 (batch, height, width), -1 for no class -> float64 (batch, num_classes - 1).
    """
    rows = [
        [boundary_distance(found == label, mask == label) for label in range(1, num_classes)]
        for found, mask in zip(predicted.cpu(), true.cpu(), strict=True)
    ]
    return torch.tensor(rows, dtype=torch.float64).view(len(true), num_classes - 1)
