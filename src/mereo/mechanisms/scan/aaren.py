"""Aaren: causal attention whose query is learned and does not depend on the tokens, so that it is a recurrence.

Source: arXiv:2405.13956.
Cost: 2 (2 C^2 + C H) FLOPs a token and 4 b C for blocks of b tokens, the same at every length: keys are never formed,
because their products with one query are products of the tokens with H vectors. Read token by token, it carries
H (2 + C / H) numbers.
"""

import torch
from torch import Tensor, nn

from mereo.core import Causal, Coupling, mechanism
from mereo.core.inputs import check_streamed, check_tensors
from mereo.core.kernels.prefix_attention import BLOCK, METHODS, Prefixes, Summary, no_tokens, prefixes
from mereo.core.modes import must_be_called
from mereo.core.recurrence import Recurrence, log_decays
from mereo.core.squash import bounded
from mereo.errors import UsageError, check_choice, check_positive


def prefix_attention(scores: Tensor, values: Tensor, *, method: str = "auto", block: int = BLOCK) -> Tensor:
    """Softmax attention of one query to every prefix of a sequence.

    out_k = sum_{i<=k} exp(s_i) v_i / sum_{i<=k} exp(s_i)

    Args:
        scores: of the query with the tokens; -inf leaves a token out, and before the first one that takes part the
            output is 0.
        values: of the tokens.
        method: "auto", "compiled" (a token at a time in C++, in float32 on a CPU), "block" (products inside blocks),
            "scan" (doubling), "cumulative" (a sum of exponentials, and doubling) or "sequential" (a token at a time).
        block: tokens of a block.

    Shapes: scores (..., tokens), values (..., tokens, dim) -> (..., tokens, dim).

    Raises:
        UsageError: for shapes that do not fit together.

    Reference: arXiv:2405.13956, section 3.
    """
    check_tensors(scores=scores, values=values)
    if scores.dim() < 1 or values.shape[:-1] != scores.shape:
        raise UsageError(
            f"scores are {tuple(scores.shape)} and values {tuple(values.shape)}; they must be (..., tokens) and"
            " (..., tokens, dim)."
        )
    if scores.dtype != values.dtype:
        raise UsageError(f"scores are {scores.dtype} and values {values.dtype}; they must have one type.")
    check_positive(block=block)
    return prefixes(Prefixes(scores, values, no_tokens(scores, values), block), method)[0]


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Aaren(12, 3, block=4), (torch.randn(2, 9, 12),)


