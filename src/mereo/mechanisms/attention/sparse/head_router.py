"""Which heads act for a token, and how strongly: shared heads always, routed heads by their scores.

Source: arXiv:2410.11842.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import AddedLoss, Coupling, Signal
from mereo.core.squash import accumulation_type
from mereo.errors import UsageError, check_choice, check_positive
from mereo.mechanisms.attention.sparse.head_dispatch import Gated, gated_heads

GATES = ("code", "paper")
ROUTINGS = ("tokens", "queries")
BALANCE_WEIGHT = 0.01
"""Weight of the balance of heads in the loss, arXiv:2410.11842, section 3.3."""


def check_routed_heads(num_heads: int, shared: int, active: int) -> None:
    """UsageError unless the numbers of `shared` and `active` heads are possible."""
    check_positive(num_heads=num_heads)
    if not 0 <= shared <= num_heads:
        raise UsageError(f"shared is {shared} of {num_heads} heads; it must be from 0 to {num_heads}.")
    routed = num_heads - shared
    if not (1 if routed else 0) <= active <= routed:
        low = 1 if routed else 0
        raise UsageError(f"active is {active} with {routed} routed heads; it must be from {low} to {routed}.")


class HeadRouter(nn.Module):
    """Make the gates of the heads of each token.

    (a1, a2) = softmax(W_h x),   p^s = softmax(W_s x) over shared heads,   p^r = softmax(W_r x) over routed heads

    code:   g_i = 2 a1 h_s p^s_i of shared heads;  2 a2 K p^r_i / (sum of p^r over the active) of active ones;  else 0
    paper:  g_i = a1 p^s_i;   a2 p^r_i;   0

    The K routed heads with the largest scores are active. Without shared heads, or without routed ones, there is no a.
    With `routing="queries"` nothing is learned: the score of a routed head is the norm of its query, divided by the
    standard deviation over the routed heads; gates are 1 or 0, with the gradient of p (straight through).

    Args:
        dim: size of the tokens.
        num_heads: h.
        shared: h_s, the first heads, which always act.
        active: K, routed heads that act for a token.
        gate: "code", the form of the authors' code, which keeps the scale of plain attention, or "paper".
        routing: "tokens", by learned scores, or "queries".

    Shapes: tokens (batch, tokens, dim), queries (batch, heads, tokens, d), needed by "queries" only
        -> (batch, tokens, heads).

    Attributes:
        balance: the loss that it adds in training, E sum_i P_i f_i over the E routed heads, without the factor E for
            "paper"; P_i is the mean of p^r_i over the tokens of the batch, f_i the share for which i is active.

    Reference: arXiv:2410.11842, eq. 4 to 9.
    """

    def __init__(
        self, dim: int, num_heads: int, shared: int, active: int, gate: str = "code", routing: str = "tokens"
    ) -> None:
        super().__init__()
        check_positive(dim=dim)
        check_routed_heads(num_heads, shared, active)
        check_choice("gate", gate, GATES)
        check_choice("routing", routing, ROUTINGS)
        self.num_heads, self.shared, self.active, self.routed = num_heads, shared, active, num_heads - shared
        self.gate, self.routing = gate, routing
        learned = routing == "tokens"
        two = learned and shared > 0 and self.routed > 0
        sizes = (2 * two, shared * (learned and shared > 1), learned * self.routed)
        for name, size in zip(("stage", "shared_heads", "routed_heads"), sizes, strict=True):
            self.register_parameter(name, nn.Parameter(torch.empty(size, dim)) if size else None)
        self.stage: nn.Parameter | None
        self.shared_heads: nn.Parameter | None
        self.routed_heads: nn.Parameter | None
        self.gates = Signal("gates")
        self.balance = AddedLoss("balance", BALANCE_WEIGHT, across="mean")
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: truncated normal of 0.02."""
        for parameter in self.parameters():
            nn.init.trunc_normal_(parameter, std=0.02)

    def _logits(self, tokens: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Scores of the two stages, of shared and of routed heads, by one product."""
        weights = [self.stage, self.shared_heads, self.routed_heads]
        there: list[Tensor] = [weight for weight in weights if weight is not None]
        if not there:
            return None, None, None
        parts = iter(F.linear(tokens, torch.cat(there)).split([len(weight) for weight in there], -1))
        stage, shared, routed = (None if weight is None else next(parts) for weight in weights)
        return stage, shared, routed

    def _balance(self, shares: Tensor, chosen: Tensor) -> Tensor:
        mean = shares.flatten(0, -2).mean(0)
        often = chosen.to(shares.dtype).flatten(0, -2).mean(0)
        total = (mean * often).sum()
        return total if self.gate == "paper" else total * self.routed

    def _by_queries(self, queries: Tensor) -> Tensor:
        norms = torch.linalg.vector_norm(queries[:, self.shared :].to(accumulation_type(queries)), dim=-1)
        norms = norms.transpose(1, 2)
        if self.routed == 1:
            return norms
        return norms / norms.std(-1, keepdim=True).clamp(min=torch.finfo(norms.dtype).tiny ** 0.5)

    def forward(self, tokens: Tensor, queries: Tensor | None = None) -> Tensor:
        stage, shared, routed = self._logits(tokens)
        if self.routing == "queries" and self.routed:
            if queries is None:
                raise UsageError("queries is None; routing by queries needs them.")
            routed = self._by_queries(queries)
        wide = accumulation_type(tokens)
        lines = tokens.shape[:-1]
        by_code = self.gate == "code"
        first = tokens.new_ones(*lines, self.shared, dtype=wide)
        if shared is not None:
            first = shared.to(wide).softmax(-1) * (self.shared if by_code else 1)
        if routed is None:
            return self.gates(first.to(tokens.dtype))
        shares = routed.to(wide).softmax(-1)
        top = routed.topk(self.active, dim=-1).indices
        chosen = torch.zeros_like(shares).scatter(-1, top, 1.0)
        if self.training:
            self.balance(self._balance(shares, chosen))
        if self.routing == "queries":
            second = chosen + (shares - shares.detach())  # exactly 1 or 0
        else:
            second = shares * chosen
            if by_code:
                second = second * (self.active / second.sum(-1, keepdim=True))
        if stage is not None:
            both = stage.to(wide).softmax(-1) * (2 if by_code else 1)
            first, second = first * both[..., :1], second * both[..., 1:]
        return self.gates(torch.cat((first, second), -1).to(tokens.dtype))

    def gated(self, q: Tensor, k: Tensor, v: Tensor, gates: Tensor, coupling: Coupling, method: str = "auto") -> Tensor:
        """The outputs of the heads for their tokens, times the gates, side by side; see `head_dispatch.METHODS`.

        Shapes: q, k, v (batch, heads, tokens, d), gates (batch, tokens, heads) -> (batch, tokens, heads * d).
        """
        call = Gated(q, k, v, gates, coupling, self.shared, self.active, self.routing == "queries")
        return gated_heads(call, method).transpose(1, 2).flatten(2)

    def extra_repr(self) -> str:
        return f"heads={self.num_heads}, shared={self.shared}, active={self.active} of {self.routed}"
