"""Convex hulls: points of the unit square, and the corners of their hull, counter-clockwise."""

from typing import TYPE_CHECKING

from mereo.data.point_problems import register_points

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def answers(points: "Tensor") -> "Sequence[Tensor]":
    """The hull of each set, from its lowest pointer on."""
    import torch

    from mereo.data.pointing import convex_hull

    return [torch.tensor(convex_hull(each)) for each in points.double().numpy()]


register_points(
    "convex_hull", "hull", answers, "5 to 10 points and the corners of their convex hull; generated when needed",
    least=5, most=10, highest=1000, train=20000,
)  # fmt: skip
