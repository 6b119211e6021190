"""Hopfield layers: attention whose queries settle among the keys before they read the values.

Source: Ramsauer et al. 2020, arXiv:2008.02217, and the authors' layers.
Cost: as multi-head attention, and 2 N S D multiplications for every further step.
"""

import torch
from torch import Tensor, nn

from mereo.core import depends, mechanism, settle
from mereo.core.kernels.attention import attend
from mereo.errors import check_positive, check_steps
from mereo.mechanisms.attention.dense.multi_head import MultiHeadAttention


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    module = HopfieldAttention(12, 3, steps=3, context_dim=8, norm=True)
    return module, (torch.randn(2, 5, 12), torch.randn(2, 7, 8))


@mechanism(
    "hopfield",
    family="memory",
    over="senders",
    steps=depends("steps", 1),
    values="shared",
    update="identity",
    source="arXiv:2008.02217",
    promises=("normalised", "masks", "any sender order", "any receiver order", "any length"),
    sender_axes={"1": 1},
    receiver_axes={"0": 1, "output": 1},
    largest_input=1e15,  # states times stored patterns must fit float32
    interface="tokens",
    example=_example,
)
class HopfieldAttention(MultiHeadAttention):
    """Retrieve, for each token, from a context as the memory: states settle among the keys, then read the values.

    q = W_q x,  k = W_k y,  v = W_v y (or W_v W_k y, connected);   steps - 1 times:  q <- softmax(beta q k^T) k;
    out = W_o [softmax(beta q k^T) v, ...] + b

    Args:
        dim: size of the tokens.
        num_heads: independent memories; divides `dim`.
        beta: inverse temperature; 1 / sqrt(dim / num_heads) by default.
        steps: retrievals in all, at least 1; one, with the default beta, is multi-head attention.
        context_dim: size of the context's tokens, if it differs from `dim`.
        connected: project the inputs of the values like the keys first, v = W_v W_k y.
        norm: a layer norm each of states, stored patterns and inputs of the values.
        qkv_bias, normaliser, attn_drop, proj_drop: see `MultiHeadAttention`.

    Shapes:
        tokens (batch, tokens, dim), context (batch, senders, context_dim), by default the tokens themselves;
        values, the inputs of the values, by default the context; mask as in `MultiHeadAttention`
        -> (batch, tokens, dim).

    Reads as: couplings[b, h, r, s] is the weight of stored pattern s in the update of state r in head h, at each step.

    Deviates: the steps are a fixed number, without the authors' stop at convergence; norms are off unless asked for.

    Reference: arXiv:2008.02217, eq. 3 and section 3.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        beta: float | None = None,
        steps: int = 1,
        context_dim: int | None = None,
        connected: bool = False,
        norm: bool = False,
        qkv_bias: bool = True,
        normaliser: str = "softmax",
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__(
            dim,
            num_heads,
            context_dim=context_dim,
            qkv_bias=qkv_bias,
            normaliser=normaliser,
            attn_drop=attn_drop,
            proj_drop=proj_drop,
        )
        check_positive(beta=1.0 if beta is None else beta)
        check_steps(1, steps=steps)
        self.beta, self.steps, self.connected = beta, steps, connected
        if connected:
            self.value = nn.Linear(dim, dim, bias=qkv_bias)
            self.reset_parameters()
        sources = (self.query, self.key, self.key if connected else self.value)
        self.norm_state, self.norm_stored, self.norm_value = (
            nn.LayerNorm(source.in_features) if norm else nn.Identity() for source in sources
        )

    def exchange(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        def read(state: Tensor, values: Tensor) -> Tensor:
            return attend(state, k, values, self.coupling, mask=mask, scale=self.beta)

        return read(settle(lambda state: read(state, k), q, steps=self.steps - 1), v)

    def forward(
        self,
        tokens: Tensor,
        context: Tensor | None = None,
        mask: Tensor | None = None,
        values: Tensor | None = None,
    ) -> Tensor:
        context = tokens if context is None else context
        k = self.key(self.norm_stored(context))
        source = self.norm_value(context if values is None else values)
        source = self.key(source) if self.connected else source
        return self.mix(self.query(self.norm_state(tokens)), k, self.value(source), mask)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, beta={self.beta}, steps={self.steps}"
