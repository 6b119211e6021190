"""A scan whose state decays by factors that depend on the token, in three forms that are equal.

    S_t = diag(lam_t) S_(t-1) + k_t v_t^T,    out_t = q_t^T S_t                                   arXiv:2405.15731

With steps, lam_t = exp(Delta_t log lam) and k_t is multiplied by Delta_t: a state space whose step size each token
chooses. The recurrent form takes a token at a time. Where all rows of a state decay alike, the block form multiplies
the pairs of tokens inside blocks by exp(sum of log lam between them), which never divides by a product of decays, and
carries the state from block to block. The compiled form takes states of one channel, whose rows decay at rates of their
own times a step, or which have one row. Sums are in float32 or wider.

Cost: 4 N D E operations for N tokens, keys of D and values of E, and N D E numbers in the recurrent form; by blocks of
b tokens 2 N (2 D E + b (D + E)) FLOPs, which are matrix products, and N b numbers; compiled, nothing as large as N D.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mereo.core.kernels.gated_scan_compiled import scan_compiled
from mereo.core.kernels.methods import check_state, compiled_cannot, execute
from mereo.core.squash import accumulation_type
from mereo.errors import check_choice

BLOCK = 64
LEAST = -100.0
"""Least log of a factor: exp(-100) adds nothing in float32, and differences of sums of such logs stay finite."""
Result = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class GatedScan:
    """One call.

    Attributes:
        q, k: (batch, heads or 1, tokens, dim).
        v: (batch, heads, tokens, pose).
        log_decay: log lam, (batch, heads or 1, tokens, dim), or (.., tokens, 1) for rows that decay alike; with steps
            (1, heads, 1, dim).
        state: before the first token, (batch, heads, dim, pose); None for zeros.
        steps: Delta, (batch, heads, tokens, 1); None for 1.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor
    state: Tensor | None = None
    steps: Tensor | None = None

    @property
    def wide(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys, values, logs of decays and the state in the type of sums."""
        dtype, batch, heads = accumulation_type(self.v), *self.v.shape[:2]
        q, k, v, logs = (x.to(dtype) for x in (self.q, self.k, self.v, self.log_decay))
        if self.steps is not None:
            steps = self.steps.to(dtype)
            k, logs = steps * k, steps * logs
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


def compiled(call: GatedScan) -> Result:
    """States of one channel in C++: rows that decay at rates of their own times a step, or one row."""
    v = call.v.squeeze(-1)
    if call.steps is not None:
        steps, rates = call.steps.squeeze(-1), call.log_decay[0, :, 0]
        x, w, k, q = steps, steps * v, call.k.squeeze(1), call.q.squeeze(1)
    else:
        ones = torch.ones(1, device=v.device)
        x, w = call.log_decay.squeeze(-1).expand(v.shape), call.k.squeeze(-1) * v
        rates, k, q = ones.expand(v.shape[1], 1), *2 * [ones.expand(v.shape[0], v.shape[2], 1)]
    first = None if call.state is None else call.state.squeeze(-1).float()
    x, w, rates, k, q = (each.float() for each in (x.transpose(1, 2), w.transpose(1, 2), rates, k, q))
    out, last = scan_compiled(x, w, rates, k, q, first)
    out = out.transpose(1, 2).unsqueeze(-1)
    return (out if call.steps is not None else call.q * out).to(call.v.dtype), last.unsqueeze(-1)


def _compiled_cannot(call: GatedScan) -> str | None:
    """Why the compiled form cannot run a call; None if it can."""
    if call.v.shape[-1] != 1:
        return f"its states have {call.v.shape[-1]} channels and not one"
    if call.steps is None and call.k.shape[-1] != 1:
        return "its states have several rows and no steps"
    if call.steps is not None and (call.k.shape[1] != 1 or call.q.shape[1] != 1):
        return "its keys or queries differ between heads"
    return compiled_cannot(call.q, call.k, call.v, call.log_decay)


def _blocks_cannot(call: GatedScan) -> str | None:
    """Why the block form cannot run a call; None if it can."""
    alike = call.log_decay.shape[-1] == 1
    return None if alike else "the rows of its states decay apart"


METHODS: dict[str, tuple[Callable[[GatedScan], Result], Callable[[GatedScan], str | None]]] = {
    "compiled": (compiled, _compiled_cannot),
    "recurrent": (recurrent, lambda call: None),
    "blocks": (blocks, _blocks_cannot),
}
"""Name -> (function, why it cannot run: None if it can), the preferred first; blocks pay for large states only."""


def gated_scan(call: GatedScan, method: str = "auto") -> Result:
    """Outputs (batch, heads, tokens, pose) of the type of v, and the last state (batch, heads, dim, pose).

    Args:
        method: "auto", "compiled", "blocks" or "recurrent"; "auto" takes blocks where rows decay alike and are large
            enough for matrix products, and else the compiled form where it can run.
    """
    check_choice("method", method, ("auto", *METHODS))
    check_state(call.state, *call.v.shape[:2], call.k.shape[3], call.v.shape[3])
    if not call.v.shape[2]:
        return call.v, call.wide[4]
    if method == "auto" and call.k.shape[-1] * call.v.shape[-1] >= BLOCK and _blocks_cannot(call) is None:
        method = "blocks"
    return execute(METHODS, call, method, always="recurrent")
