"""Skeletons: the joints of a body, its parts, bones, and what is left and right.

A frame holds the coordinates of one or two bodies, ordered by body, joint and x, y, z; y points up.
"""

from collections.abc import Sequence
from typing import NamedTuple

from mereo.errors import UsageError

COORDINATES = 3
PARTS = ("right arm", "left arm", "right leg", "left leg", "torso")


class Skeleton(NamedTuple):
    """A body of known joints, counted from 0.

    Attributes:
        parts: joints of the right arm, the left arm, the right leg, the left leg and the torso.
        bones: pairs of joints with a line between them.
    """

    parts: tuple[tuple[int, ...], ...]
    bones: tuple[tuple[int, int], ...]

    @property
    def mirrored(self) -> list[int]:
        """For each joint the one on the other side."""
        right_arm, left_arm, right_leg, left_leg, torso = self.parts
        there = dict(zip((*right_arm, *right_leg), (*left_arm, *left_leg), strict=True))
        both = there | {left: right for right, left in there.items()} | {joint: joint for joint in torso}
        return [both[joint] for joint in sorted(both)]


def _from_one(*groups: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(number - 1 for number in group) for group in groups)


KINECT = Skeleton(
    _from_one((9, 10, 11, 12, 25, 24), (5, 6, 7, 8, 23, 22), (17, 18, 19, 20), (13, 14, 15, 16), (1, 2, 21, 3, 4)),
    _from_one(
        (1, 2), (2, 21), (21, 3), (3, 4), (21, 5), (5, 6), (6, 7), (7, 8), (8, 22), (8, 23), (21, 9), (9, 10), (10, 11),
        (11, 12), (12, 24), (12, 25), (1, 13), (13, 14), (14, 15), (15, 16), (1, 17), (17, 18), (18, 19), (19, 20),
    ),  # type: ignore[arg-type]
)  # fmt: skip
"""The 25 joints of a Kinect v2, as in NTU RGB+D."""
FIFTEEN = Skeleton(
    ((3, 4, 5), (6, 7, 8), (9, 10, 11), (12, 13, 14), (0, 1, 2)),
    (
        (0, 1), (1, 2), (1, 3), (3, 4), (4, 5), (1, 6), (6, 7), (7, 8), (0, 9), (9, 10), (10, 11), (0, 12), (12, 13),
        (13, 14),
    ),
)  # fmt: skip
"""Hip, neck, head; shoulder, elbow and hand of the right and the left arm; hip, knee and foot of both legs."""
SKELETONS = {25: KINECT, 15: FIFTEEN}


def bodies_of(features: int) -> tuple[int, int]:
    """The numbers of bodies and of joints of a frame; of other than known skeletons one body is assumed."""
    for joints in SKELETONS:
        for bodies in (1, 2):
            if features == bodies * joints * COORDINATES:
                return bodies, joints
    return 1, features // COORDINATES


def parts_of(joints: int, bodies: int, parts: Sequence[Sequence[int]] = ()) -> list[list[int]]:
    """The places in a frame that each part reads, those of all bodies side by side: a row for each part.

    A part with fewer joints than the largest one ends with places behind the frame, for zeros.

    Args:
        parts: joints of each part; () takes those of a known skeleton, or else five runs of joints.
    """
    if not parts:
        known = SKELETONS.get(joints)
        parts = known.parts if known else _runs(joints)
    if not all(isinstance(part, Sequence) and part for part in parts) or any(
        not isinstance(joint, int) or not 0 <= joint < joints for part in parts for joint in part
    ):
        raise UsageError(f"parts is {parts}; give joints from 0 to {joints - 1}, at least one a part.")
    most, outside = max(map(len, parts)), bodies * joints * COORDINATES
    return [
        [
            (body * joints + part[slot]) * COORDINATES + axis if slot < len(part) else outside
            for body in range(bodies)
            for slot in range(most)
            for axis in range(COORDINATES)
        ]
        for part in parts
    ]


def _runs(joints: int) -> list[list[int]]:
    """Five runs of joints of nearly equal length; fewer than five joints are in several."""
    count = len(PARTS)
    return [
        list(range(n * joints // count, max((n + 1) * joints // count, n * joints // count + 1))) for n in range(count)
    ]
