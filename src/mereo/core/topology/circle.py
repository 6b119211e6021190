"""Circles: each token of an image and those nearer than a radius, and tokens that all others attend to.

Source: arXiv:2412.16112.
"""

from dataclasses import dataclass
from math import ceil, isfinite, isqrt

import torch
from torch import Tensor

from mereo.core.topology.base import Topology
from mereo.errors import UsageError


@dataclass(frozen=True)
class Circle(Topology):
    """Each image token attends to all text and to the image tokens nearer than a radius; text attends to everything.

    Tokens are numbered [text | image, row by row]. Receiver q attends to sender k where

        q is text,   or k is text,   or   (y_q - y_k)^2 + (x_q - x_k)^2 < radius^2.

    Circles are cut off at borders. With a down factor f there is one more sender for each block of f x f image tokens,
    behind the image, which all image tokens attend to and text does not.

    Args:
        grid: rows and columns of the image.
        radius: tokens nearer than this; 1 is the token itself only.
        text: number of text tokens.
        down_factor: side of the blocks; divides both sides of the image. None for no such senders.

    Raises:
        UsageError: for a radius that is not above 0, and a down factor that does not divide the image.

    Reference: arXiv:2412.16112.
    """

    grid: tuple[int, int]
    radius: float
    text: int = 0
    down_factor: int | None = None

    def __post_init__(self) -> None:
        grid = tuple(self.grid)
        object.__setattr__(self, "grid", grid)
        if len(grid) != 2 or min(grid) < 1:
            raise UsageError(f"grid is {grid}; it must be the rows and columns of the image, each at least 1.")
        if not (self.radius > 0 and isfinite(self.radius)):
            raise UsageError(f"radius is {self.radius}; it must be above 0 and finite; 1 is the token itself only.")
        if self.text < 0:
            raise UsageError(f"text is {self.text}; it must be the number of text tokens, at least 0.")
        f = self.down_factor
        if f is not None and (f < 1 or grid[0] % f or grid[1] % f):
            possible = [n for n in range(1, min(grid) + 1) if grid[0] % n == grid[1] % n == 0]
            raise UsageError(f"down_factor is {f} for an image of {grid} tokens; it must divide both: {possible}.")

    @property
    def image(self) -> int:
        """Number of image tokens."""
        return self.grid[0] * self.grid[1]

    @property
    def pooled(self) -> int:
        """Number of senders that stand for blocks of the image."""
        return 0 if self.down_factor is None else self.image // self.down_factor**2

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of a circle to each side of its centre, at a distance of 0, 1, ... rows from it."""
        rows, columns = self.grid
        most = ceil(self.radius**2) - 1  # the largest square of a distance that is below that of the radius
        return tuple(min(isqrt(most - dy**2), columns - 1) for dy in range(min(isqrt(most), rows - 1) + 1))

    @property
    def reach(self) -> int:
        """Rows of a circle above and below its centre."""
        return len(self.widths) - 1

    @property
    def image_pairs(self) -> int:
        """Pairs of image tokens nearer than the radius."""
        rows, columns = self.grid
        return sum(
            (rows - abs(dy)) * sum(columns - abs(dx) for dx in range(-width, width + 1))
            for dy in range(-self.reach, self.reach + 1)
            for width in (self.widths[abs(dy)],)
        )

    @property
    def pairs(self) -> int:
        """All pairs that exist; attention takes 4 dim FLOPs for each."""
        return self.text * (self.text + self.image) + self.image * (self.text + self.pooled) + self.image_pairs

    def allowed(self, receivers: int, senders: int, device: torch.device | None = None) -> Tensor:
        there = (self.text + self.image, self.text + self.image + self.pooled)
        if (receivers, senders) != there:
            raise UsageError(
                f"there are {receivers} receivers and {senders} senders; an image of {self.grid} tokens with"
                f" {self.text} text tokens has {there[0]} and {there[1]}."
            )
        allowed = torch.ones(receivers, senders, dtype=torch.bool, device=device)
        allowed[: self.text, there[0] :] = False
        allowed[self.text :, self.text : there[0]] = self.near(device)
        return allowed

    def near(self, device: torch.device | None = None) -> Tensor:
        """Image tokens nearer than the radius: bool (image, image)."""
        y, x = (torch.arange(side, device=device) for side in self.grid)
        down, across = (y[:, None] - y).square(), (x[:, None] - x).square()
        apart = down[:, None, :, None] + across[None, :, None, :]
        return (apart < self.radius**2).flatten(2).flatten(0, 1)
