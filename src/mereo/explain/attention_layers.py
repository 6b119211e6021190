"""Couplings whose senders are places of the image: finds them in what was recorded, and computes single rows.

It works for any network: a recorded coupling is attention if it is normalised over the senders and the senders have
positions. The network states these positions, or they follow from the map that enters the module or from the number of
cells of its tiles.
"""

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from mereo.core import Call, Coupling, Grid
from mereo.explain.observation import Observation
from mereo.explain.shifted_windows import placed_windows

SKEWED = math.log(1.2)
"""How far the cells of a grid may be from squares, as the logarithm of the ratio of their sides."""
FEWEST = 4
"""Least number of cells of a grid that is inferred from it."""


@dataclass(frozen=True)
class AttentionLayer:
    """One coupling whose senders are places of the image.

    Attributes:
        name: of the Coupling module.
        call: its scores, couplings and tiles.
        batch: number of images.
        senders: positions of the senders.
        receivers: positions of the receivers; None if they have none, such as a class token.
    """

    name: str
    call: Call
    batch: int
    senders: Grid
    receivers: Grid | None

    @property
    def has_class_token(self) -> bool:
        """Whether the first receiver is a token without a place that stands for the whole image."""
        return self.receivers is None or self.receivers.prefix > 0

    @property
    def num_receivers(self) -> int:
        """Receivers of the whole image."""
        return self.call.scores.shape[-2] if self.call.tiles is None else self.call.tiles.num_receivers

    @property
    def num_senders(self) -> int:
        """Senders of the whole image."""
        return self.call.scores.shape[-1] if self.call.tiles is None else self.call.tiles.num_senders

    def _couplings(self) -> Tensor:
        """The couplings in use, in single precision at least: (batch * tiles, heads, r, s)."""
        assert self.call.couplings is not None
        values = self.call.couplings
        return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values

    def _allowed(self) -> Tensor:
        """Pairs that no mask rules out, in any head: bool (batch * tiles, r, s)."""
        scores, mask = self.call.scores, self.call.mask
        # A pair that a bias rules out has the lowest possible score.
        allowed = scores > torch.finfo(scores.dtype).min / 2
        return (allowed if mask is None else allowed & mask).any(1)

    def _numbers(self, which: Tensor, batch: int) -> Tensor:
        """Receivers or senders of the tiles, int64 (batch, tiles, count); padding is -1."""
        which = which.to(self.call.scores.device)
        return (which if which.dim() == 3 else which.unsqueeze(0)).expand(batch, -1, -1)

    def rows(self, receivers: Tensor) -> tuple[Tensor, Tensor]:
        """The couplings of one receiver an image with all senders, and the senders that it can attend to.

        Shapes: receivers int64 (batch,) -> couplings (batch, heads, senders), bool (batch, senders).
        """
        couplings, tiles, batch = self._couplings(), self.call.tiles, self.batch
        image = torch.arange(batch, device=couplings.device)
        receivers = receivers.to(couplings.device)
        if tiles is None:
            return couplings[image, :, receivers], self._allowed()[image, receivers]
        held, sent = self._numbers(tiles.receivers, batch), self._numbers(tiles.senders, batch)
        mine = held == receivers.view(-1, 1, 1)
        tiled = couplings.unflatten(0, (batch, tiles.count))
        # Rows of other receivers of a tile count as zero.
        row = torch.einsum("bthrs,btr->bths", tiled, mine.to(tiled.dtype)).transpose(1, 2)
        index = sent.masked_fill(sent < 0, tiles.num_senders)
        flat = index.flatten(1).unsqueeze(1).expand(-1, row.shape[1], -1)
        whole = row.new_zeros(batch, row.shape[1], tiles.num_senders + 1).scatter_add(2, flat, row.flatten(2))
        allowed = self._allowed().unflatten(0, (batch, tiles.count))
        near = torch.einsum("btr,btrs->bts", mine.to(row.dtype), allowed.to(row.dtype)).flatten(1)
        reach = row.new_zeros(batch, tiles.num_senders + 1).scatter_add(1, index.flatten(1), near)
        return whole[..., :-1], reach[:, :-1] > 0

    def pull(self, weights: Tensor) -> Tensor:
        """Weights of the receivers passed on to the senders: sum_r w_r c_rs / sum_s c_rs, mean over heads.

        Negative couplings count as zero; the weight of a receiver without couplings is lost.

        Shapes: (batch, receivers) -> (batch, senders).
        """
        couplings, tiles, batch = self._couplings().mean(1).clamp(min=0), self.call.tiles, self.batch
        tiny = torch.finfo(couplings.dtype).tiny
        if tiles is None:
            return torch.einsum("br,brs->bs", weights / couplings.sum(-1).clamp(min=tiny), couplings)
        tiled = couplings.unflatten(0, (batch, tiles.count))
        held, sent = self._numbers(tiles.receivers, batch), self._numbers(tiles.senders, batch)
        into = sent.masked_fill(sent < 0, tiles.num_senders).flatten(1)
        tiled = tiled * (sent >= 0).unsqueeze(2)  # padding stands for no place
        out_of = held.clamp(min=0).flatten(1)
        there = (held >= 0).flatten(1)
        sums = weights.new_zeros(weights.shape).scatter_add(1, out_of, tiled.sum(-1).flatten(1) * there)
        given = (weights / sums.clamp(min=tiny)).gather(1, out_of) * there
        moved = torch.einsum("btr,btrs->bts", given.view(held.shape), tiled)
        return weights.new_zeros(batch, tiles.num_senders + 1).scatter_add(1, into, moved.flatten(1))[:, :-1]


