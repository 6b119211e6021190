"""Circles: each token of an image and those nearer than a radius, and tokens that all others attend to.

Source: arXiv:2412.16112.
"""

from dataclasses import dataclass
from math import ceil, isfinite, isqrt

import torch
from torch import Tensor

from mereo.core.kernels.kept import kept
from mereo.core.topology.base import CPU, Tiles, Topology
from mereo.core.topology.lines import PADDING
from mereo.errors import UsageError

TILE = 8
"""Receivers of a tile along each side."""
PADDED = 1.25
"""Tiles are computed together while the largest has at most this many times the senders of the smallest."""


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
        most = ceil(self.radius**2) - 1  # the largest squared distance below the squared radius
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

    @property
    def counts(self) -> tuple[int, int]:
        return self.text + self.image, self.text + self.image + self.pooled

    @property
    def of_image(self) -> "ImageCircle":
        """The same for the image tokens alone."""
        return ImageCircle(self)

    def sees(self, receiver: Tensor, sender: Tensor, counts: tuple[int, int]) -> Tensor:
        of_image = self.of_image.sees(receiver - self.text, sender, counts)
        return torch.where(receiver < self.text, sender < self.text + self.image, of_image)

    def near(self, device: torch.device | None = None) -> Tensor:
        """Image tokens nearer than the radius: bool (image, image)."""
        return self.of_image.allowed(device=device)[:, self.text : self.text + self.image]


@dataclass(frozen=True)
class ImageCircle(Topology):
    """The senders of the image tokens of a circle: receivers are image tokens, senders [text | image | blocks]."""

    circle: Circle

    @property
    def counts(self) -> tuple[int, int]:
        return self.circle.image, self.circle.counts[1]

    def sees(self, receiver: Tensor, sender: Tensor, counts: tuple[int, int]) -> Tensor:
        columns, place = self.circle.grid[1], sender - self.circle.text
        down = torch.div(receiver, columns, rounding_mode="floor") - torch.div(place, columns, rounding_mode="floor")
        across = receiver % columns - place % columns
        near = down * down + across * across < self.circle.radius**2
        return (place < 0) | (place >= self.circle.image) | near

    def make_tiles(self, counts: tuple[int, int], device: torch.device) -> Tiles:
        """Squares of receivers, each with the union of their circles and the senders that all attend to."""
        circle = self.circle
        (rows, columns), reach = circle.grid, circle.reach
        tall, wide = min(TILE, rows), min(TILE, columns)
        corner = torch.cartesian_prod(
            torch.arange(0, rows, tall, device=device), torch.arange(0, columns, wide, device=device)
        ).unsqueeze(1)
        square = torch.cartesian_prod(torch.arange(tall, device=device), torch.arange(wide, device=device))
        offsets = [
            (dy, dx)
            for dy in range(-reach, tall + reach)
            for width in (circle.widths[max(-dy, dy - tall + 1, 0)],)
            for dx in range(-width, wide + width)
        ]

        def numbers(cells: Tensor, first: int) -> Tensor:
            there = ((cells >= 0) & (cells < torch.tensor((rows, columns), device=device))).all(-1)
            return torch.where(there, first + cells[..., 0] * columns + cells[..., 1], PADDING)

        everyone = torch.arange(counts[1] - circle.image, device=device)
        everyone = torch.where(everyone < circle.text, everyone, everyone + circle.image)
        near = numbers(corner + torch.tensor(offsets, device=device), circle.text)
        return Tiles(numbers(corner + square, 0), torch.cat((everyone.expand(len(near), -1), near), 1), *counts)

    def groups(
        self, receivers: int | None = None, senders: int | None = None, device: torch.device | None = None
    ) -> tuple[Tiles, ...]:
        self._sizes(receivers, senders)
        return _groups(self, device or CPU)


@kept(16)
def _groups(topology: ImageCircle, device: torch.device) -> tuple[Tiles, ...]:
    """Tiles with about the same number of senders together, without the places of their senders that are padding."""
    whole = topology.tiles(device=device)
    assert whole.pairs is not None
    counts, order = (whole.senders >= 0).sum(1).sort()
    groups, begin = [], 0
    listed = counts.tolist()
    for end in range(1, len(listed) + 1):
        if end < len(listed) and listed[end] <= PADDED * listed[begin]:
            continue
        mine, most = order[begin:end], listed[end - 1]
        senders, places = whole.senders[mine].sort(dim=1, descending=True)
        pairs = whole.pairs[mine].gather(2, places[:, None, :most].expand(-1, whole.pairs.shape[1], -1))
        groups.append(Tiles(whole.receivers[mine], senders[:, :most], *topology.counts, pairs=pairs))
        begin = end
    return tuple(groups)
