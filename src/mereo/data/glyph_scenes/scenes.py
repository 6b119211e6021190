"""Scenes drawn on any device: up to three glyphs in the quarters of an image, with a prompt that is true of each."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mereo.data.glyph_scenes.prompts import COLOURS, KINDS, LENGTH, MOST, NUMBER, PAD, START

SIDE, GROUND = 32, 0.9
"""Pixels of a side, and the grey of the ground."""
RADIUS, SHIFT = (4.6, 6.0), 1.4
"""Least and largest half width of a glyph, and most pixels between its centre and the middle of its quarter."""
TEXTURES = ("stripes", "checks")
ALONE, PLACED, RELATED, COLOURLESS = (0.2, 0.7), 0.6, 0.6, 0.15
"""Shares of scenes of one glyph, and of one or two, of glyphs whose row (or column) is stated, of neighbours that are
related, and of glyphs whose colour is not stated."""
_STEPS, _MIX = (1 << 12, 1 << 44, -7046029254386353131), (-4658895280553007687, -7723592293110705685)


class Scenes(NamedTuple):
    """Scenes with their truth.

    Attributes:
        tokens: the prompt, int64 (scenes, LENGTH).
        images: (scenes, 3, SIDE, SIDE) in [0, 1].
        kinds: colour + 6 shape of the glyph in each quarter, -1 for none: int64 (scenes, 4).
    """

    tokens: Tensor
    images: Tensor
    kinds: Tensor


def distances(shape: Tensor, x: Tensor, y: Tensor, radius: Tensor) -> Tensor:
    """Pixels from the outline of each glyph, negative inside: int64 (n,), (n, h, w) twice, (n,) -> (n, h, w)."""
    r = radius[:, None, None]
    across, down, length = x.abs(), y.abs(), (x * x + y * y).sqrt()
    square = torch.maximum(across, down) - 0.85 * r
    triangle = torch.maximum(0.89 * across - 0.45 * y - 0.4 * r, y - 0.8 * r)
    fifth = math.pi / 5
    turn = torch.atan2(x, -y).abs()
    turn = (turn + fifth).remainder(2 * fifth) - fifth  # from the nearest point of the star
    tip_x, tip_y, dent = length * turn.abs().sin(), length * turn.cos(), 0.42
    a, b = (0.0, 1.08), (dent * math.sin(fifth) * 1.08, dent * math.cos(fifth) * 1.08)
    edge = math.hypot(b[0] - a[0], b[1] - a[1])
    star = ((tip_y - a[1] * r) * (b[0] - a[0]) - tip_x * (b[1] - a[1])) / edge
    bar = 0.32 * r
    cross = torch.minimum(torch.maximum(across - r, down - bar), torch.maximum(across - bar, down - r))
    ring = (length - 0.72 * r).abs() - 0.24 * r
    every = torch.stack((square, length - 0.95 * r, triangle, star, cross, ring), 1)
    return every[torch.arange(len(shape), device=shape.device), shape]


def paint(
    colours: Tensor, shapes: Tensor, centres: Tensor, radii: Tensor, there: Tensor, textures: Tensor | None = None
) -> Tensor:
    """Images of glyphs on a plain ground, with soft edges.

    Args:
        there: which glyphs exist.
        textures: 0 for a plain glyph, 1 + the place in TEXTURES for another; all plain by default.

    Shapes: int64 (n, glyphs), int64 (n, glyphs), (n, glyphs, 2) as x and y, (n, glyphs), bool (n, glyphs), int64
        (n, glyphs) -> (n, 3, SIDE, SIDE).
    """
    table = torch.tensor([*COLOURS.values()], device=centres.device)
    places = torch.arange(SIDE, device=centres.device) + 0.5
    images = torch.full((len(colours), 3, SIDE, SIDE), GROUND, device=centres.device)
    for glyph in range(colours.shape[1]):
        x = places - centres[:, glyph, 0, None, None]
        y = places[:, None] - centres[:, glyph, 1, None, None]
        x, y = torch.broadcast_tensors(x, y)
        inside = (0.5 - distances(shapes[:, glyph], x, y, radii[:, glyph])).clamp(0, 1)
        colour = table[colours[:, glyph], :, None, None]
        if textures is not None:
            bands = [(y.floor() % 4 < 2), ((x.floor() % 4 < 2) ^ (y.floor() % 4 < 2))]
            for number, band in enumerate(bands):
                woven = (textures[:, glyph] == number + 1)[:, None, None] & band
                colour = torch.where(woven[:, None], 1.0, colour)
        inside = (inside * there[:, glyph, None, None])[:, None]
        images = images + inside * (colour - images)
    return images


def uniform(numbers: Tensor, count: int, seed: int) -> Tensor:
    """Random numbers in [0, 1) that depend on a number and a seed only, on every device alike: (n,) -> (n, count).

    Reference: the mixing function of SplitMix64, Steele, Lea, Flood 2014, doi:10.1145/2660193.2660195.
    """
    column = torch.arange(count, device=numbers.device)
    z = (numbers.long()[:, None] * _STEPS[0] + column + (seed + 1) * _STEPS[1]) * _STEPS[2]
    for shift, factor in ((30, _MIX[0]), (27, _MIX[1]), (31, 1)):
        z = (z ^ ((z >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return (z & 0xFFFFFF).float() / 2**24


def noise_for(tokens: Tensor, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Normal noise that depends on a prompt and a seed only: int64 (n, words) -> (n, *shape)."""
    number = torch.zeros(len(tokens), dtype=torch.int64, device=tokens.device)
    for column in tokens.unbind(1):
        number = number * 31 + column
    share = uniform(number % 2**40, math.prod(shape), seed) + 2.0**-25
    return torch.special.ndtri(share).view(-1, *shape)