def cells_of(count: int, height: int, width: int) -> Grid | None:
    """A grid of the given number of nearly square cells over an image; None if the number does not fit."""
    if count < FEWEST:
        return None

    def skew(rows: int) -> float:
        return abs(math.log((height / rows) / (width * rows / count)))

    rows = min((n for n in range(1, count + 1) if count % n == 0), key=skew)
    if skew(rows) > SKEWED:
        return None
    step = max(height / rows, width * rows / count)
    return Grid(rows, count // rows, 1, step / 2, step)


def _placed(
    count: int, inputs: tuple[object, ...], tiled: bool, height: int, width: int, prefix: int | None
) -> Grid | None:
    """Positions of senders or receivers if the network states at most a prefix; None if they cannot be determined."""
    if tiled:
        return cells_of(count, height, width)
    maps = inputs[0] if inputs else None
    if not isinstance(maps, Tensor):
        return None
    if maps.dim() == 4:
        for rows, columns in (maps.shape[2:], maps.shape[1:3]):
            if rows * columns == count:
                step = max(height / rows, width / columns)
                return Grid(rows, columns, 1, step / 2, step)
    if maps.dim() == 3 and maps.shape[1] == count:
        if prefix:
            behind = cells_of(count - prefix, height, width)
            return None if behind is None else behind._replace(prefix=prefix)
        grid = cells_of(count, height, width)
        if grid is None and (behind := cells_of(count - 1, height, width)) is not None:
            return behind._replace(prefix=1)
        return grid
    return None


def network_of(observation: Observation) -> nn.Module:
    """The observed network, of another library if it is of one."""
    inner = getattr(observation.model, "network", None)
    return inner if isinstance(inner, nn.Module) else observation.model


def attention_layers(observation: Observation) -> list[AttentionLayer]:
    """The couplings of an observation whose senders are places of the image, in the order of their computation.

    Couplings that are normalised over the receivers, couplings of capsule routings, and couplings whose senders have
    no position, such as channels, are left out.
    """
    return read_layers(observation)[0]


def read_layers(observation: Observation) -> tuple[list[AttentionLayer], bool]:
    """`attention_layers`, and whether attention of another library has places that are not known, as inside windows."""
    batch, (_, height, width) = len(observation.scores), observation.image_shape
    own = {name for name, module in observation.model.named_modules() if isinstance(module, Coupling)}
    prefix = getattr(network_of(observation), "num_prefix_tokens", None)
    placed = partial(_placed, height=height, width=width, prefix=prefix)
    layers, unseen = [], False
    for name, kind in observation.trace.kinds.items():
        if kind != "couplings":
            continue
        exchange = observation.exchanges.get(name)
        if exchange is not None and hasattr(exchange.module, "votes"):
            continue
        for made in observation.trace.calls(name):
            if made.over != "senders":
                continue
            inputs = () if exchange is None else exchange.inputs
            of_others = name not in own and made.tiles is None
            windows = placed_windows(observation.model, made, batch, inputs, (height, width)) if of_others else None
            call = windows or made
            if call.tiles is None and call.scores.shape[0] != batch:
                unseen = unseen or name not in own
                continue
            tiled = call.tiles is not None
            counts = (
                call.scores.shape[-2:] if call.tiles is None else (call.tiles.num_receivers, call.tiles.num_senders)
            )
            senders = call.senders or placed(counts[1], inputs, tiled)
            if senders is None or senders.prefix + senders.types * senders.rows * senders.columns != counts[1]:
                unseen = unseen or name not in own
                continue
            receivers = call.receivers
            if receivers is None and counts[0] > 1:
                receivers = senders if counts[0] == counts[1] else placed(counts[0], inputs, tiled)
            if (receivers is None and counts[0] != 1) or senders.types != 1:
                continue
            layers.append(AttentionLayer(name, call, batch, senders, receivers))
    return sorted(layers, key=lambda layer: layer.call.number), unseen
