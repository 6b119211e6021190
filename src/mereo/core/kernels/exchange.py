"""Attention to the senders of a topology; a table of predicates chooses the execution.

Cost: 2 N S (D + E) FLOPs a head for N receivers, S the senders read for each one: its own (compiled,
gathered), the senders of its tile (tiles), all senders (dense). Tiles and gathered copy keys and values S times.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.core.coupling import Coupling
from mereo.core.kernels import circle_compiled, neighborhood_compiled
from mereo.core.kernels.attention import attend
from mereo.core.kernels.flex import flex, flex_cannot
from mereo.core.kernels.methods import compiled_cannot, execute
from mereo.core.squash import accumulation_type
from mereo.core.topology import Tiles, Topology
from mereo.core.topology.circle import ImageCircle
from mereo.core.topology.neighborhood import Neighborhood

Result = tuple[Tensor, Tensor | None]
Bias = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Exchange:
    """One call.

    Attributes:
        q: (batch, heads, receivers, dim).
        k, v: (batch, heads, senders, dim or pose).
        topology: which senders each receiver attends to.
        coupling: makes the couplings.
        scale: factor of q k^T.
        table: biases by relative position, (heads, positions), for a `Neighborhood`; or None.
        bias: added to the scores, of the numbers of receivers and senders: int64 (...), (...) -> (heads, ...); or None.
        mask: bool (batch, senders), True = takes part; or None.
        with_lse: whether log sum exp of the scores is wanted, of a plain softmax without dropout.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    topology: Topology
    coupling: Coupling
    scale: float
    table: Tensor | None = None
    bias: Bias | None = None
    mask: Tensor | None = None
    with_lse: bool = False

    @property
    def counts(self) -> tuple[int, int]:
        """How many receivers and senders there are."""
        return self.q.shape[2], self.k.shape[2]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Everything that may need a gradient, except the tensors of `bias`."""
        return (self.q, self.k, self.v) if self.table is None else (self.q, self.k, self.v, self.table)

    @property
    def dropout(self) -> float:
        """Probability with which a coupling is dropped in this call."""
        return self.coupling.dropout if self.coupling.training else 0.0

    def biases(self, receivers: Tensor, senders: Tensor) -> Tensor | None:
        """The bias of pairs, (heads, ...), in the type of the scores."""
        if self.table is not None:
            assert isinstance(self.topology, Neighborhood)
            # Behind the last relative position come the senders behind the grid, which have no bias.
            return F.pad(self.table, (0, 1))[:, self.topology.relative(receivers, senders)].to(self.q.dtype)
        return None if self.bias is None else self.bias(receivers, senders).to(self.q.dtype)


def _dense(given: Exchange) -> Result:
    """All scores, with a mask: the reference."""
    mask = given.topology.allowed(*given.counts, given.q.device)
    if given.mask is not None:
        mask = mask & given.mask[:, None, None]
    receivers, senders = (torch.arange(count, device=mask.device) for count in given.counts)
    bias = given.biases(receivers.unsqueeze(1), senders)
    out = attend(given.q, given.k, given.v, given.coupling, mask=mask, bias=bias, scale=given.scale)
    return out, log_sums(given.q, given.k, mask, bias, given.scale) if given.with_lse else None


def log_sums(q: Tensor, k: Tensor, mask: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
    """log sum exp of the scores of each receiver; products in half precision would overflow."""
    wide = accumulation_type(q)
    scores = q.to(wide) @ k.to(wide).mT * scale
    scores = scores if bias is None else scores + bias
    return (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).logsumexp(-1)


def _tiles(given: Exchange) -> Result:
    # A compiler would unroll a loop over groups; an observer sees one call.
    together = given.coupling.watched or not given.coupling.is_plain_softmax or torch.compiler.is_compiling()
    whole = given.topology.tiles(*given.counts, given.q.device)
    return inside(given, (whole,) if together else given.topology.groups(*given.counts, given.q.device))


def _gathered(given: Exchange) -> Result:
    """Every receiver is a tile of its own."""
    table = given.topology.table(*given.counts, given.q.device)
    receivers = torch.arange(len(table), device=table.device).unsqueeze(1)
    return inside(given, (Tiles(receivers, table, *given.counts, pairs=(table >= 0).unsqueeze(1)),))


def inside(given: Exchange, groups: tuple[Tiles, ...]) -> Result:
    """Attention inside tiles: copies of the senders of each, with a mask; every receiver is in one tile."""
    outputs, sums, places = [], [], []
    for tiles in groups:
        out, logs = _inside(given, tiles)
        outputs.append(out)
        sums.append(logs)
        places.append(torch.where(tiles.receivers < 0, tiles.num_receivers, tiles.receivers).flatten())
    place = torch.cat(places)
    numbers = torch.arange(len(place), device=place.device)
    order = numbers.new_zeros(groups[0].num_receivers + 1).scatter_(0, place, numbers)[:-1]

    def ordered(parts: list[Tensor]) -> Tensor:
        whole = torch.cat(parts, 1) if len(parts) > 1 else parts[0]
        return whole.index_select(1, order).transpose(1, 2)

    return ordered(outputs), ordered(sums) if given.with_lse else None


def _inside(given: Exchange, tiles: Tiles) -> tuple[Tensor, Tensor]:
    """One group of tiles: (batch, tiles * receivers, heads, pose), and log sum exp or an empty tensor.

    Tiles stand where images do, as couplings inside tiles are recorded: (batch * tiles, heads, ...).
    """
    batch, count = given.q.shape[0], tiles.count
    receivers, senders = tiles.receivers.clamp(min=0), tiles.senders.clamp(min=0)
    assert tiles.pairs is not None
    # Outputs of padding are dropped at the end; a receiver without senders would be a special case of every softmax.
    pairs = (tiles.pairs | (tiles.receivers < 0).unsqueeze(-1)).unsqueeze(1)
    bias = given.biases(receivers.unsqueeze(-1), senders.unsqueeze(-2))
    bias = None if bias is None else bias.transpose(0, 1)
    mask: Tensor | None = None
    plain = given.coupling.is_plain_softmax and not given.coupling.watched
    if plain and given.topology.complete and given.mask is None:
        # A mask would be searched for receivers without senders.
        added = given.q.new_zeros(()) if bias is None else bias
        bias = torch.where(pairs, added, -torch.inf)
    else:
        mask = pairs.expand(batch, -1, -1, -1, -1)
        mask = mask if given.mask is None else mask & given.mask[:, senders][:, :, None, None]
        mask = mask.flatten(0, 1)
    bias = None if bias is None else bias.repeat(batch, 1, 1, 1)

    def pick(x: Tensor, which: Tensor) -> Tensor:
        # Heads of a token lie side by side in memory, and are copied together.
        picked = x.transpose(1, 2).index_select(1, which.flatten()).unflatten(1, which.shape)
        return picked.flatten(0, 1).transpose(1, 2)

    def back(x: Tensor) -> Tensor:
        return x.transpose(1, 2).unflatten(0, (batch, count)).flatten(1, 2)

    q, k, v = pick(given.q, receivers), pick(given.k, senders), pick(given.v, senders)
    out = attend(q, k, v, given.coupling, mask=mask, bias=bias, scale=given.scale, tiles=tiles)
    return back(out), back(log_sums(q, k, mask, bias, given.scale)) if given.with_lse else out.new_empty(0)


def _compiled(given: Exchange) -> Result:
    run = neighborhood_compiled.run if isinstance(given.topology, Neighborhood) else circle_compiled.run
    return run(given.q, given.k, given.v, given.table, given.topology, given.scale, given.with_lse)  # type: ignore[arg-type]


def _flex(given: Exchange) -> Result:
    mask = given.topology.block_mask(*given.counts, given.q.device)
    return flex(given.q, given.k, given.v, mask, given.scale), None


def _softmax_cannot(given: Exchange) -> str | None:
    if given.coupling.watched:
        return "the couplings are observed"
    if given.dropout:
        return "there is dropout"
    if given.bias is not None or given.mask is not None:
        return "there is a bias or a mask"
    return None if given.coupling.is_plain_softmax else f"it does not support {given.coupling}"


def _compiled_cannot(given: Exchange) -> str | None:
    if not isinstance(given.topology, Neighborhood | ImageCircle):
        return f"there is none for {given.topology}"
    return compiled_cannot(*given.tensors) or _softmax_cannot(given)


def _flex_cannot(given: Exchange) -> str | None:
    if given.table is not None or given.with_lse:
        return "there is a bias of positions, or the log of the sums is wanted"
    return flex_cannot(*given.tensors) or _softmax_cannot(given)


METHODS: dict[str, tuple[Callable[[Exchange], Result], Callable[[Exchange], str | None]]] = {
    "compiled": (_compiled, _compiled_cannot),
    "tiles": (_tiles, lambda given: None),
    "gathered": (_gathered, lambda given: None),
    "flex": (_flex, _flex_cannot),
    "dense": (_dense, lambda given: None),
}
"""Name -> (function, why it cannot run: None if it can), the preferred first."""


def exchange(given: Exchange, method: str = "auto") -> Result:
    """The output of each receiver, (batch, heads, receivers, pose), and log sum exp of its scores if it is wanted.

    Args:
        method: "auto", or a row of METHODS.
    """
    return execute(METHODS, given, method, always="tiles")
