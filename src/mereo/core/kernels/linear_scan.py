"""A scan whose state is a decaying sum of keys times values, in three forms that are equal, and how it is executed.

    S_t = lam S_(t-1) + k_t v_t^T,    out_t = q_t^T S_t,    lam = exp(-slope) of each head       arXiv:2405.17381

The parallel form is a masked product over all pairs of tokens; the recurrent one takes a token at a time; the chunked
one uses the product inside blocks and the state between them. No power of lam is negative, so that nothing overflows.
Sums are in float32 or wider.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mereo.core.kernels.linear_scan_compiled import scan_compiled
from mereo.core.kernels.methods import check_state, compiled_cannot, execute
from mereo.core.squash import accumulation_type

BLOCK = 64
SEGMENT = 2048
"""Tokens whose blocks are computed together: their states stay in the cache."""
Result = tuple[Tensor, Tensor]
Watch = Callable[[Tensor], Tensor]


def _powers(slopes: Tensor, exponents: Tensor) -> Tensor:
    """lam^exponent of each head, 1 for the exponent 0 also where lam is 0, and 0 for negative ones.

    Shapes: slopes (heads,), exponents int64 (...) -> (heads, ...).
    """
    each = slopes.view(-1, *[1] * exponents.dim())
    positive = torch.where(exponents > 0, exponents, 1).to(slopes.dtype)
    return torch.where(exponents > 0, (-each * positive).exp(), (exponents == 0).to(slopes.dtype))


def _start(q: Tensor, v: Tensor, state: Tensor | None) -> Tensor:
    """The state before the first token, in the type of sums."""
    if state is not None:
        return state.to(accumulation_type(q))
    return q.new_zeros((*q.shape[:2], q.shape[3], v.shape[3]), dtype=accumulation_type(q))


def parallel(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, state: Tensor | None) -> Result:
    """((Q K^T) * M) V with M_ts = lam^(t-s) for s <= t, and the contribution of the state before."""
    before = _start(q, v, state)
    Q, K, V, slopes = (x.to(before.dtype) for x in (q, k, v, slopes))
    t = torch.arange(q.shape[2], device=q.device)
    scores = (Q @ K.transpose(-1, -2)) * _powers(slopes, t.unsqueeze(1) - t)
    out = scores @ V + _powers(slopes, t + 1).unsqueeze(-1) * (Q @ before)
    held = _powers(slopes, torch.full((1,), q.shape[2], device=q.device)).unsqueeze(-1)
    last = held * before + (K * _powers(slopes, t.flip(0)).unsqueeze(-1)).transpose(-1, -2) @ V
    return out.to(v.dtype), last


def recurrent(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, state: Tensor | None) -> Result:
    """A token at a time: the definition."""
    memory = _start(q, v, state)
    Q, K, V = (x.to(memory.dtype) for x in (q, k, v))
    lam = (-slopes.to(memory.dtype)).exp().view(-1, 1, 1)
    rows = []
    for t in range(q.shape[2]):
        memory = lam * memory + K[:, :, t].unsqueeze(-1) * V[:, :, t].unsqueeze(-2)
        rows.append((Q[:, :, t].unsqueeze(-2) @ memory).squeeze(-2))
    return (torch.stack(rows, 2) if rows else v).to(v.dtype), memory


def _blocks(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, before: Tensor, block: int, watch: Watch | None) -> Result:
    """Tokens that are whole blocks, all blocks together; the states before each pass through `watch`."""
    Q, K, V = (x.unflatten(2, (-1, block)) for x in (q, k, v))
    t, n = torch.arange(block, device=q.device), torch.arange(Q.shape[2] + 1, device=q.device)
    sums = (K * _powers(slopes, t.flip(0))[:, None, :, None]).transpose(-1, -2) @ V
    decays = _powers(slopes, block * (n.unsqueeze(1) - 1 - n[:-1]))  # the remaining share of each sum before each block
    states = torch.einsum("hij,bhjde->bhide", decays, sums)
    states = states + _powers(slopes, block * n)[:, :, None, None] * before.unsqueeze(2)
    read = states[:, :, :-1] if watch is None else watch(states[:, :, :-1])
    scores = (Q @ K.transpose(-1, -2)) * _powers(slopes, t.unsqueeze(1) - t).unsqueeze(1)
    out = scores @ V + _powers(slopes, t + 1)[:, None, :, None] * (Q @ read)
    return out.flatten(2, 3), states[:, :, -1]


def chunked(
    q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, state: Tensor | None, block: int, watch: Watch | None = None
) -> Result:
    """Blocks of `block` tokens, the last of which may be shorter; a segment of blocks at a time.

    With `watch`, the states before every block pass through it at once, (batch, heads, blocks, dim, pose).
    """
    memory, tokens = _start(q, v, state), q.shape[2]
    Q, K, V, wide = (x.to(memory.dtype) for x in (q, k, v, slopes))
    if watch is not None:  # zeros behind the last token fill its block, and change nothing before it
        rest = -tokens % block
        q, k, longer = (torch.nn.functional.pad(x, (0, 0, 0, rest)) for x in (Q, K, V))
        out, _ = _blocks(q, k, longer, wide, memory, block, watch)
        return out[:, :, :tokens].to(v.dtype), last_state(K, V, wide, memory)
    parts = []
    most, all_blocks = max(SEGMENT // block, 1) * block, tokens // block * block
    for first in range(0, all_blocks, most):
        here = slice(first, min(first + most, all_blocks))
        out, memory = _blocks(Q[:, :, here], K[:, :, here], V[:, :, here], wide, memory, block, None)
        parts.append(out)
    if all_blocks < tokens or not parts:
        out, memory = parallel(Q[:, :, all_blocks:], K[:, :, all_blocks:], V[:, :, all_blocks:], wide, memory)
        parts.append(out)
    return torch.cat(parts, 2).to(v.dtype), memory


def last_state(k: Tensor, v: Tensor, slopes: Tensor, before: Tensor) -> Tensor:
    """The state behind the last token, without outputs."""
    count = k.shape[2]
    since = torch.arange(count - 1, -1, -1, device=k.device)
    held = _powers(slopes, torch.full((1,), count, device=k.device)).unsqueeze(-1)
    return held * before + (k * _powers(slopes, since).unsqueeze(-1)).transpose(-1, -2) @ v


@dataclass(frozen=True)
class Scan:
    """One call: q, k (batch, heads, tokens, dim), v (batch, heads, tokens, pose), slopes (heads,), state or None."""

    q: Tensor
    k: Tensor
    v: Tensor
    slopes: Tensor
    state: Tensor | None = None
    block: int = BLOCK
    watch: Watch | None = None

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
        """The arguments of every form."""
        return self.q, self.k, self.v, self.slopes, self.state


def _watched(call: Scan) -> str | None:
    return None if call.watch is None else "the states are observed"


def _compiled_cannot(call: Scan) -> str | None:
    if call.slopes.requires_grad:
        return "the slopes need a gradient"
    return _watched(call) or compiled_cannot(call.q, call.k, call.v)


METHODS: dict[str, tuple[Callable[[Scan], Result], Callable[[Scan], str | None]]] = {
    "compiled": (lambda call: scan_compiled(*call.tensors), _compiled_cannot),
    "chunked": (lambda call: chunked(*call.tensors, call.block, call.watch), lambda call: None),
    "parallel": (lambda call: parallel(*call.tensors), _watched),
    "recurrent": (lambda call: recurrent(*call.tensors), _watched),
}
"""Name -> (function, why it cannot run: None if it can), the preferred first."""


def linear_scan(call: Scan, method: str = "auto") -> Result:
    """Outputs (batch, heads, tokens, pose) of the type of v, and the last state (batch, heads, dim, pose).

    Args:
        method: "auto", or a row of METHODS.
    """
    check_state(call.state, *call.q.shape[:2], call.q.shape[3], call.v.shape[3])
    return execute(METHODS, call, method, always="chunked")
