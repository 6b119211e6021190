"""Couplings that `intervene` puts in place of a network's own, by their usual names.

All act on the pairs that take part only: what a mask, a topology or the tiles leave out stays as it is.

Reference: uniform attention is a baseline of arXiv:1908.04626, shuffled attention of arXiv:1902.10186.
"""

import zlib
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from mereo.core.observe import Call
from mereo.core.topology import KeyLists, Tiles
from mereo.errors import UsageError

Replacement = Callable[[Tensor, Call], Tensor]


def seeded(text: str) -> torch.Generator:
    """A generator whose seed follows from a text."""
    return torch.Generator().manual_seed(zlib.crc32(text.encode()))


def _taking_part(call: Call, in_tiles: bool = False) -> tuple[Tensor | None, bool]:
    """The mask of pairs, bool (broadcastable to the couplings that `intervene` passes), or None if all pairs take part;
    and whether the couplings are inside tiles, where they stay if `in_tiles`."""
    made, tiles = call.couplings, call.tiles
    assert made is not None
    if tiles is None:
        return call.mask, False
    if not in_tiles and tiles.exclusive and tiles.dense(made):
        ones = torch.ones_like(made) if call.mask is None else call.mask.expand_as(made).to(made.dtype)
        return tiles.place(ones) > 0, False
    there = tiles.there(made)
    return there if call.mask is None else there & call.mask, True


def _numbers(tiles: Tiles, numbers: Tensor, made: Tensor) -> Tensor:
    """Numbers of receivers or senders for each tile of each image: (batch * tiles, 1 or heads, numbers of a tile)."""
    batch, numbers = made.shape[0] // tiles.count, numbers.to(made.device)
    if numbers.dim() < 4:
        numbers = numbers.reshape(-1, 1, *numbers.shape[-2:])  # (batch or 1, 1, tiles, n)
    return numbers.expand(batch, -1, -1, -1).transpose(1, 2).flatten(0, 1)


def _axes(call: Call) -> tuple[int, ...]:
    """The axes over which couplings are normalised; the senders' axis if they are not."""
    return {"receivers": (-2,), "both": (-2, -1)}.get(call.over, (-1,))


def stays_in_tiles(change: object, call: Call) -> bool:
    """Whether a replacement makes the same of couplings inside tiles as of those of the whole image."""
    by_place = isinstance(call.tiles, KeyLists) and call.over == "receivers"
    return change is uniform and call.over != "both" and not by_place


def uniform(couplings: Tensor, call: Call) -> Tensor:
    """The mean of the couplings along the axis that is normalised, over the pairs that take part."""
    part, tiled = _taking_part(call, stays_in_tiles(uniform, call))
    axes = _axes(call)
    wide = couplings.float() if couplings.dtype in (torch.float16, torch.bfloat16) else couplings
    if part is None:
        return wide.mean(axes, keepdim=True).expand_as(wide).to(couplings.dtype)
    part = part.expand_as(wide)
    if tiled and axes == (-2,):
        mean = _mean_of_senders(wide, part, call)
    else:
        mean = (wide * part).sum(axes, keepdim=True) / part.sum(axes, keepdim=True).clamp(min=1)
    return torch.where(part, mean, wide).to(couplings.dtype)


def _mean_of_senders(couplings: Tensor, part: Tensor, call: Call) -> Tensor:
    """The mean of what each sender gives to the receivers of all its tiles: (batch * tiles, heads, 1, senders)."""
    tiles = call.tiles
    assert tiles is not None
    numbers = _numbers(tiles, tiles.senders, couplings).remainder(tiles.num_senders + 1)  # padding comes last

    def by_image(x: Tensor) -> Tensor:
        """(batch * tiles, heads, s) -> (batch, heads, tiles * s)."""
        return x.unflatten(0, (-1, tiles.count)).transpose(1, 2).flatten(2)

    places = by_image(numbers.expand(-1, couplings.shape[1], -1))
    sums, counts = (
        x.new_zeros(*places.shape[:2], tiles.num_senders + 1).scatter_add(2, places, by_image(x)).gather(2, places)
        for x in ((couplings * part).sum(-2), part.sum(-2).to(couplings.dtype))
    )
    mean = (sums / counts.clamp(min=1)).unflatten(2, (tiles.count, -1))
    return mean.transpose(1, 2).flatten(0, 1).unsqueeze(-2)


def shuffled(generator: torch.Generator, couplings: Tensor, call: Call) -> Tensor:
    """The couplings with their senders permuted, among the senders that take part."""
    part, _ = _taking_part(call)
    batch, senders = couplings.shape[0], couplings.shape[-1]
    keys = torch.rand(batch, 1, 1, senders, generator=generator).to(couplings.device)
    if part is None:
        return couplings.gather(-1, keys.argsort(-1).expand_as(couplings))
    there, numbers = part.expand(*part.shape[:-1], senders), torch.arange(senders, device=couplings.device)
    # Senders that take part come first: once in their order, once in a random one.
    before = torch.where(there, numbers, senders + numbers).argsort(-1)
    after = torch.where(there, keys, 2 + numbers).argsort(-1)
    changed = torch.empty_like(couplings).scatter_(
        -1, after.expand_as(couplings), couplings.gather(-1, before.expand_as(couplings))
    )
    return torch.where(there, changed, couplings)


def identity(couplings: Tensor, call: Call) -> Tensor:
    """Everything that a receiver takes comes from the sender of the same number."""
    part, tiled = _taking_part(call)
    receivers, senders = couplings.shape[-2:]
    if tiled or receivers != senders:
        raise UsageError(
            f"the change of {call.name!r} is 'identity', and its couplings (batch, heads, receivers, senders) are"
            f" {tuple(couplings.shape)}{' in tiles that overlap' if tiled else ''}; it needs a sender of its own for"
            " each receiver. Give 'uniform' or a function."
        )
    axes = _axes(call)
    total = couplings.sum(axes, keepdim=True) / (receivers if len(axes) == 2 else 1)
    same = torch.eye(receivers, dtype=torch.bool, device=couplings.device)
    return torch.where(same if part is None else same & part, total, 0)


def strongest(couplings: Tensor, call: Call) -> Tensor:
    """Among couplings that are normalised together, the largest one gets the whole sum."""
    axes = _axes(call)
    lines = couplings.flatten(-2) if len(axes) == 2 else couplings.transpose(-1, axes[0])
    kept = torch.zeros_like(lines).scatter(-1, lines.argmax(-1, keepdim=True), lines.sum(-1, keepdim=True))
    return kept.unflatten(-1, couplings.shape[-2:]) if len(axes) == 2 else kept.transpose(-1, axes[0])


def zero(couplings: Tensor, call: Call) -> Tensor:
    """No sender has any influence."""
    return torch.zeros_like(couplings)


_REPLACEMENTS = {"uniform": uniform, "identity": identity, "strongest": strongest, "zero": zero}
WORDS = (*_REPLACEMENTS, "shuffled")
"""Names of replacements."""
OF_SIGNALS: dict[str, Callable[[Tensor], Tensor]] = {"zero": torch.zeros_like, "one": torch.ones_like}
"""Replacements for gates, states and kept tokens."""


def replacement(name: str, word: str) -> Replacement:
    """The replacement of a coupling by its word; permutations are drawn from a seed that follows from `name`."""
    return partial(shuffled, seeded(name)) if word == "shuffled" else _REPLACEMENTS[word]
