"""Renders arrangements of convex parts, many views at a time, without tracing single rays.

For a pixel (x, y) the ray is o + d / w with d = f + x r + y u, and w is one over the depth. A face n p = c whose front
is seen bounds w from above, one seen from behind bounds it from below,

    w <= n d / (c - n o)  in front,    w >= n d / (c - n o)  behind,

and both bounds are affine in (x, y). So a convex polyhedron takes one sum and one comparison for each face, and an
ellipsoid one root. The nearest part has the largest w. Shadows on the floor are the same with the light for the ray.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mereo.data.solids.shapes import Part

Array = npt.NDArray[np.float64]
Image = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
Bounds = tuple[slice, slice]

DISTANCE, HALF_ANGLE = 5.0, 3.5
"""Distance of the cameras from the middle of the toy, and half the angle between the pair, in degrees."""
FILLED = 0.46
"""Radius of the unit ball in the picture, over the side of the picture."""
SAMPLES = 2
"""Samples of a pixel on each axis; shadows take one."""
LIGHTS = ((35, -60, 1.0), (60, 20, 1.0), (40, 70, 1.0), (75, -20, 0.75), (30, 15, 0.85), (50, -120, 1.1))
"""Elevation and azimuth in degrees, relative to the camera, and brightness of each lighting."""
AMBIENT, SHADOW = 0.3, 0.68
FAR = 1e-6
ALL = slice(None)


def directions(elevation: Array, azimuth: Array) -> Array:
    """Unit vectors (..., 3) towards places given in degrees; azimuth counts from x to y."""
    up, around = np.deg2rad(elevation), np.deg2rad(azimuth)
    return np.stack([np.cos(up) * np.cos(around), np.cos(up) * np.sin(around), np.sin(up)], axis=-1)


class _Views:
    """Pictures of one toy while they are drawn, at `SAMPLES` times their size.

    Args:
        side: of the finished pictures.
        elevations, azimuths: of the cameras in degrees, (views,).
        lightings: indices into `LIGHTS`, (views,).
        middles: azimuths that the lights are relative to, (views,).
        floor: height of the floor.
    """

    def __init__(
        self, side: int, elevations: Array, azimuths: Array, lightings: Array, middles: Array, floor: float
    ) -> None:
        self.sample(side * SAMPLES)
        towards = directions(elevations, azimuths)
        right = np.stack([-towards[:, 1], towards[:, 0], np.zeros(len(towards))], axis=1)
        right /= np.linalg.norm(right, axis=1, keepdims=True)
        # The outline of the unit ball is seen at tan(a) with sin(a) = 1 / DISTANCE.
        scale = 1 / (2 * FILLED * np.sqrt(DISTANCE**2 - 1))
        self.place = towards * DISTANCE
        self.rays = np.stack([-towards, scale * right, scale * np.cross(towards, right)], axis=1)
        light_up, light_around, self.brightness = np.array(LIGHTS)[lightings].T
        self.light = directions(light_up, middles + light_around)
        # One over the depth of the floor.
        self.floor = floor
        self.ground = self.rays[:, :, 2] / (floor - self.place[:, 2])[:, None]
        self.nearest: Image = np.full((len(towards), self.side, self.side), FAR, np.float32)
        level = 0.6 + 0.16 * self.brightness * self.light[:, 2]
        slope = 0.06 * np.sin(np.deg2rad(light_around))
        self.shade = self.affine(np.stack([level, slope, np.full_like(level, 0.05)], axis=1), (ALL, ALL))

    def sample(self, side: int) -> None:
        """Draw with `side` samples a side from now on."""
        self.side = side
        self.line: Image = ((np.arange(side) + 0.5) * 2 / side - 1).astype(np.float32)

    def lit(self, cosine: Array) -> Array:
        """(views, ...) -> the light that white reflects at that angle."""
        brightness = self.brightness.reshape(-1, *[1] * (cosine.ndim - 1))
        return AMBIENT + (1 - AMBIENT) * brightness * np.maximum(cosine, 0)

    def bounds(self, centre: Array, matrix: Array) -> Bounds:
        """Rows and columns that an ellipsoid reaches in any view.

        Shapes: centre (views, 3), matrix (views, 3, 3).
        """
        size = np.linalg.norm(self.rays, axis=2)
        axes = self.rays / size[..., None]
        away = np.einsum("vak,vk->va", axes, centre - self.place)
        reach = np.linalg.norm(axes @ matrix, axis=2)
        least, most = away[:, :1] - reach[:, :1], away[:, :1] + reach[:, :1]
        ends = [(away + sign * reach) / depth / size for sign in (-1, 1) for depth in (least, most)]
        low, high = np.min(ends, axis=(0, 1)), np.max(ends, axis=(0, 1))

        def span(first: float, last: float) -> slice:
            start, stop = ((np.array([first, last]) + 1) * self.side / 2).clip(0, self.side)
            return slice(int(np.floor(start)), int(np.ceil(stop)))

        return span(-high[2], -low[2]), span(low[1], high[1])  # rows count downwards

    def affine(self, values: Array, at: Bounds) -> Image:
        """a + x b + y c for (a, b, c) of each view. Shapes: (views, 3) -> (views, rows, columns)."""
        zero, x, y = values.astype(np.float32).T
        rows = zero[:, None] - y[:, None] * self.line[at[0]]
        return rows[:, :, None] + (x[:, None] * self.line[at[1]])[:, None, :]

    def least(self, values: Array, chosen: Mask, at: Bounds, shades: Array | None = None) -> tuple[Image, Image | None]:
        """The least of the affine functions that are chosen in each view, and the shade that belongs to it.

        Shapes: values (views, faces, 3), chosen and shades (views, faces); every view must choose one.
        """
        order = np.argsort(~chosen, axis=1, kind="stable")[:, : int(chosen.sum(axis=1).max())]
        views = np.arange(len(order))
        # Where a view chooses fewer, its first stands for the others.
        order = np.where(np.take_along_axis(chosen, order, axis=1), order, order[:, :1])
        bound = self.affine(values[views, order[:, 0]], at)
        shade = None
        if shades is not None:
            shade = np.empty_like(bound)
            shade[...] = shades[views, order[:, 0], None, None]
        for faces in order.T[1:]:
            other = self.affine(values[views, faces], at)
            if shade is not None and shades is not None:
                np.copyto(shade, shades[views, faces, None, None].astype(np.float32), where=other < bound)
            np.minimum(bound, other, out=bound)
        return bound, shade

    def polyhedron(self, part: Part) -> None:
        normals, offsets = part.planes[:, :3], part.planes[:, 3]
        at = self.bounds(*self.everywhere(part))
        room = offsets - self.place @ normals.T
        values = np.einsum("vak,fk->vfa", self.rays, normals) / room[..., None]
        shades = part.albedo * self.lit(self.light @ normals.T)
        above, shade = self.least(values, room < 0, at, shades)
        below, _ = self.least(-values, room > 0, at)
        assert shade is not None
        self.put(at, above, above > np.maximum(-below, 0), shade)

    def ellipsoid(self, part: Part) -> None:
        at = self.bounds(*self.everywhere(part))
        inverse = np.linalg.inv(part.matrix)
        start, turned = (self.place - part.centre) @ inverse.T, self.rays @ inverse.T
        outside = (start * start).sum(axis=1) - 1
        # |start w + ray|^2 <= w^2, divided by outside: w^2 + 2 b w + c <= 0.
        towards = self.affine(np.einsum("vak,vk->va", turned, start) / outside[:, None], at)
        rays = [self.affine(turned[..., axis], at) for axis in range(3)]
        rest = (rays[0] ** 2 + rays[1] ** 2 + rays[2] ** 2) / outside.astype(np.float32)[:, None, None]
        room = towards * towards - rest
        depth = np.maximum(np.sqrt(np.maximum(room, 0)) - towards, FAR)
        local = [ray / depth + each[:, None, None] for ray, each in zip(rays, start.astype(np.float32).T, strict=True)]
        # The normal in the frame of the toy is the inverse transposed times the local one.
        squared, light = (inverse @ inverse.T).astype(np.float32), (self.light @ inverse.T).astype(np.float32)
        cosine = sum(light[:, axis, None, None] * local[axis] for axis in range(3))
        size = sum(local[axis] * sum(squared[axis, other] * local[other] for other in range(3)) for axis in range(3))
        shade = part.albedo * self.lit(cosine / np.sqrt(np.maximum(size, FAR)))
        self.put(at, depth, (room > 0) & (towards < 0), shade)

    def everywhere(self, part: Part) -> tuple[Array, Array]:
        """Centre and matrix of a part, the same in all views."""
        count = len(self.place)
        return np.broadcast_to(part.centre, (count, 3)), np.broadcast_to(part.matrix, (count, 3, 3))

    def put(self, at: Bounds, inverse: Image, inside: Mask, shade: Array | Image) -> None:
        """Draw the points that are nearer than the image so far."""
        nearest = self.nearest[:, *at]
        inside &= inverse > nearest
        np.copyto(nearest, inverse, where=inside)
        np.copyto(self.shade[:, *at], shade, where=inside, casting="same_kind")

    def shadow(self, part: Part, dark: Mask) -> None:
        """Mark where a part keeps the light from the floor: where the ray from the floor to the light meets it."""
        centre, matrix = self.everywhere(part)
        slant = self.light / self.light[:, 2:]
        height = centre[:, 2:] - self.floor
        at = self.bounds(centre - slant * height, matrix - slant[:, :, None] * matrix[:, 2:3, :])
        if not len(part.planes):
            inverse = np.linalg.inv(part.matrix)
            along = self.light @ inverse.T
            along /= np.linalg.norm(along, axis=1, keepdims=True)
            across = np.eye(3) - along[:, :, None] * along[:, None, :]
            start, turned = (self.place - part.centre) @ inverse.T, self.rays @ inverse.T
            local = (start[:, None, :] * self.ground[..., None] + turned) @ across
            parts = [self.affine(local[..., axis], at) for axis in range(3)]
            floor = self.affine(self.ground, at)
            dark[:, *at] |= parts[0] ** 2 + parts[1] ** 2 + parts[2] ** 2 <= floor * floor
            return
        normals, offsets = part.planes[:, :3], part.planes[:, 3]
        towards = self.light @ normals.T
        # A face across which the light runs is moved a little rather than divided by zero.
        towards = np.where(np.abs(towards) < FAR, FAR, towards)
        room = offsets - self.place @ normals.T
        values = room[..., None] * self.ground[:, None] - np.einsum("vak,fk->vfa", self.rays, normals)
        values /= towards[..., None]
        above, _ = self.least(values, towards > 0, at)
        below, _ = self.least(-values, towards < 0, at)
        dark[:, *at] |= above > np.maximum(-below, 0)

    def draw(self, parts: Sequence[Part]) -> Image:
        """-> (views, side, side)."""
        fine, small = self.side, self.side // SAMPLES
        dark = np.zeros((len(self.place), small, small), np.bool_)
        self.sample(small)
        for part in parts:
            self.shadow(part, dark)
        self.sample(fine)
        pixels = self.shade.reshape(-1, small, SAMPLES, small, SAMPLES)
        np.multiply(pixels, np.float32(SHADOW), out=pixels, where=dark[:, :, None, :, None])
        for part in parts:
            (self.polyhedron if len(part.planes) else self.ellipsoid)(part)
        return pixels.mean(axis=(2, 4))


def _reach(part: Part) -> Array:
    """Half of the size of a part along each axis, nearly."""
    return np.linalg.norm(part.matrix, axis=1) / (np.sqrt(3) if len(part.planes) else 1.0)


def render(
    parts: Sequence[Part], elevations: Array, azimuths: Array, lightings: npt.NDArray[np.int64], side: int
) -> npt.NDArray[np.uint8]:
    """Stereo pairs of one toy on a floor.

    Args:
        parts: of `make_instance`.
        elevations, azimuths: of the pairs of cameras, in degrees, (views,).
        lightings: indices into `LIGHTS`, (views,).
        side: of the pictures, in pixels.

    Shapes: -> uint8 (views, 2, side, side).
    """
    floor = min(float((part.centre - _reach(part))[2]) for part in parts)
    eyes = np.concatenate([azimuths - HALF_ANGLE, azimuths + HALF_ANGLE])
    views = _Views(side, np.tile(elevations, 2), eyes, np.tile(lightings, 2), np.tile(azimuths, 2), floor)
    pictures = views.draw(parts).reshape(2, len(azimuths), side, side).swapaxes(0, 1)
    return (pictures.clip(0, 1) * 255).round().astype(np.uint8)
