"""How attention to circles is executed; a table of predicates chooses."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mereo.core.coupling import Coupling
from mereo.core.kernels.attention import attend
from mereo.core.kernels.circle_compiled import attend_compiled, numbers_of
from mereo.core.kernels.circle_tiles import tiled
from mereo.core.kernels.flex import flex, flex_cannot
from mereo.core.kernels.kept import kept
from mereo.core.kernels.methods import compiled_cannot, execute
from mereo.core.topology import Circle


@dataclass(frozen=True)
class Exchange:
    """One call, for the queries of the image.

    Attributes:
        q: (batch, heads, image, dim).
        k, v: (batch, heads, senders, dim or pose), senders [text | image | blocks].
        circle: who attends to whom.
        coupling: makes the couplings.
        scale: factor of q k^T.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    circle: Circle
    coupling: Coupling
    scale: float


def _dense(given: Exchange) -> Tensor:
    """All scores, with a mask: the reference."""
    circle, device = given.circle, given.q.device
    mask = torch.ones(circle.image, given.k.shape[2], dtype=torch.bool, device=device)
    mask[:, circle.text : circle.text + circle.image] = circle.near(device)
    return attend(given.q, given.k, given.v, given.coupling, mask=mask, scale=given.scale)


def _tiles(given: Exchange) -> Tensor:
    return tiled(given.q, given.k, given.v, given.circle, given.coupling, given.scale)


def _compiled(given: Exchange) -> Tensor:
    circle = given.circle
    return attend_compiled(given.q, given.k, given.v, numbers_of(circle), float(circle.radius), given.scale)[0]


@kept(16)
def _block_mask(circle: Circle, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    text, image, columns, most = circle.text, circle.image, circle.grid[1], circle.radius**2

    def allowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        place = key - text
        down, across = query // columns - place // columns, query % columns - place % columns
        return (place < 0) | (place >= image) | (down * down + across * across < most)

    senders = text + image + circle.pooled
    return create_block_mask(allowed, None, None, image, senders, device=device)


def _flex(given: Exchange) -> Tensor:
    return flex(given.q, given.k, given.v, _block_mask(given.circle, given.q.device), given.scale)


def _plain_cannot(given: Exchange) -> str | None:
    if given.coupling.watched:
        return "the couplings are observed"
    if given.coupling.training and given.coupling.dropout:
        return "there is dropout"
    return None if given.coupling.is_plain_softmax else f"it does not support {given.coupling}"


def _compiled_cannot(given: Exchange) -> str | None:
    return compiled_cannot(given.q, given.k, given.v) or _plain_cannot(given)


def _flex_cannot(given: Exchange) -> str | None:
    return flex_cannot(given.q, given.k, given.v) or _plain_cannot(given)


METHODS: dict[str, tuple[Callable[[Exchange], Tensor], Callable[[Exchange], str | None]]] = {
    "compiled": (_compiled, _compiled_cannot),
    "tiles": (_tiles, lambda given: None),
    "flex": (_flex, _flex_cannot),
    "dense": (_dense, lambda given: None),
}
"""Name -> (function, why it cannot run: None if it can), the preferred first."""


def exchange(given: Exchange, method: str = "auto") -> Tensor:
    """The output of each image token: (batch, heads, image, pose).

    Args:
        method: "auto", or a row of METHODS.
    """
    return execute(METHODS, given, method, always="tiles")