def make_scenes(numbers: Tensor, seed: int = 0) -> Scenes:
    """The scenes of these numbers under a seed, made on their device.

    Args:
        numbers: int64 (scenes,).
    """
    count, device = len(numbers), numbers.device
    drawn = uniform(numbers, KINDS + 5 + 7 * MOST - 1, seed)
    kinds, quarters, one, centres, radii, stated, related, named = drawn.split(
        (KINDS, 4, 1, 2 * MOST, MOST, 2 * MOST, MOST - 1, MOST), 1
    )
    kinds, quarters = kinds.argsort(1)[:, :MOST], quarters.argsort(1)[:, :MOST]
    colours, shapes, rows, columns = kinds % len(COLOURS), kinds // len(COLOURS), quarters // 2, quarters % 2
    there = torch.arange(MOST, device=device) < 1 + (one > ALONE[0]).long() + (one > ALONE[1]).long()
    middles = torch.stack((columns, rows), -1) * (SIDE / 2) + SIDE / 4
    centres = middles + SHIFT * (2 * centres.unflatten(1, (MOST, 2)) - 1)
    images = paint(colours, shapes, centres, RADIUS[0] + (RADIUS[1] - RADIUS[0]) * radii, there)
    row_stated, column_stated = (stated < PLACED).chunk(2, 1)
    words = torch.full((count, 1 + 5 * MOST), PAD, device=device)
    words[:, 0] = START
    for glyph in range(MOST):
        parts = (
            (NUMBER["red"] + colours[:, glyph]).where(named[:, glyph] >= COLOURLESS, PAD),
            NUMBER["square"] + shapes[:, glyph],
            (NUMBER["top"] + rows[:, glyph]).where(row_stated[:, glyph], PAD),
            (NUMBER["left"] + columns[:, glyph]).where(column_stated[:, glyph], PAD),
        )  # fmt: skip
        here, first = there[:, glyph], 1 + 5 * glyph
        words[:, first : first + 4] = torch.stack(parts, 1).where(here[:, None], PAD)
        if glyph:
            row, column = (x[:, glyph - 1] - x[:, glyph] for x in (rows, columns))
            relation = torch.where(row == 0, (column > 0).long(), 2 + (row > 0).long()) + NUMBER["left-of"]
            neighbours = ((row == 0) | (column == 0)) & (related[:, glyph - 1] < RELATED)
            words[:, first - 1] = relation.where(neighbours, NUMBER["and"]).where(here, PAD)
    tokens = words.gather(1, (words == PAD).long().argsort(dim=1, stable=True))[:, :LENGTH]
    truth = torch.full((count, 4), -1, device=device)
    truth.scatter_(1, quarters, (colours + len(COLOURS) * shapes).where(there, -1))
    return Scenes(tokens, images, truth)
