"""Mixture of heads: a few heads act for every token, and of the others each token chooses the best.

Source: arXiv:2410.11842.
Cost: scores and combinations 2 N S D times the share of active heads, where tokens of a head are gathered; projections
as in multi-head attention; C (h - h_s) + 2 C + C h_s multiply-adds a token for the router.
"""

import torch
from torch import Tensor, nn

from mereo.core import Coupling, mechanism
from mereo.core.initialise import start_linears
from mereo.errors import UsageError, check_choice, check_positive, check_probability
from mereo.mechanisms.attention.sparse.head_router import HeadRouter


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return MoHAttention(12, 6, shared=2, active=2), (torch.randn(2, 5, 12),)


@mechanism(
    "mixture_of_head",
    family="sparse attention",
    over="senders",
    values="shared",
    update="linear",
    source="arXiv:2410.11842",
    also_records=("gates",),
    promises=("normalised", "any sender order", "any receiver order", "any length"),
    lacks={"half precision": "rounding can change which heads are active, and with them the output"},
    sender_axes={"0": 1},
    receiver_axes={"0": 1, "output": 1},
    largest_input=1e15,  # queries times keys must fit float32
    interface="tokens",
    example=_example,
)
class MoHAttention(nn.Module):
    """Replace each token by a weighted sum of values, by the shared heads and those routed heads that it chooses.

    H_i = softmax(q_i k_i^T / sqrt d) v_i,   out = W_o [g_1 H_1, ..., g_h H_h] + b,   gates g of `HeadRouter`

    Args:
        dim: size of the tokens, C.
        num_heads: h.
        shared: heads that always act, h_s.
        active: routed heads that act for a token, K; 0 if all heads are shared.
        head_dim: size of a head; dim / num_heads by default.
        qkv_bias: biases of the projection to queries, keys and values.
        gate: "code" or "paper", see `HeadRouter`.
        routing: "tokens" or "queries", see `HeadRouter`.
        method: "auto", "gathered" (computes routed heads for their tokens only) or "dense" (computes all of them).
        attn_drop: dropout of the couplings.
        proj_drop: dropout of the output.

    Shapes: tokens (batch, tokens, dim) -> (batch, tokens, dim); gates (batch, tokens, heads).

    Reads as: couplings[b, h, r, s] is the share of sender s in what head h makes of token r, and gates[b, r, h] how
        much of that token r takes; 0 where the head does not act. All heads are computed to be recorded.

    Deviates: gates of the authors' code by default, which are 1 on average, so that the output has the scale of plain
        attention; "paper" selects the gates of the text.

    Reference: arXiv:2410.11842, section 3. Weights truncated normal of 0.02, biases of zero.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        shared: int = 2,
        active: int = 4,
        head_dim: int | None = None,
        qkv_bias: bool = True,
        gate: str = "code",
        routing: str = "tokens",
        method: str = "auto",
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive(dim=dim, num_heads=num_heads)
        check_probability(attn_drop=attn_drop, proj_drop=proj_drop)
        check_choice("method", method, ["auto", "gathered", "dense"])
        if head_dim is None:
            if dim % num_heads:
                raise UsageError(f"dim is {dim} and num_heads {num_heads}; give a divisor, or head_dim.")
            head_dim = dim // num_heads
        check_positive(head_dim=head_dim)
        self.num_heads, self.method = num_heads, method
        self.router = HeadRouter(dim, num_heads, shared, active, gate, routing)
        self.qkv = nn.Linear(dim, 3 * num_heads * head_dim, bias=qkv_bias)
        self.coupling = Coupling("senders", dropout=attn_drop)
        self.proj = nn.Linear(num_heads * head_dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: truncated normal weights of 0.02, biases of zero."""
        self.router.reset_parameters()
        for linear in (self.qkv, self.proj):
            start_linears(linear)

    def forward(self, tokens: Tensor) -> Tensor:
        q, k, v = self.qkv(tokens).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        gates = self.router(tokens, q)
        out = self.router.gated(q, k, v, gates, self.coupling, self.method)
        return self.proj_drop(self.proj(out))

    def extra_repr(self) -> str:
        return f"{self.qkv.in_features}, num_heads={self.num_heads}, method={self.method!r}"
