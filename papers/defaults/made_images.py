"""Folders of images made on the spot: shapes, textures, scenes and numbers of things, drawn from a seed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

Values = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator, int, int], Values]
"""(random numbers, label, side) -> float64 (side, side, 3) in 0 .. 255."""

SHAPES = ("circle", "triangle", "square", "pentagon", "hexagon", "star")
TEXTURES = ("stripes", "checks", "waves", "fine", "clouds", "rings", "bricks", "dots", "zigzag", "speckles")
SCENES = ("forest", "lake", "sunset", "night", "street", "beach", "snow", "village", "field", "desert")
COUNTS = ("one", "two", "three", "four", "five")
_SKY = ["96bef0", "96bef0", "f0965a", "19193c", "aaafb4", "96bef0", "c8cdd7", "96bef0", "96bef0", "e6d2aa"]
_GROUND = ["508c3c", "1e5aa0", "3c2d28", "232328", "6e6e73", "d7be82", "ebeef0", "5a8c46", "c8af3c", "c89650"]


def _colour(text: str) -> Values:
    return np.array([int(text[place : place + 2], 16) for place in (0, 2, 4)], dtype=np.float64)


def _clouds(rng: np.random.Generator, side: int, cell: int) -> Values:
    """Smooth noise in 0 .. 1 whose features are about `cell` pixels wide: (side, side, 3)."""
    coarse = rng.integers(0, 256, (max(side // cell + 2, 2),) * 2 + (3,), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC), dtype=np.float64) / 255


def draw_shape(rng: np.random.Generator, label: int, side: int) -> Values:
    """One shape of any colour, size, place and angle on smooth noise."""
    large = 3 * side
    image = Image.fromarray((60 + 140 * _clouds(rng, large, large // 2)).astype(np.uint8))
    radius, angle = rng.uniform(0.18, 0.3) * large, rng.uniform(0, 2 * np.pi)
    x, y = rng.uniform(radius, large - radius, 2)
    corners = (64, 3, 4, 5, 6, 10)[label]
    angles = angle + 2 * np.pi * np.arange(corners) / corners
    radii = np.where((label == 5) & (np.arange(corners) % 2 == 0), 0.45 * radius, radius)
    points = [(x + r * np.cos(a), y + r * np.sin(a)) for r, a in zip(radii, angles, strict=True)]
    ImageDraw.Draw(image).polygon(points, fill=tuple(int(v) for v in rng.integers(0, 256, 3)))
    small = np.asarray(image.resize((side, side), Image.Resampling.LANCZOS), dtype=np.float64)
    return small + rng.normal(0, 6, small.shape)


def draw_texture(rng: np.random.Generator, label: int, side: int) -> Values:
    """A pattern of any two colours and any direction, with uneven light."""
    y, x = np.mgrid[:side, :side].astype(np.float64)
    angle, rate, phase = rng.uniform(0, np.pi), rng.uniform(0.25, 0.6), rng.uniform(0, 6)
    u = x * np.cos(angle) + y * np.sin(angle) + 4 * _clouds(rng, side, 30)[..., 0]
    v = y * np.cos(angle) - x * np.sin(angle)
    far = np.hypot(x - rng.uniform(0, side), y - rng.uniform(0, side))
    cells_u, cells_v = np.mod(u * rate, 6), np.mod(v * rate, 6)
    pattern = (
        lambda: np.sin(u * rate + phase),
        lambda: np.sign(np.sin(u * rate) * np.sin(v * rate)),
        lambda: (np.sin(u * rate) + np.sin(v * rate)) / 2,
        lambda: 2 * _clouds(rng, side, 4)[..., 0] - 1,
        lambda: 2 * np.abs(2 * _clouds(rng, side, 14)[..., 1] - 1) - 1,
        lambda: np.sin(far * rate),
        lambda: np.where((cells_u < 1) | (np.mod(v * rate + 3 * (u * rate // 6 % 2), 6) < 1), 1.0, -1.0),
        lambda: np.where(np.hypot(cells_u - 3, cells_v - 3) < 1.7, 1.0, -1.0),
        lambda: np.sin(u * rate + 2 * np.sin(0.7 * v * rate)),
        lambda: np.where(rng.random((side, side)) < 0.12, 1.0, -1.0),
    )[label]()
    share = np.clip(pattern / 2 + 0.5, 0, 1)[..., None]
    first, second = rng.uniform(40, 215, (2, 3))
    image: Values = first * share + second * (1 - share) + 50 * (_clouds(rng, side, 40) - 0.5)
    return image + rng.normal(0, rng.uniform(5, 15), image.shape)


def draw_scene(rng: np.random.Generator, label: int, side: int) -> Values:
    """Sky, ground and a few things that stand on it: trees, sails, houses."""
    y = np.mgrid[:side, :side][0][..., None]
    horizon = rng.uniform(0.4, 0.65) * side

    def tinted(text: str) -> Values:
        return _colour(text) * rng.uniform(0.75, 1.2) + rng.uniform(-20, 20, 3)

    ground = tinted(_GROUND[label]) + 45 * (_clouds(rng, side, 6) - 0.5)
    whole = np.where(y < horizon, tinted(_SKY[label]) * (0.8 + 0.3 * y / side), ground)
    image = Image.fromarray(np.clip(whole + 40 * (_clouds(rng, side, 30) - 0.5), 0, 255).astype(np.uint8))
    pen = ImageDraw.Draw(image)
    for _ in range(rng.integers(2, 6)):
        x, base, high = rng.uniform(0, side), horizon + rng.uniform(0, 0.25) * side, rng.uniform(0.12, 0.3) * side
        fill = tuple(int(v) for v in np.clip(tinted("8c5a46" if label == 7 else "466446"), 0, 255))
        if label in (3, 4, 7):
            pen.rectangle([x - high / 3, base - high, x + high / 3, base], fill=fill)
        elif label in (0, 1, 6):
            pen.polygon([(x - high / 3, base), (x, base - high), (x + high / 3, base)], fill=fill)
        else:
            pen.ellipse([x - high / 3, base - high / 3, x + high / 3, base], fill=fill)
    pixels = np.asarray(image, dtype=np.float64)
    return pixels + rng.normal(0, 6, pixels.shape)


def draw_count(rng: np.random.Generator, label: int, side: int) -> Values:
    """One to five discs of any colours and sizes on smooth noise; the class is how many."""
    large = 3 * side
    image = Image.fromarray((60 + 140 * _clouds(rng, large, large // 2)).astype(np.uint8))
    pen = ImageDraw.Draw(image)
    # Places of a grid of nine, so that no disc hides another.
    for place in rng.permutation(9)[: label + 1]:
        radius = rng.uniform(0.06, 0.13) * large
        x, y = (np.array([place % 3, place // 3]) + 0.5) * large / 3 + rng.uniform(-0.03, 0.03, 2) * large
        colour = tuple(int(v) for v in rng.integers(0, 256, 3))
        pen.ellipse([x - radius, y - radius, x + radius, y + radius], fill=colour)
    small = np.asarray(image.resize((side, side), Image.Resampling.LANCZOS), dtype=np.float64)
    return small + rng.normal(0, 6, small.shape)


KINDS: dict[str, tuple[Draw, tuple[str, ...], int, int]] = {
    "shapes": (draw_shape, SHAPES, 250, 64),
    "textures": (draw_texture, TEXTURES, 200, 100),
    "scenes": (draw_scene, SCENES, 200, 100),
    "counts": (draw_count, COUNTS, 300, 80),
}
"""Name -> how one is drawn, its classes, images of each, and their side."""


def make_folder(path: Path, kind: str, count: int | None = None) -> Path:
    """Write a folder of one kind of images, unless it is there already, and return it.

    Args:
        path: to write to.
        kind: one of KINDS.
        count: images of each class; by default the kind's own number.
    """
    draw, names, usual, side = KINDS[kind]
    options: dict[str, Any] = {"quality": 90}
    for label, name in enumerate(names):
        (path / name).mkdir(parents=True, exist_ok=True)
        for number in range(count or usual):
            file = path / name / f"{number:04}.jpg"
            if not file.exists():
                rng = np.random.default_rng((label, number))
                Image.fromarray(np.clip(draw(rng, label, side), 0, 255).astype(np.uint8)).save(file, **options)
    return path