@mechanism(
    "aaren",
    family="scan",
    source="arXiv:2405.13956",
    over="senders",
    values="shared",
    promises=("normalised", "masks", "causal", "streaming", "any length", "recurrence"),
    zero_gradients={"key.bias": "it adds the same to every score of a head"},
    sender_axes={"0": 1},
    receiver_axes={"0": 1, "output": 1},
    interface="tokens",
    example=_example,
)
class Aaren(nn.Module):
    """Attend from one learned query to every prefix of the tokens: attention as a recurrent network.

    s_i = scale <W_q q + b_q, W_k x_i + b_k>,
    c_ki = exp(s_i) / sum_{j<=k} exp(s_j),   y_k = W_o sum_{i<=k} c_ki v_i + b_o

    Args:
        dim: size of the tokens.
        num_heads: divides `dim`.
        scale: factor of the scores; 1 / sqrt(dim / num_heads) by default.
        bias: whether the projections have biases.
        method: "auto", "compiled", "block", "scan", "cumulative" or "sequential", see `prefix_attention`.
        block: tokens of a block.

    Shapes: tokens (batch, tokens, dim), mask bool (batch, tokens) or None -> (batch, tokens, dim).

    Reads as: couplings[b, h, k, i] is the share of token i in what the query becomes from the first k tokens.

    `step(token, state)` takes one token and `extend(tokens, state, mask)` several; the state does not grow. A
    token with False in the mask changes nothing.

    Deviates: the query of every layer is a parameter; the paper's figure leaves open whether the query of a later layer
    is made by the layer before. It starts normal of 1, which the paper does not state; weights start as those of
    `MultiHeadAttention`, which it replaces.

    Reference: arXiv:2405.13956, sections 3 and 4.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        scale: float | None = None,
        bias: bool = True,
        method: str = "auto",
        block: int = BLOCK,
    ) -> None:
        super().__init__()
        check_positive(dim=dim, num_heads=num_heads, block=block)
        if dim % num_heads:
            raise UsageError(f"dim is {dim} and num_heads {num_heads}; dim must be a multiple of num_heads.")
        check_choice("method", method, ["auto", *METHODS])
        self.num_heads, self.method, self.block = num_heads, method, block
        self.scale = (dim // num_heads) ** -0.5 if scale is None else scale
        self.query = nn.Parameter(torch.empty(dim))
        self.to_query, self.key, self.value, self.proj = (nn.Linear(dim, dim, bias=bias) for _ in range(4))
        self.coupling = Coupling("senders", topology=Causal())
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: a normal query, Xavier uniform weights, biases of zero."""
        nn.init.normal_(self.query)
        for layer in (self.to_query, self.key, self.value, self.proj):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def scores(self, tokens: Tensor) -> Tensor:
        """(batch, heads, tokens): the products of the query with the keys, without the keys."""
        # Not the parameter itself: counters of operations put hooks on a layer's inputs.
        query = self.to_query(self.query.unsqueeze(0)).view(self.num_heads, 1, -1) * self.scale
        if must_be_called(self.key):
            keys = self.key(tokens).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            return bounded((keys * query).sum(-1))
        vectors = query @ self.key.weight.unflatten(0, (self.num_heads, -1))  # (heads, 1, dim)
        scores = tokens @ vectors.squeeze(1).T
        if self.key.bias is not None:
            scores = scores + (query.squeeze(1) * self.key.bias.view(self.num_heads, -1)).sum(-1)
        return bounded(scores.transpose(1, 2))

    def extend(
        self, tokens: Tensor, state: Summary | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Summary]:
        """Tokens that follow `state`: their outputs, and the state after them.

        Args:
            mask: bool (batch, tokens), True = takes part.
        """
        heads, size = self.num_heads, self.proj.in_features // self.num_heads
        shapes = {"top": (heads,), "total": (heads,), "values": (heads, size)}
        check_streamed(type(self).__name__, tokens, "(batch, tokens, dim)", state, Summary, **shapes)
        scores = self.scores(tokens)
        values = self.value(tokens).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        if mask is not None:
            scores = scores.masked_fill(~mask.unsqueeze(1), -torch.inf)
        before = no_tokens(scores, values) if state is None else state
        watched = self.coupling.watched
        # Plain operations are seen by what counts them; the compiled ones are not.
        out, last = prefixes(Prefixes(scores, values, before, self.block), "block" if watched else self.method)
        if watched:
            out = self._watched(scores, values, None if state is None else before)
        return self.proj(out.transpose(1, 2).flatten(2)), last

    def _watched(self, scores: Tensor, values: Tensor, before: Summary | None) -> Tensor:
        """The outputs by couplings of all pairs, which can be recorded; what came before is one more sender."""
        tokens = scores.shape[-1]
        if before is not None:
            carried = before.top + before.total.log()
            scores = torch.cat((carried.to(scores.dtype).unsqueeze(-1), scores), -1)
            values = torch.cat((before.output.to(values.dtype).unsqueeze(-2), values), -2)
        there = scores > -torch.inf
        pairs = scores.masked_fill(~there, 0).unsqueeze(-2).expand(*scores.shape[:-1], tokens, scores.shape[-1])
        return self.coupling(pairs, there.unsqueeze(-2)).to(values.dtype) @ values

    def step(self, token: Tensor, state: Summary | None = None) -> tuple[Tensor, Summary]:
        """One token: (batch, dim) and the state before it -> (batch, dim) and the state behind it."""
        out, state = self.extend(token.unsqueeze(1), state)
        return out.squeeze(1), state

    def recurrence(self, tokens: Tensor) -> Recurrence:
        """Lambda_i = eta_(i-1) / eta_i, B_i = exp(s_i) / eta_i, C_i = 1 with eta_i = sum_{j<=i} exp(s_j)."""
        scores = self.scores(tokens).unsqueeze(-1)
        values = self.value(tokens).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        log_eta = scores.logcumsumexp(2)
        own, ones = (scores - log_eta).exp(), torch.ones_like(scores)
        return Recurrence(
            log_decays(log_eta), own, ones, values, None, lambda out: self.proj(out.transpose(1, 2).flatten(2))
        )

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.extend(tokens, None, mask)[0]
