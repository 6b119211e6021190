"""What a topology is: a rule of pairs, and four forms of it that executions use."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mereo.core.kernels.kept import kept
from mereo.errors import UsageError

CPU = torch.device("cpu")
LARGEST_DENSE = 2**24 - 1
"""Entries of a map of couplings beyond which `Tiles.place` gives a sparse tensor: 64 x 64 tokens of one head have more
(64 MiB in float32)."""


class Topology(ABC):
    """The senders that each receiver can attend to; without a topology, all of them.

    A topology states its rule once, in `sees`. The dense mask, the index table, the tiles and the block mask are made
    from it; a topology whose pairs are few also states in which tiles they lie (`make_tiles`), and everything is then
    made without looking at all pairs.

    In each of the four forms, `receivers` and `senders` are how many there are. They may be left out if the topology
    knows them (`counts`).
    """

    complete = True
    """Whether every receiver has a sender."""

    @abstractmethod
    def sees(self, receiver: Tensor, sender: Tensor, counts: tuple[int, int]) -> Tensor:
        """Whether each receiver can attend to each sender: bool, broadcast from int64 numbers of both."""

    @property
    def counts(self) -> tuple[int, int] | None:
        """How many receivers and senders there are; None if any number is allowed."""
        return None

    def make_tiles(self, counts: tuple[int, int], device: torch.device) -> "Tiles":
        """Tiles that hold every pair: one of everything, unless a topology has smaller ones."""
        receivers, senders = (torch.arange(count, device=device).unsqueeze(0) for count in counts)
        return Tiles(receivers, senders, *counts)

    def allowed(
        self, receivers: int | None = None, senders: int | None = None, device: torch.device | None = None
    ) -> Tensor:
        """The existing pairs as a dense mask: bool (receivers, senders), True = takes part."""
        counts = self._sizes(receivers, senders)
        receiver, sender = (torch.arange(count, device=device) for count in counts)
        return self.sees(receiver.unsqueeze(1), sender, counts).expand(counts)

    def table(
        self, receivers: int | None = None, senders: int | None = None, device: torch.device | None = None
    ) -> Tensor:
        """The senders of each receiver, ascending: int64 (receivers, most senders of one), -1 behind the last."""
        allowed = self.allowed(receivers, senders, device)
        count = allowed.shape[-1]
        numbers = torch.where(allowed, torch.arange(count, device=device), count).sort(-1).values
        numbers = numbers[..., : int(allowed.sum(-1).max()) if allowed.numel() else 0]
        return numbers.masked_fill(numbers == count, -1)

    def tiles(
        self, receivers: int | None = None, senders: int | None = None, device: torch.device | None = None
    ) -> "Tiles":
        """Groups of receivers with the senders of each group, and which pairs inside each exist."""
        return _tiles(self, self._sizes(receivers, senders), device or CPU)

    def block_mask(
        self, receivers: int | None = None, senders: int | None = None, device: torch.device | None = None
    ) -> Any:
        """The mask that PyTorch's FlexAttention takes."""
        return _block_mask(self, self._sizes(receivers, senders), device or CPU)

    def groups(
        self, receivers: int | None = None, senders: int | None = None, device: torch.device | None = None
    ) -> "tuple[Tiles, ...]":
        """The tiles in groups that are computed together, such as those with about the same number of senders."""
        return (self.tiles(receivers, senders, device),)

    def restrict(self, mask: Tensor | None, receivers: int, senders: int, device: torch.device) -> Tensor | None:
        """A mask broadcastable to (batch, heads, receivers, senders), without the pairs that are not allowed.

        None if there is no mask, and all pairs are allowed.
        """
        allowed = self.allowed(receivers, senders, device)
        return allowed if mask is None else mask & allowed

    def _sizes(self, receivers: int | None, senders: int | None) -> tuple[int, int]:
        known = self.counts or (receivers, senders)
        if known[0] is None or known[1] is None:
            raise UsageError(f"receivers is {receivers} and senders {senders}; {self} needs the number of both.")
        if any(given not in (None, count) for given, count in zip((receivers, senders), known, strict=True)):
            raise UsageError(
                f"there are {receivers} receivers and {senders} senders; {self} has {known[0]} and {known[1]}."
            )
        return known[0], known[1]


