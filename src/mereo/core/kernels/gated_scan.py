"""A scan whose state decays by factors that depend on the token, in two forms that are equal.

    S_t = diag(lam_t) S_(t-1) + k_t v_t^T,    out_t = q_t^T S_t                                   arXiv:2405.15731

The recurrent form takes a token at a time. Where all rows of a state decay alike, the block form multiplies the pairs
of tokens inside blocks by exp(sum of log lam between them), which never divides by a product of decays, and carries the
state from block to block. Sums are in float32 or wider.

Cost: 4 N D E operations for N tokens, keys of D and values of E, and N D E numbers in the recurrent form; by blocks of
b tokens 2 N (2 D E + b (D + E)) FLOPs, which are matrix products, and N b numbers.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mereo.core.squash import accumulation_type
from mereo.errors import UsageError, check_choice

BLOCK = 64
LEAST = -100.0
"""Least log of a factor: exp(-100) adds nothing in float32, and differences of sums of such logs stay finite."""
METHODS = ("blocks", "recurrent")
Result = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class GatedScan:
    """One call.

    Attributes:
        q, k: (batch, heads or 1, tokens, dim).
        v: (batch, heads, tokens, pose).
        log_decay: log lam, (batch, heads or 1, tokens, dim), or (.., tokens, 1) for rows that decay alike.
        state: before the first token, (batch, heads, dim, pose); None for zeros.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor
    state: Tensor | None = None

    @property
    def wide(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys, values, logs of decays and the state in the type of sums."""
        dtype, batch, heads = accumulation_type(self.v), *self.v.shape[:2]
        q, k, v, logs = (x.to(dtype) for x in (self.q, self.k, self.v, self.log_decay))
        state = v.new_zeros(batch, heads, k.shape[-1], v.shape[-1]) if self.state is None else self.state.to(dtype)
        return q, k, v, logs, state


def recurrent(call: GatedScan) -> Result:
    """A token at a time: the definition."""
    *tensors, memory = call.wide
    out = []
    # One token is small enough for the cache; operations on all of them at once are not.
    for q, k, v, logs in zip(*(x.unbind(2) for x in tensors), strict=True):
        memory = torch.addcmul(k.unsqueeze(-1) * v.unsqueeze(-2), logs.exp().unsqueeze(-1), memory)
        out.append((q.unsqueeze(-1) * memory).sum(-2))
    return torch.stack(out, 2).to(call.v.dtype), memory


def blocks(call: GatedScan) -> Result:
    """Products inside blocks, and the state between them; all rows of a state decay alike."""
    if call.log_decay.shape[-1] != 1:
        raise UsageError(f"method is 'blocks', and rows of {tuple(call.log_decay.shape)} decay apart; use 'recurrent'.")
    *tensors, state = call.wide
    later = torch.ones(BLOCK, BLOCK, dtype=torch.bool, device=state.device).triu(1)
    parts = []
    for q, k, v, logs in zip(*(x.split(BLOCK, 2) for x in tensors), strict=True):
        total, tokens = logs.clamp(min=LEAST).cumsum(2), v.shape[2]
        between = (total - total.transpose(-1, -2)).masked_fill(later[:tokens, :tokens], -torch.inf).exp()
        parts.append((q @ k.transpose(-1, -2) * between) @ v + (q * total.exp()) @ state)
        last = total[:, :, -1:]
        state = last.exp() * state + (k * (last - total).exp()).transpose(-1, -2) @ v
    return torch.cat(parts, 2).to(call.v.dtype), state


def gated_scan(call: GatedScan, method: str = "auto") -> Result:
    """Outputs (batch, heads, tokens, pose) of the type of v, and the last state (batch, heads, dim, pose).

    Args:
        method: "auto", "blocks" or "recurrent"; "auto" takes blocks where rows decay alike and are large enough for
            matrix products.
    """
    check_choice("method", method, ("auto", *METHODS))
    if not call.v.shape[2]:
        return call.v, call.wide[4]
    if method == "auto":
        wide = call.log_decay.shape[-1] == 1 and call.k.shape[-1] * call.v.shape[-1] >= BLOCK
        method = "blocks" if wide else "recurrent"
    return blocks(call) if method == "blocks" else recurrent(call)
