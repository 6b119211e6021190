"""How neighbourhood attention is executed; a table of predicates chooses."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mereo.core.coupling import Coupling
from mereo.core.kernels.attention import attend
from mereo.core.kernels.flex import flex, flex_cannot
from mereo.core.kernels.kept import kept
from mereo.core.kernels.methods import compiled_cannot, execute
from mereo.core.kernels.neighborhood_compiled import attend_compiled, numbers_of
from mereo.core.kernels.neighborhood_tiles import tiled
from mereo.core.tiles import Tiles
from mereo.core.topology import Neighborhood

Result = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class Exchange:
    """One call.

    Attributes:
        q, k, v: (batch, tokens, heads, dim or pose).
        topology: who attends to whom.
        coupling: makes the couplings.
        scale: factor of q k^T.
        bias: by relative position, (heads, product over axes of 2 window - 1), or None.
        extra: keys and values (batch, more, heads, dim) that every query attends to as well, or None.
        with_lse: whether log sum exp of the scores is wanted.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    topology: Neighborhood
    coupling: Coupling
    scale: float
    bias: Tensor | None = None
    extra: tuple[Tensor, Tensor] | None = None
    with_lse: bool = False

    @property
    def biases(self) -> tuple[Tensor, ...]:
        """The bias, if there is one."""
        return () if self.bias is None else (self.bias,)

    @property
    def dropout(self) -> float:
        """Probability with which a coupling is dropped in this call."""
        return self.coupling.dropout if self.coupling.training else 0.0


def relative(topology: Neighborhood, keys: Tensor) -> Tensor:
    """Entry of a table of relative positions for each token and its keys: int64 (tokens, keys) as `keys`."""
    tokens = torch.arange(topology.tokens, device=keys.device).unsqueeze(1)
    entry, rest = torch.zeros_like(keys), topology.tokens
    for line in topology.lines:
        rest //= line.length
        steps = torch.div(
            keys // rest % line.length - tokens // rest % line.length, line.dilation, rounding_mode="floor"
        )
        entry = entry * (2 * line.window - 1) + (steps + line.window - 1).clamp(0, 2 * line.window - 2)
    return entry


def _with_extra(x: Tensor, given: Exchange, index: int) -> Tensor:
    return x if given.extra is None else torch.cat((x, given.extra[index]), 1)


def _lse(given: Exchange) -> Tensor | None:
    if not given.with_lse:
        return None
    return tiled(
        given.q, given.k, given.v, given.topology, given.scale, bias=given.bias, extra=given.extra, with_lse=True
    )[1]


def dense(given: Exchange) -> Result:
    """All scores, with a mask: the reference."""
    topology, tokens = given.topology, given.topology.tokens
    q, k, v = (x.transpose(1, 2) for x in (given.q, _with_extra(given.k, given, 0), _with_extra(given.v, given, 1)))
    mask = torch.ones(tokens, k.shape[2], dtype=torch.bool, device=q.device)
    mask[:, :tokens] = topology.allowed(tokens, tokens, q.device)
    bias = None
    if given.bias is not None:
        everyone = torch.arange(tokens, device=q.device).expand(tokens, tokens)
        bias = given.bias[:, relative(topology, everyone)].to(q.dtype)
        bias = torch.nn.functional.pad(bias, (0, k.shape[2] - tokens))
    out = attend(q, k, v, given.coupling, mask=mask, bias=bias, scale=given.scale)
    return out.transpose(1, 2), _lse(given)


def gathered(given: Exchange) -> Result:
    """Keys and values copied for every query: the way that makes couplings, which are recorded over all tokens."""
    topology, (batch, tokens) = given.topology, given.q.shape[:2]
    keys = topology.keys(given.q.device)
    there, numbers = keys >= 0, keys
    more = 0 if given.extra is None else given.extra[0].shape[1]
    if more:
        numbers = torch.cat((keys, torch.arange(tokens, tokens + more, device=keys.device).expand(tokens, -1)), 1)
        there = numbers >= 0
    k, v = (
        _with_extra(x, given, i).index_select(1, numbers.clamp(min=0).flatten()).unflatten(1, (tokens, -1))
        for i, x in enumerate((given.k, given.v))
    )
    q, k, v = given.q.flatten(0, 1).unsqueeze(2), k.flatten(0, 1).transpose(1, 2), v.flatten(0, 1).transpose(1, 2)
    bias = None
    if given.bias is not None:
        table = given.bias[:, relative(topology, keys)].transpose(0, 1).unsqueeze(2).to(q.dtype)
        bias = torch.nn.functional.pad(table, (0, more)).repeat(batch, 1, 1, 1)
    mask = there[:, None, None].repeat(batch, 1, 1, 1)
    receivers = torch.arange(tokens, device=keys.device).unsqueeze(1)
    tiles = Tiles(receivers, numbers, tokens, tokens + more)
    out = attend(q, k, v, given.coupling, mask=mask, bias=bias, scale=given.scale, tiles=tiles)
    return out.squeeze(2).unflatten(0, (batch, tokens)), _lse(given)