@dataclass(frozen=True, eq=False)
class Tiles(Topology):
    """Which receivers and senders each tile holds, by their number in the whole image; -1 is padding.

    Attention inside tiles computes couplings of the shape (batch * tiles, heads, receivers of a tile, senders of a
    tile). Tiles place them over the whole image, where `mereo.record` shows them. Tiles that a forward pass makes, such
    as top-k regions and clusters, are a topology by themselves.

    Args:
        receivers: int64 (tiles, receivers of a tile), (batch, tiles, receivers of a tile) if images differ, or
            (batch, heads, tiles, receivers of a tile) if heads differ as well.
        senders: int64 (tiles, senders of a tile), or with further axes likewise.
        num_receivers, num_senders: how many there are in the whole image.
        pairs: bool, broadcastable to (..., tiles, receivers of a tile, senders of a tile), which pairs of a tile exist;
            None for all without padding.
    """

    receivers: Tensor
    senders: Tensor
    num_receivers: int
    num_senders: int
    pairs: Tensor | None = None

    complete = False

    @property
    def counts(self) -> tuple[int, int]:
        return self.num_receivers, self.num_senders

    def sees(self, receiver: Tensor, sender: Tensor, counts: tuple[int, int]) -> Tensor:
        return self.allowed(device=receiver.device)[..., receiver, sender]

    def allowed(
        self, receivers: int | None = None, senders: int | None = None, device: torch.device | None = None
    ) -> Tensor:
        """As for every topology; (batch, heads or 1, receivers, senders) if images differ."""
        counts = self._sizes(receivers, senders)
        numbers = self._numbers(device or self.senders.device)
        whole = torch.zeros(*numbers.shape[:2], counts[0] * counts[1] + 1, dtype=torch.bool, device=numbers.device)
        whole = whole.scatter_(2, numbers.flatten(2), True)[..., :-1].unflatten(2, counts)
        return whole if max(self.receivers.dim(), self.senders.dim()) > 2 else whole[0, 0]

    def tiles(
        self, receivers: int | None = None, senders: int | None = None, device: torch.device | None = None
    ) -> "Tiles":
        return self

    def block_mask(
        self, receivers: int | None = None, senders: int | None = None, device: torch.device | None = None
    ) -> Any:
        from torch.nn.attention.flex_attention import create_block_mask

        allowed = self.allowed(receivers, senders, device)
        allowed = allowed if allowed.dim() == 4 else allowed[None, None]
        images, heads = allowed.shape[:2]

        def existing(batch: Tensor, head: Tensor, receiver: Tensor, sender: Tensor) -> Tensor:
            return allowed[batch % images, head % heads, receiver, sender]

        return create_block_mask(existing, images, heads, *self.counts, device=allowed.device)

    @property
    def count(self) -> int:
        """Number of tiles."""
        return self.receivers.shape[-2]

    @property
    def exclusive(self) -> bool:
        """Whether no receiver is in more than one tile, so that `pick` undoes `place`."""
        numbers = self.receivers.reshape(-1, self.count * self.receivers.shape[-1]).sort(-1).values
        return not bool(((numbers[:, 1:] == numbers[:, :-1]) & (numbers[:, 1:] >= 0)).any())

    def _numbers(self, device: torch.device) -> Tensor:
        """Number of each pair in the flat map of an image: int64 (batch or 1, heads or 1, tiles, r, s); one past it for
        pairs that do not exist."""
        receivers, senders = (
            x.unsqueeze(1) if x.dim() == 3 else x.view(1, 1, *x.shape) if x.dim() == 2 else x
            for x in (self.receivers.to(device), self.senders.to(device))
        )
        receivers, senders = receivers.unsqueeze(-1), senders.unsqueeze(-2)
        numbers = receivers * self.num_senders + senders
        there = (receivers >= 0) & (senders >= 0)
        if self.pairs is not None:
            there = there & self.pairs.to(device)
        return torch.where(there, numbers, self.num_receivers * self.num_senders)

    def _numbers_for(self, batch: int, device: torch.device) -> Tensor:
        numbers = self._numbers(device)
        if numbers.shape[0] not in (1, batch):
            raise UsageError(f"tiles are of {numbers.shape[0]} images, and the couplings of {batch}.")
        return numbers

    def dense(self, couplings: Tensor) -> bool:
        """Whether `place` gives a dense tensor for couplings (batch * tiles, heads, r, s)."""
        images = couplings.shape[0] // self.count
        return images * couplings.shape[1] * self.num_receivers * self.num_senders <= LARGEST_DENSE

    def place(self, couplings: Tensor, sparse: bool | None = None) -> Tensor:
        """Couplings of tiles over the whole image; pairs that share no tile are 0, pairs of several tiles are added.

        Args:
            sparse: whether the result is a sparse tensor; by default if a dense one has more than LARGEST_DENSE
                entries.

        Shapes: (batch * tiles, heads, r, s) -> (batch, heads, receivers, senders).
        """
        tiled = couplings.unflatten(0, (-1, self.count)).transpose(1, 2)
        batch, heads = tiled.shape[:2]
        entries = self.num_receivers * self.num_senders
        numbers = self._numbers_for(batch, couplings.device)
        if not self.dense(couplings) if sparse is None else sparse:
            index = numbers.expand_as(tiled).reshape(-1)
            image = torch.arange(batch * heads, device=couplings.device).repeat_interleave(tiled[0, 0].numel())
            kept = index < entries
            image, index = image[kept], index[kept]
            places = torch.stack((image // heads, image % heads, index // self.num_senders, index % self.num_senders))
            size = (batch, heads, self.num_receivers, self.num_senders)
            return torch.sparse_coo_tensor(places, tiled.reshape(-1)[kept], size, check_invariants=False).coalesce()
        index = numbers.flatten(2).expand(batch, heads, -1)
        whole = couplings.new_zeros(batch, heads, entries + 1).scatter_add(2, index, tiled.flatten(2))
        return whole[..., :-1].unflatten(-1, (self.num_receivers, self.num_senders))

    def pick(self, couplings: Tensor, padding: Tensor) -> Tensor:
        """The inverse of `place`: entries of a map over the whole image as tiles; `padding` fills places outside it.

        Shapes: couplings (batch, heads, receivers, senders), padding (batch * tiles, heads, r, s) -> as padding.
        """
        batch, heads = couplings.shape[:2]
        numbers, there = self._numbers_for(batch, couplings.device), self.there(padding)
        flat = torch.cat((couplings.flatten(2), couplings.new_zeros(batch, heads, 1)), 2)
        picked = flat.gather(2, numbers.flatten(2).expand(batch, heads, -1))
        picked = picked.unflatten(2, numbers.shape[2:]).transpose(1, 2).flatten(0, 1)
        return torch.where(there, picked, padding)

    def there(self, couplings: Tensor) -> Tensor:
        """Which pairs exist, bool, broadcastable to couplings (batch * tiles, heads, r, s)."""
        batch = couplings.shape[0] // self.count
        numbers = self._numbers_for(batch, couplings.device)
        there = numbers < self.num_receivers * self.num_senders
        return there.expand(batch, -1, -1, -1, -1).transpose(1, 2).flatten(0, 1)


@kept(64)
def _tiles(topology: Topology, counts: tuple[int, int], device: torch.device) -> "Tiles":
    tiles = topology.make_tiles(counts, device)
    receivers, senders = tiles.receivers.unsqueeze(-1), tiles.senders.unsqueeze(-2)
    there = (receivers >= 0) & (senders >= 0) & topology.sees(receivers.clamp(min=0), senders.clamp(min=0), counts)
    return Tiles(tiles.receivers, tiles.senders, *counts, pairs=there)


@kept(16)
def _block_mask(topology: Topology, counts: tuple[int, int], device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    def allowed(batch: Tensor, head: Tensor, receiver: Tensor, sender: Tensor) -> Tensor:
        return topology.sees(receiver, sender, counts)

    return create_block_mask(allowed, None, None, *counts, device=device)


@dataclass(frozen=True)
class Causal(Topology):
    """Each receiver attends to itself and the senders before it.

    Receivers are the last of the senders: with S senders and R receivers, receiver r attends to senders 0 to r + S - R.
    So a single newest token attends to the complete past, as in decoding with a cache.
    """

    def sees(self, receiver: Tensor, sender: Tensor, counts: tuple[int, int]) -> Tensor:
        return sender <= receiver + (counts[1] - counts[0])

    def allowed(
        self, receivers: int | None = None, senders: int | None = None, device: torch.device | None = None
    ) -> Tensor:
        count, length = self._sizes(receivers, senders)
        return torch.ones(count, length, dtype=torch.bool, device=device).tril(length - count)

    def restrict(self, mask: Tensor | None, receivers: int, senders: int, device: torch.device) -> Tensor | None:
        one = receivers == 1 and senders > 0  # a newest token, as in decoding, attends to all
        return mask if one else super().restrict(mask, receivers, senders, device)

    def _sizes(self, receivers: int | None, senders: int | None) -> tuple[int, int]:
        counts = super()._sizes(receivers, senders)
        if counts[1] < counts[0]:
            raise UsageError(
                f"there are {senders} senders for {receivers} receivers; a causal exchange needs at least as many"
                " senders as receivers, because the receivers are the last of them."
            )
        return counts
