"""Toys of five categories, each an arrangement of convex parts whose proportions differ between instances.

The categories follow smallNORB (LeCun, Huang, Bottou, CVPR 2004); its toys are photographed, these are composed.
x points ahead, y to the left and z up.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
SEED = 2004
WHEEL_SIDES = 10


class Part(NamedTuple):
    """One convex part in the frame of its toy.

    Attributes:
        planes: (faces, 4), the inside of a polyhedron is n x <= c for every row (n, c), n of length 1; of an ellipsoid
            there are none.
        matrix, centre: (3, 3) and (3,), which map the unit ball to an ellipsoid that is the part, or encloses it.
        albedo: share of the light that it reflects.
    """

    planes: Array
    matrix: Array
    centre: Array
    albedo: float


def _turned(tilt: float, axis: int) -> Array:
    """Rotation by an angle in degrees around axis 0, 1 or 2."""
    cosine, sine = np.cos(np.deg2rad(tilt)), np.sin(np.deg2rad(tilt))
    one, two = [(1, 2), (2, 0), (0, 1)][axis]
    turned = np.eye(3)
    turned[one, one] = turned[two, two] = cosine
    turned[one, two], turned[two, one] = -sine, sine
    return turned


def _polyhedron(normals: Array, offsets: Array, half: Array, centre: Array, turned: Array, albedo: float) -> Part:
    """Planes given for the cube of half side 1, stretched, turned and moved."""
    inverse = (turned / half).T  # of the transposed matrix turned * half
    world = normals @ inverse
    reach = offsets + world @ centre
    size = np.linalg.norm(world, axis=1, keepdims=True)
    planes = np.concatenate([world, reach[:, None]], axis=1) / size
    return Part(planes, turned * half * np.sqrt(3), centre, albedo)


def box(
    centre: Sequence[float], half: Sequence[float], albedo: float, *, taper: float = 0.0, tilt: float = 0.0,
    axis: int = 1,
) -> Part:  # fmt: skip
    """A box of half sides; its top is narrower than its bottom by the share `taper`."""
    slope = taper / 2
    normals = np.array([[1, 0, slope], [-1, 0, slope], [0, 1, slope], [0, -1, slope], [0, 0, 1], [0, 0, -1.0]])
    offsets = np.array([1 - slope] * 4 + [1, 1])
    return _polyhedron(normals, offsets, np.array(half), np.array(centre), _turned(tilt, axis), albedo)


def wheel(centre: Sequence[float], radius: float, half_width: float, albedo: float) -> Part:
    """A prism of many sides whose axis is y."""
    angles = np.arange(WHEEL_SIDES) * 2 * np.pi / WHEEL_SIDES
    around = np.stack([np.cos(angles), np.zeros(WHEEL_SIDES), np.sin(angles)], axis=1)
    normals = np.concatenate([around, [[0, 1, 0], [0, -1, 0]]])
    half = np.array([radius, half_width, radius])
    return _polyhedron(normals, np.ones(len(normals)), half, np.array(centre), np.eye(3), albedo)


def ball(centre: Sequence[float], radii: Sequence[float], albedo: float, *, tilt: float = 0.0, axis: int = 1) -> Part:
    """An ellipsoid."""
    return Part(np.zeros((0, 4)), _turned(tilt, axis) * np.array(radii), np.array(centre), albedo)


def _animal(draw: Callable[[float, float], float]) -> list[Part]:
    long, thick, legs = draw(0.5, 0.68), draw(0.2, 0.3), draw(0.4, 0.6)
    neck, snout, skin = draw(0.12, 0.42), draw(0.12, 0.24), draw(0.55, 0.95)
    back = legs + 0.8 * thick
    parts = [ball((0, 0, back), (long, thick, 0.95 * thick), skin)]
    foot = draw(0.055, 0.085)
    for x in (-0.68 * long, 0.68 * long):
        parts += [box((x, side * 0.55 * thick, legs / 2), (foot, foot, legs / 2), 0.9 * skin) for side in (-1, 1)]
    top = (0.8 * long + 0.3 * neck, 0, back + 0.6 * thick + neck)
    parts.append(box((0.78 * long, 0, (back + top[2]) / 2), (0.09, 0.08, 0.3 * neck + 0.18), skin, tilt=25))
    parts.append(ball((top[0] + 0.5 * snout, 0, top[2]), (snout + 0.08, 0.12, 0.12), skin))
    parts.append(box((-long - 0.05, 0, back - 0.02), (0.03, 0.03, draw(0.12, 0.22)), 0.8 * skin, tilt=35))
    return parts


def _human(draw: Callable[[float, float], float]) -> list[Part]:
    legs, trunk, shoulders = draw(0.6, 0.8), draw(0.55, 0.7), draw(0.24, 0.34)
    coat, skin, stride = draw(0.45, 0.9), draw(0.75, 1.0), draw(4, 20)
    parts = [box((0, 0, legs + trunk / 2), (0.14, shoulders, trunk / 2), coat, taper=-draw(0, 0.3))]
    parts.append(ball((0.02, 0, legs + trunk + 0.2), (draw(0.16, 0.2), 0.17, 0.22), skin))
    for side in (-1, 1):
        swing = np.sin(np.deg2rad(stride * side)) * legs / 2
        parts.append(
            box((-swing, side * 0.5 * shoulders, legs / 2), (0.09, 0.1, legs / 2), 0.7 * coat, tilt=side * stride)
        )
        lift = draw(0, 55)
        reach = 0.42 * (trunk + 0.1)
        shift = reach * np.sin(np.deg2rad(lift))
        drop = reach * np.cos(np.deg2rad(lift))
        place = (0.0, side * (shoulders + 0.06 + shift), legs + trunk - 0.04 - drop)
        parts.append(box(place, (0.07, 0.07, reach), 0.85 * coat, tilt=side * lift, axis=0))
    return parts


def _airplane(draw: Callable[[float, float], float]) -> list[Part]:
    long, thick, span = draw(0.85, 1.0), draw(0.12, 0.19), draw(0.75, 1.05)
    high, paint, place = draw(0.45, 0.6), draw(0.6, 1.0), draw(-0.05, 0.2)
    parts = [ball((0, 0, high), (long, thick, thick), paint)]
    above = draw(-0.1, 0.14)
    parts.append(box((place, 0, high + above), (draw(0.14, 0.24), span, 0.03), 0.85 * paint))
    parts.append(box((-0.85 * long, 0, high + 0.06), (0.11, draw(0.3, 0.42), 0.025), 0.85 * paint))
    parts.append(box((-0.86 * long, 0, high + 0.2), (0.11, 0.025, draw(0.16, 0.26)), 0.8 * paint, taper=0.5))
    if draw(0, 1) < 0.5:
        parts += [
            ball((place + 0.12, side * 0.5 * span, high + above - 0.07), (0.17, 0.07, 0.07), 0.6) for side in (-1, 1)
        ]
    parts.append(box((0.15, 0, 0.5 * (high - thick)), (0.04, 0.04, 0.5 * high), 0.4))
    return parts


def _truck(draw: Callable[[float, float], float]) -> list[Part]:
    long, wide, high = draw(0.85, 1.0), draw(0.28, 0.36), draw(0.34, 0.5)
    cab, paint, load = draw(0.2, 0.27), draw(0.5, 0.9), draw(0.55, 1.0)
    floor, tall = draw(0.24, 0.3), draw(0.26, 0.36)
    parts = [box((0, 0, floor), (long, 0.8 * wide, 0.06), 0.4)]
    parts.append(box((long - cab, 0, floor + tall), (cab, 0.92 * wide, tall), paint, taper=draw(0, 0.3)))
    rear = long - cab - 0.06
    middle = -long + rear
    if draw(0, 1) < 0.4:  # a tank
        parts.append(ball((middle, 0, floor + 0.06 + 0.8 * wide), (rear, wide, 0.85 * wide), load))
    else:
        parts.append(box((middle, 0, floor + 0.06 + high), (rear, wide, high), load))
    radius = draw(0.17, 0.22)
    for x in (long - cab, -0.25 * long, -0.72 * long):
        parts += [wheel((x, side * 0.9 * wide, radius), radius, 0.07, 0.25) for side in (-1, 1)]
    return parts


def _car(draw: Callable[[float, float], float]) -> list[Part]:
    long, wide, body = draw(0.85, 1.0), draw(0.38, 0.46), draw(0.14, 0.2)
    paint, glass, radius = draw(0.5, 1.0), draw(0.35, 0.6), draw(0.17, 0.23)
    floor = 0.75 * radius
    parts = [box((0, 0, floor + body), (long, wide, body), paint, taper=draw(0.02, 0.12))]
    cabin, place = draw(0.4, 0.62), draw(-0.3, 0.05)
    high = draw(0.13, 0.19)
    parts.append(box((place, 0, floor + 2 * body + high), (cabin, 0.88 * wide, high), glass, taper=draw(0.35, 0.6)))
    parts.append(box((place, 0, floor + 2 * body + 2 * high), (0.62 * cabin, 0.6 * wide, 0.02), paint))
    for x in (-0.62 * long, 0.62 * long):
        parts += [wheel((x, side * 0.92 * wide, radius), radius, 0.08, 0.25) for side in (-1, 1)]
    return parts


CATEGORIES: dict[str, Callable[[Callable[[float, float], float]], list[Part]]] = {
    "animal": _animal, "human": _human, "airplane": _airplane, "truck": _truck, "car": _car,
}  # fmt: skip
"""The categories in the order of smallNORB's class numbers."""


def make_instance(category: str, number: int) -> list[Part]:
    """The parts of one toy, the same in every run, centred and scaled to fit the unit ball."""
    generator = np.random.default_rng([SEED, list(CATEGORIES).index(category), number])
    parts = CATEGORIES[category](lambda low, high: float(generator.uniform(low, high)))
    reach = [np.linalg.norm(part.matrix, axis=1) / (np.sqrt(3) if len(part.planes) else 1) for part in parts]
    low = np.min([part.centre - each for part, each in zip(parts, reach, strict=True)], axis=0)
    high = np.max([part.centre + each for part, each in zip(parts, reach, strict=True)], axis=0)
    middle, scale = (low + high) / 2, 2 / float(np.linalg.norm(high - low))
    return [_moved(part, middle, scale) for part in parts]


def _moved(part: Part, middle: Array, scale: float) -> Part:
    planes = part.planes.copy()
    planes[:, 3] = (planes[:, 3] - planes[:, :3] @ middle) * scale
    return Part(planes, part.matrix * scale, (part.centre - middle) * scale, part.albedo)