def _tiles(given: Exchange) -> Result:
    return tiled(
        given.q, given.k, given.v, given.topology, given.scale,
        bias=given.bias, extra=given.extra, dropout=given.dropout, with_lse=given.with_lse,
    )  # fmt: skip


def _compiled(given: Exchange) -> Result:
    numbers = numbers_of(given.topology)
    out, lse = attend_compiled(given.q, given.k, given.v, given.bias, numbers, given.scale)
    if given.extra is None:
        return out, lse if given.with_lse else None
    # Two softmaxes over different keys are joined by the sums of their weights.
    k, v = (x.float() for x in given.extra)
    scores = torch.einsum("bnhd,bmhd->bnhm", given.q.float() * given.scale, k)
    top = torch.maximum(lse, scores.amax(-1)).detach()
    ours, theirs = (lse - top).exp(), (scores - top.unsqueeze(-1)).exp()
    total = ours + theirs.sum(-1)
    joined = out.float() * ours.unsqueeze(-1) + torch.einsum("bnhm,bmhe->bnhe", theirs, v)
    return (joined / total.unsqueeze(-1)).to(out.dtype), top + total.log() if given.with_lse else None


@kept(16)
def _block_mask(topology: Neighborhood, more: int, device: torch.device) -> Any:
    """Pairs of tokens that a topology allows, and all with the `more` senders behind the grid."""
    from torch.nn.attention.flex_attention import create_block_mask

    windows = []
    for line in topology.lines:
        at = torch.arange(line.length, device=device)
        count = torch.div(line.length - at % line.dilation + line.dilation - 1, line.dilation, rounding_mode="floor")
        windows.append((line, *line.window_of(at // line.dilation, count)))

    def allowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        rest, near = topology.tokens, key >= 0
        for line, first, end in windows:
            rest //= line.length
            q, k = query // rest % line.length, key // rest % line.length
            place = k // line.dilation
            near = near & (q % line.dilation == k % line.dilation) & (place >= first[q]) & (place < end[q])
        return near | (key >= topology.tokens)

    return create_block_mask(allowed, None, None, topology.tokens, topology.tokens + more, device=device)


def _flex(given: Exchange) -> Result:
    k, v = (_with_extra(x, given, i).transpose(1, 2) for i, x in enumerate((given.k, given.v)))
    mask = _block_mask(given.topology, k.shape[2] - given.topology.tokens, given.q.device)
    return flex(given.q.transpose(1, 2), k, v, mask, given.scale).transpose(1, 2), None


def _tiles_cannot(given: Exchange) -> str | None:
    if given.coupling.watched:
        return "the couplings are observed"
    return None if given.coupling.is_plain_softmax else f"it does not support {given.coupling}"


def _compiled_cannot(given: Exchange) -> str | None:
    if given.dropout:
        return "there is dropout"
    return compiled_cannot(given.q, given.k, given.v, *given.biases) or _tiles_cannot(given)


def _flex_cannot(given: Exchange) -> str | None:
    if given.bias is not None or given.dropout or given.with_lse:
        return "there is a bias of positions, dropout, or the log of the sums is wanted"
    return flex_cannot(given.q, given.k, given.v) or _tiles_cannot(given)


METHODS: dict[str, tuple[Callable[[Exchange], Result], Callable[[Exchange], str | None]]] = {
    "compiled": (_compiled, _compiled_cannot),
    "tiles": (_tiles, _tiles_cannot),
    "gathered": (gathered, lambda given: None),
    "flex": (_flex, _flex_cannot),
    "dense": (dense, lambda given: None),
}
"""Name -> (function, why it cannot run: None if it can), the preferred first."""


def exchange(given: Exchange, method: str = "auto") -> Result:
    """The output of each query, (batch, tokens, heads, pose), and log sum exp of its scores, (batch, tokens, heads).

    Args:
        method: "auto", or a row of METHODS.
    """
    return execute(METHODS, given, method, always="gathered")
