"""Delaunay triangulations: points of the unit square, and the triangles whose circles hold no other point."""

from typing import TYPE_CHECKING

from mereo.data.point_problems import register_points

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

AT_ONCE = 1000


def answers(points: "Tensor") -> "Sequence[Tensor]":
    """The triangles of each set, three pointers each, in the order of their incentres."""
    from mereo.data.pointing import delaunay_triangles

    return [each.flatten() for part in points.split(AT_ONCE) for each in delaunay_triangles(part)]


register_points(
    "delaunay", "triangles", answers,
    "5 points and the triangles of their Delaunay triangulation; generated when needed",
    least=5, most=5, highest=20, train=20000,
)  # fmt: skip
