"""Multi-head attention: every receiver attends to all senders, with separate scores in each head.

Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.
Cost: projections 4 N D^2 multiplications an image (N tokens of D), scores and combination 2 N S D.
"""

import torch
from torch import Tensor, nn

from mereo.core import Causal, Coupling, depends, mechanism
from mereo.core.coupling import Over
from mereo.core.kernels.attention import attend
from mereo.core.recurrence import DEGREE, Recurrence, softmax_recurrence
from mereo.errors import UsageError, check_heads, check_positive, check_probability


def four_axes(mask: Tensor | None) -> Tensor | None:
    """A mask with the axes of couplings.

    Shapes: bool (batch, senders), (batch, receivers, senders) or (batch, heads or 1, receivers or 1, senders)
        -> broadcastable to (batch, heads, receivers, senders).
    """
    if mask is None:
        return None
    if mask.dtype != torch.bool or mask.dim() not in {2, 3, 4}:
        raise UsageError(f"mask is {mask.dtype} with {mask.dim()} axes; it must be bool with 2, 3 or 4.")
    if mask.dim() == 2:
        return mask[:, None, None, :]
    return mask.unsqueeze(1) if mask.dim() == 3 else mask


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return MultiHeadAttention(12, 3, context_dim=8), (torch.randn(2, 5, 12), torch.randn(2, 7, 8))


@mechanism(
    "multi_head",
    family="dense attention",
    over=depends("over", "senders"),
    steps=1,
    values="shared",
    update="linear",
    source="arXiv:1706.03762",
    promises=("normalised", "masks", "any sender order", "any receiver order", "any length"),
    zero_gradients={"key.bias": "it adds the same to every score of a receiver, and the softmax takes that out"},
    sender_axes={"1": 1},
    receiver_axes={"0": 1, "output": 1},
    largest_input=1e15,  # queries times keys must fit float32
    interface="tokens",
    example=_example,
)
class MultiHeadAttention(nn.Module):
    """Replace each token by a weighted sum of the values of all tokens, or of the tokens of a context.

    q = W_q x,  k = W_k y,  v = W_v y   for each head;   out = W_o [softmax(q k^T / sqrt(D / heads)) v, ...] + b

    Args:
        dim: size of the tokens.
        num_heads: independent sets of couplings; divides `dim`.
        context_dim: size of the context's tokens, if it differs from `dim`.
        qk_dim: size of queries and keys of all heads together; `dim` by default.
        qkv_bias: biases of the three projections.
        over: the axis of the normaliser. "receivers" makes the senders divide themselves among the receivers.
        normaliser: see `Coupling`.
        causal: each token attends to itself and those before it; see `mereo.core.Causal` for contexts of other lengths.
        attn_drop: dropout of the couplings.
        proj_drop: dropout of the output.

    Shapes:
        tokens (batch, tokens, dim), context (batch, senders, context_dim), by default the tokens themselves;
        mask bool (batch, senders), (batch, tokens, senders) or (batch, heads, tokens, senders), True = takes part
        -> (batch, tokens, dim). A token with every sender masked out gets the bias of the output projection.

    Reads as: couplings[b, h, r, s] is the share of sender s in the output of head h for token r.

    Deviates: Xavier uniform for each projection by itself and biases of zero; the paper does not state its start.

    Reference: arXiv:1706.03762, eq. 1 and section 3.2.2.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        context_dim: int | None = None,
        qk_dim: int | None = None,
        qkv_bias: bool = True,
        over: Over = "senders",
        normaliser: str = "softmax",
        causal: bool = False,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        context_dim = dim if context_dim is None else context_dim
        qk_dim = dim if qk_dim is None else qk_dim
        check_positive(context_dim=context_dim, qk_dim=qk_dim)
        check_probability(attn_drop=attn_drop, proj_drop=proj_drop)
        check_heads(dim, num_heads)
        if qk_dim % num_heads:
            raise UsageError(f"qk_dim is {qk_dim} and num_heads {num_heads}; qk_dim must be a multiple of num_heads.")
        self.num_heads = num_heads
        self.query = nn.Linear(dim, qk_dim, bias=qkv_bias)
        self.key = nn.Linear(context_dim, qk_dim, bias=qkv_bias)
        self.value = nn.Linear(context_dim, dim, bias=qkv_bias)
        topology = Causal() if causal else None
        self.coupling = Coupling(over, normaliser, dropout=attn_drop, topology=topology)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: Xavier uniform weights, biases of zero."""
        for linear in (self.query, self.key, self.value, self.proj):
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def exchange(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """The output of every head: the verbs themselves, without projections.

        Shapes: q (batch, heads, tokens, d), k and v (batch, heads, senders, d) -> (batch, heads, tokens, d).
        """
        return attend(q, k, v, self.coupling, mask=mask)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Split into heads, exchange, merge, project: (batch, tokens or senders, dim) each -> (batch, tokens, dim)."""
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in (q, k, v))
        merged: Tensor = self.proj(self.exchange(q, k, v, four_axes(mask)).transpose(1, 2).flatten(2))
        return self.proj_drop(merged) if self.proj_drop.p else merged

    def recurrence(self, tokens: Tensor, degree: int = DEGREE) -> Recurrence:
        """Causal attention by the Taylor polynomial of its softmax: see `mereo.recurrence`."""
        causal = type(self) is MultiHeadAttention and isinstance(self.coupling.topology, Causal)
        if not (causal and self.coupling.is_plain_softmax):
            raise UsageError(
                f"{type(self).__name__} is no causal softmax attention, which has a recurrence; give causal=True."
            )
        q, k, v = (
            layer(tokens).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        return softmax_recurrence(q, k, v, degree, lambda out: self.proj(out.transpose(1, 2).flatten(2)))

    def forward(self, tokens: Tensor, context: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        context = tokens if context is None else context
        return self.mix(self.query(tokens), self.key(context), self.value(context), mask)

    def extra_repr(self) -> str:
        return f"{self.query.in_features}, num_heads={self.num_heads}, context_dim={self.key.in_features}"
