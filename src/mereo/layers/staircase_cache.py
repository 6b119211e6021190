"""Keys and values of a decoder in fewer bits the older they are: staircase adaptive quantisation.

Source: Li 2024, arXiv:2410.18441, on the groups of KIVI, arXiv:2402.02750.
Memory: bits + 2 w / G a number, for groups of G and a minimum and a step of w bits each; the newest tokens take w.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.core.inputs import check_tensors
from mereo.core.squash import accumulation_type
from mereo.errors import UsageError, check_count

EXACT = 16
"""The number of bits that stands for the type that the numbers have."""


class Codes(NamedTuple):
    """Groups of numbers along the last axis, each number in a few bits: x' = low + step code.

    Attributes:
        packed: uint8 (..., bytes of a group); the numbers themselves for 16 bits.
        low, step: of each group, (..., 1); empty for 16 bits.
        bits: of a code.
        size: numbers of a group.
    """

    packed: Tensor
    low: Tensor
    step: Tensor
    bits: int
    size: int


def quantise(x: Tensor, bits: int) -> Codes:
    """Round each group between its least and its largest number, to 2^bits equal steps.

    low = min x,   step = (max x - min x) / (2^bits - 1),   code = round((x - low) / step)

    A step of 0 keeps the number, and so do 16 bits. The minimum and the step have the type of x.

    Shapes: (..., size of a group) -> codes.

    Reference: arXiv:2402.02750, eq. 1.
    """
    if bits == EXACT:
        return Codes(x, x[..., :0], x[..., :0], bits, x.shape[-1])
    wide, most = x.to(accumulation_type(x)), 2**bits - 1
    low, high = wide.aminmax(dim=-1, keepdim=True)
    low, step = low.to(x.dtype), ((high - low) / most).to(x.dtype)
    codes = (wide - low) / step.to(wide.dtype).masked_fill(step == 0, 1)
    return _pack(codes.round().clamp(0, most).to(torch.uint8), low, step, bits)


def dequantise(codes: Codes) -> Tensor:
    """low + step code: codes -> (..., size of a group), of the type of the step."""
    if codes.bits == EXACT:
        return codes.packed
    wide = accumulation_type(codes.step)
    return (codes.low + codes.step * _unpack(codes).to(wide)).to(codes.step.dtype)


def requantise(codes: Codes, bits: int) -> Codes:
    """The codes in fewer bits: `quantise(dequantise(codes), bits)`, without its rounding errors.

    The least and the largest number of a group have the codes 0 and 2^b - 1, so that both remain.
    """
    if codes.bits == EXACT:
        return quantise(codes.packed, bits)
    old, most = 2**codes.bits - 1, 2**bits - 1
    fewer = (_unpack(codes).to(torch.float32) * (most / old)).round().to(torch.uint8)
    wide = codes.step.to(accumulation_type(codes.step))
    return _pack(fewer, codes.low, (wide * (old / most)).to(codes.step.dtype), bits)


def _pack(codes: Tensor, low: Tensor, step: Tensor, bits: int) -> Codes:
    size, each = codes.shape[-1], 8 // bits
    parts = F.pad(codes, (0, -size % each)).unflatten(-1, (-1, each))
    packed = parts[..., 0].clone()
    for place in range(1, each):
        packed |= parts[..., place] << bits * place
    return Codes(packed, low, step, bits, size)


def _unpack(codes: Codes) -> Tensor:
    """The codes themselves: uint8 (..., size)."""
    places = [codes.packed >> codes.bits * place for place in range(8 // codes.bits)]
    return (torch.stack(places, -1) & (2**codes.bits - 1)).flatten(-2)[..., : codes.size]


Level = tuple[Codes, Codes]
"""Keys (batch, blocks * token groups, heads, dim, group) and values (batch, tokens, channel groups, group)."""


@dataclass(frozen=True)
class StaircaseCache:
    """The keys and values of all tokens read so far, in fewer bits the older their block is.

    The newest tokens, fewer than a block, are exact. When they fill a block, this takes bits[1], the one before it goes
    from bits[1] to bits[2] and so on; all older blocks have the last number of bits. Keys are grouped by channel, over
    the tokens of a group; values by token, over the channels of all heads.

    Args:
        bits: of the newest tokens (16, which stands for their own type), and of the blocks from new to old.
        block: S, tokens of a block.
        group: G, numbers of a group; divides `block`, and the channels of all heads.

    Attributes:
        keys, values: the exact newest tokens (batch, heads, tokens, dim); None before the first one.
        levels: for each of bits[1:] its blocks, oldest first; None as long as there is none.

    A cache does not change: `append` and `join` return another one, which shares what is the same.

    Deviates: the paper states the groups of the keys; the groups of the values are KIVI's, over all heads. The minimum
        and step of a group have the type of the keys, which is 16 bits in half precision only.

    Reference: arXiv:2410.18441, the pseudo-code of its staircase quantisation.
    """

    bits: tuple[int, ...] = (16, 8, 4, 2)
    block: int = 64
    group: int = 32
    keys: Tensor | None = None
    values: Tensor | None = None
    levels: tuple[Level | None, ...] = ()

    def __post_init__(self) -> None:
        check_count(1, block=self.block, group=self.group)
        rising = any(new < old for new, old in zip(self.bits, self.bits[1:], strict=False))
        allowed = (EXACT, *range(8, 0, -1))
        if len(self.bits) < 2 or self.bits[0] != EXACT or rising or any(bits not in allowed for bits in self.bits):
            raise UsageError(
                f"bits are {self.bits}; give 16 and then 16 or 8 to 1, never rising, such as (16, 8, 4, 2)."
            )
        if self.block % self.group:
            raise UsageError(f"block is {self.block} and group {self.group}; block must be a multiple of group.")
        if not self.levels:
            object.__setattr__(self, "levels", (None,) * (len(self.bits) - 1))

    def _grouped(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (batch, heads, tokens, dim) with the groups last."""
        by_token = values.transpose(1, 2).flatten(2)
        if by_token.shape[-1] % self.group:
            raise UsageError(f"group is {self.group}; it must divide the {by_token.shape[-1]} channels of all heads.")
        by_channel = keys.unflatten(2, (-1, self.group)).permute(0, 2, 1, 4, 3)
        return by_channel, by_token.unflatten(-1, (-1, self.group))

    def _pushed(self) -> tuple[Level | None, ...]:
        """The levels after the oldest `block` exact tokens became a block: each level passes its block on."""
        assert self.keys is not None and self.values is not None
        fresh = self._grouped(self.keys[:, :, : self.block], self.values[:, :, : self.block])
        arriving: Level | None = tuple(quantise(x, self.bits[1]) for x in fresh)  # type: ignore[assignment]
        levels: list[Level | None] = []
        for level, bits in zip(self.levels, self.bits[1:], strict=True):
            if arriving is not None and arriving[0].bits != bits:
                arriving = requantise(arriving[0], bits), requantise(arriving[1], bits)
            last = len(levels) == len(self.levels) - 1
            levels.append(_joined(level, arriving) if last else arriving)
            arriving = level
        return tuple(levels)

    def _check(self, keys: Tensor, values: Tensor) -> None:
        """UsageError unless keys and values are of the same tokens, and fit those that are there."""
        check_tensors(keys=keys, values=values)
        if keys.dim() != 4 or keys.shape != values.shape:
            raise UsageError(
                f"keys are {tuple(keys.shape)} and values {tuple(values.shape)}; both must be (batch, heads, tokens,"
                " dim), of the same sizes."
            )
        if self.keys is not None and (*keys.shape[:2], keys.shape[3]) != (*self.keys.shape[:2], self.keys.shape[3]):
            batch, heads, _, dim = self.keys.shape
            raise UsageError(
                f"keys are {tuple(keys.shape)}, and the cache has {batch} samples, {heads} heads and dim {dim};"
                " give the same, or start another cache."
            )

    def append(self, keys: Tensor, values: Tensor) -> Self:
        """This cache with more tokens.

        Shapes: keys and values (batch, heads, tokens, dim) each, of floating point.

        Raises:
            UsageError: for other shapes and types, and sizes other than those of the tokens before.
        """
        self._check(keys, values)
        if self.keys is not None and self.values is not None:
            keys, values = torch.cat((self.keys, keys), 2), torch.cat((self.values, values), 2)
        after = replace(self, keys=keys, values=values)
        while after.keys is not None and after.values is not None and after.keys.shape[2] >= self.block:
            # Copies, so that the tokens that became a block are freed.
            rest = after.keys[:, :, self.block :].clone(), after.values[:, :, self.block :].clone()
            after = replace(after, keys=rest[0], values=rest[1], levels=after._pushed())
        return after

    def read(self) -> tuple[Tensor, Tensor]:
        """Keys and values of all tokens in their order, as far as the bits hold them: (batch, heads, tokens, dim)."""
        if self.keys is None or self.values is None:
            raise UsageError("the cache holds no token; append keys and values first.")
        size, heads = self.keys.shape[-1], self.keys.shape[1]
        kept = [level for level in reversed(self.levels) if level is not None]
        keys = [dequantise(level[0]).permute(0, 2, 1, 4, 3).flatten(2, 3) for level in kept]
        values = [dequantise(level[1]).flatten(2).unflatten(2, (heads, size)).transpose(1, 2) for level in kept]
        return torch.cat((*keys, self.keys), 2), torch.cat((*values, self.values), 2)

    def join(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Self]:
        """All keys and values with some new ones, which are exact, and the cache after them."""
        after = self.append(keys, values)
        if self.keys is None:
            return keys, values, after
        old_keys, old_values = self.read()
        return torch.cat((old_keys, keys), 2), torch.cat((old_values, values), 2), after

    @property
    def block_bits(self) -> list[int]:
        """The bits of each block, oldest first."""
        levels = zip(reversed(self.levels), reversed(self.bits[1:]), strict=True)
        return [bits for level, bits in levels if level for _ in range(level[1].packed.shape[1] // self.block)]

    @property
    def position(self) -> int:
        """Tokens read so far."""
        return (0 if self.keys is None else self.keys.shape[2]) + self.block * len(self.block_bits)

    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        codes = [part for level in self.levels if level for part in level]
        tensors = [x for x in (self.keys, self.values) if x is not None]
        tensors += [x for each in codes for x in (each.packed, each.low, each.step)]
        return sum(x.numel() * x.element_size() for x in tensors)


def _joined(old: Level | None, new: Level | None) -> Level | None:
    """Blocks of one number of bits, one after the other."""
    if old is None or new is None:
        return new or old
    joined = [
        before._replace(
            packed=torch.cat((before.packed, after.packed), 1),
            low=torch.cat((before.low, after.low), 1),
            step=torch.cat((before.step, after.step), 1),
        )
        for before, after in zip(old, new, strict=True)
    ]
    return joined[0], joined[1]
