"""Power law graph attention: scores q G k^T, with a matrix G for each head that a small network makes of the queries.

Sources: Gokden 2021, arXiv:2107.02039 (the attention), arXiv:2410.16703 (the language model).
Source: arXiv:2502.13502, with keys, values and G kept while tokens are generated; the released code decides details.
Cost: causal attention, and for a sequence of T tokens with H heads of d = D / H, T D d multiplications for q^T q and
H d^2 (2 d + 3 R N F) for G by R units of N gates of F; "prefix" makes a G for each token. Multiplying G into the keys,
once for each token, costs D d; then a token takes the time of plain attention.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import AddedLoss, Causal, Coupling, Signal, mechanism
from mereo.core.inputs import check_streamed
from mereo.core.kernels.attention import attend
from mereo.core.modes import unconverted
from mereo.core.rotary import rotate
from mereo.core.squash import accumulation_type, bounded
from mereo.errors import UsageError, check_choice, check_count, check_heads, check_not_negative, check_probability

SCOPES = ("all", "prefix")
GRAPHS = ("learned", "identity", "given")
EPSILON, LEAST = 1e-6, 1e-9
"""Of the norms, and the least entry of A_LM."""


class GatedUnit(nn.Module):
    """W_3 (silu(W_1 z + b_1) * (W_2 z + b_2)) + b_3, weights Xavier uniform and biases zero: (..., dim) -> the same."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.first = nn.Linear(dim, hidden), nn.Linear(dim, hidden)
        self.second = nn.Linear(hidden, dim)
        start_xavier(self.gate, self.first, self.second)

    def forward(self, z: Tensor) -> Tensor:
        return self.second(F.silu(self.gate(z)) * self.first(z))


class GramNorm(nn.LayerNorm):
    """Layer normalisation of sums too large for half precision: float32 or wider -> the type of its weights."""

    def forward(self, gram: Tensor) -> Tensor:
        weight, bias = self.weight.to(gram.dtype), self.bias.to(gram.dtype)
        return F.layer_norm(gram, self.normalized_shape, weight, bias, self.eps).to(self.weight.dtype)


class MetricUnit(nn.Module):
    """LN(A + gates(A)) over the last axis, which all heads and rows share: (..., dim) -> the same."""

    def __init__(self, dim: int, hidden: int, gates: int) -> None:
        super().__init__()
        self.gates = nn.Sequential(*(GatedUnit(dim, hidden) for _ in range(gates)))
        self.norm = nn.LayerNorm(dim, eps=EPSILON)

    def forward(self, metric: Tensor) -> Tensor:
        return self.norm(metric + self.gates(metric))


class Deduced(NamedTuple):
    """The deductive outputs, (batch, heads, d, d) each: the metric, its positive form, that to powers, and G."""

    A: Tensor
    A_LM: Tensor
    A_P: Tensor
    G_LM: Tensor


class GraphState(NamedTuple):
    """The state between parts of a sequence.

    Attributes:
        keys: of all tokens, times G^T where one G holds for all of them, (batch, heads, tokens, d).
        values: (batch, heads, tokens, d).
        deduced: G and what it is made of, of all tokens of the first part, or for "prefix" of those so far.
        gram: q^T q of the tokens so far, (batch, heads, d, d), for "prefix".
    """

    keys: Tensor
    values: Tensor
    deduced: Deduced | None = None
    gram: Tensor | None = None


def start_xavier(*layers: nn.Linear) -> None:
    """Initialise: Xavier uniform weights, biases of zero."""
    for layer in layers:
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)


def squared_silu(z: Tensor) -> Tensor:
    """iSwiGLU: z silu(z), which is at least 0; any shape."""
    return z * F.silu(z)


def times(x: Tensor, graph: Tensor) -> Tensor:
    """x G in the wider type of G, which may hold entries that half precision does not: (..., n, d) -> the same."""
    with unconverted(x):
        return bounded(x.to(graph.dtype) @ graph, torch.finfo(x.dtype).max).to(x.dtype)


def dag_loss(matrices: Tensor) -> Tensor:
    """How far graphs with these weights are from having no cycles: mean |log(trace(exp(M * M)) / d)|.

    Shapes: (..., d, d) -> ().

    Reference: arXiv:2410.16703; zero for strictly triangular matrices.
    """
    wide = matrices.to(accumulation_type(matrices))
    traces = torch.matrix_exp(wide * wide).diagonal(dim1=-2, dim2=-1).sum(-1)
    return (traces / matrices.shape[-1]).log().abs().mean()


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    module = PowerLawGraphAttention(12, 3, units=2, gates=2, hidden=5, metric_scope="prefix")
    return module, (torch.randn(2, 7, 12),)


@mechanism(
    "power_law_graph",
    family="dense attention",
    over="senders",
    values="shared",
    update="linear",
    source="arXiv:2502.13502",
    also_records=("states",),
    promises=("normalised", "causal", "streaming", "any length"),
    sender_axes={"0": 1},
    receiver_axes={"0": 1, "output": 1},
    largest_input=1e8,  # the variance of queries times queries must fit float32
    interface="tokens",
    example=_example,
)
class PowerLawGraphAttention(nn.Module):
    """Attend to each token and those before it by q G k^T, where a network makes G of the queries of the sequence.

    q, k = rotary(W_q x + b), rotary(W_k x + b),  v = W_v x + b   for each head;   A = units(LN(q^T q))

    A_LM = iSwiGLU(W A + b) + 1e-9,   A_P = A_LM^p for each entry,   G = a A_P + b_a

    out = W_o [softmax(q G k^T / sqrt(d)) v, ...] + b_o

    Args:
        dim: D, size of the tokens.
        num_heads: divides `dim`, into d channels each; with fewer than 4 the norms leave little of q^T q.
        units: R, residual units of the network that makes A, see `MetricUnit`; 8 in the paper.
        gates: N, gated units of each.
        hidden: size between the layers of a gated unit; 170 in the paper.
        metric_scope: "all" sums q^T q over all tokens, as the released code does, so that in one pass G depends on
            later tokens; "prefix" has a G for each token, from it and those before.
        graph: "learned"; "identity" for plain attention; or "given" for a fixed G without the network, the buffer
            `given_graph` (heads, d, d), which starts normal of 1 / sqrt(d).
        rotary: whether queries and keys are turned by their positions; the last one of an odd number of channels stays.
        dag: weights of the losses "dag_A_LM", "dag_A_P" and "dag_G_LM", see `dag_loss`; means over layers.
        attn_drop: dropout of the couplings.

    Shapes: tokens (batch, tokens, dim), visible bool (batch, tokens) or None, False for padding, which no token attends
        to and G does not count -> (batch, tokens, dim); recorded states, G: (batch, heads, d, d), or (batch, tokens,
        heads, d, d) for "prefix".

    `extend(tokens, state)` goes on from a state. With "all" the first part, the prompt, decides on G, which is kept and
    multiplied into the keys once, so that later tokens take plain attention. That equals a pass over all tokens only as
    far as G does not depend on them; "prefix" and a fixed G always equal it.

    A row of LN(q^T q) of a few tokens changes sign with a channel of their queries, so G of short sequences and
    prefixes is a steep function of them, and inexact in half precision.

    Reads as: couplings[b, h, r, s] is the share of token s in the output of head h for token r.

    Deviates: only "all" is the source's; "prefix" is ours. Padding is left out of the softmax, not lowered by 1e9. W_v
        starts as PyTorch's layers do, as in the released code, and other weights Xavier uniform, W, p and a normal.

    Reference: arXiv:2502.13502, section 2.
    """

    given_graph: Tensor

    def __init__(
        self,
        dim: int,
        num_heads: int = 4,
        *,
        units: int = 2,
        gates: int = 2,
        hidden: int = 32,
        metric_scope: str = "all",
        graph: str = "learned",
        rotary: bool = True,
        dag: Sequence[float] = (0.0, 0.0, 0.0),
        attn_drop: float = 0.0,
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        check_probability(attn_drop=attn_drop)
        check_choice("metric_scope", metric_scope, SCOPES)
        check_choice("graph", graph, GRAPHS)
        check_count(units=units)
        check_count(1, gates=gates, hidden=hidden)
        size = dim // num_heads
        self.num_heads, self.metric_scope, self.graph, self.rotary = num_heads, metric_scope, graph, rotary
        self.query, self.key, self.value, self.proj = (nn.Linear(dim, dim) for _ in range(4))
        start_xavier(self.query, self.key, self.proj)
        shape = (num_heads, size, size)
        if graph == "learned":
            self.norm = GramNorm(size, eps=EPSILON)
            self.units = nn.Sequential(*(MetricUnit(size, hidden, gates) for _ in range(units)))
            self.weight, self.power, self.mix = (
                nn.Parameter(nn.init.xavier_normal_(torch.empty(shape))) for _ in range(3)
            )
            self.bias, self.mix_bias = (nn.Parameter(torch.zeros(shape)) for _ in range(2))
            self.graphs = Signal("states")
        elif graph == "given":
            self.register_buffer("given_graph", torch.randn(shape) * size**-0.5)
        if len(dag) != 3:
            raise UsageError(f"dag is {dag!r}; it must be three weights, of A_LM, A_P and G_LM.")
        check_not_negative(**{f"dag[{place}]": weight for place, weight in enumerate(dag)})
        names = Deduced._fields[1:] if graph == "learned" else ()
        pairs = zip(names, dag, strict=False)
        self.dag = nn.ModuleList(AddedLoss(f"dag_{name}", weight, across="mean") for name, weight in pairs)
        self.coupling = Coupling("senders", dropout=attn_drop, topology=Causal())

    @property
    def is_causal(self) -> bool:
        """Whether nothing depends on later tokens."""
        return self.metric_scope == "prefix" or self.graph != "learned"

    def read(self, tokens: Tensor, position: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, turned from `position` on.

        Shapes: (batch, tokens, dim) -> (batch, heads, tokens, d) each.
        """
        parts = (layer(tokens) for layer in (self.query, self.key, self.value))
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts)
        if self.rotary:
            even = q.shape[-1] // 2 * 2
            turned = (rotate(x[..., :even], position, neighbours=True) for x in (q, k))
            q, k = (torch.cat((t, x[..., even:]), -1) for t, x in zip(turned, (q, k), strict=True))
        return q, k, v

    def metric(self, gram: Tensor) -> Tensor:
        """A of q^T q: (..., heads, d, d) -> the same."""
        with unconverted(gram):
            metric: Tensor = self.units(self.norm(gram))
        return metric

    def deduce(self, metric: Tensor) -> Deduced:
        """G of A: (..., heads, d, d) -> the same each; in float32 or wider, where 1e-9 and its powers exist."""
        wide = accumulation_type(metric)
        given = (self.weight, self.bias, self.power, self.mix, self.mix_bias)
        weight, bias, power, mix, mix_bias = (parameter.to(wide) for parameter in given)
        with unconverted(metric):
            positive = squared_silu(weight @ metric.to(wide) + bias) + LEAST
            potential = positive**power
            deduced = Deduced(metric, positive, potential, self.graphs(mix @ potential + mix_bias))
        for loss, matrices in zip(self.dag, deduced[1:], strict=True):
            if self.training and loss.loss_weight:
                loss(dag_loss(matrices))
        return deduced

    def _by_prefix(self, q: Tensor, seen: Tensor, gram: Tensor | None) -> tuple[Tensor, Deduced, Tensor]:
        """Queries times the G of each prefix, G of the last one, and its q^T q."""
        rows = seen.transpose(1, 2)
        grams = (rows.unsqueeze(-1) * rows.unsqueeze(-2)).cumsum(1)
        if gram is not None:
            grams = grams + gram.unsqueeze(1)
        deduced = self.deduce(self.metric(grams))
        asked = times(q.transpose(1, 2).unsqueeze(-2), deduced.G_LM).squeeze(-2).transpose(1, 2)
        return asked, Deduced(*(matrices[:, -1] for matrices in deduced)), grams[:, -1]

    def extend(
        self, tokens: Tensor, state: GraphState | None = None, visible: Tensor | None = None
    ) -> tuple[Tensor, GraphState]:
        """The next tokens after `state`: their outputs, and the state after them.

        Args:
            visible: see the class; only for a first part.
        """
        heads, size = self.num_heads, self.proj.in_features // self.num_heads
        square = (heads, size, size) if self.graph == "learned" else None
        shapes = {"keys": (heads, None, size), "values": (heads, None, size), "deduced": square}
        shapes["gram"] = square if self.metric_scope == "prefix" else None
        check_streamed(type(self).__name__, tokens, "(batch, tokens, dim)", state, GraphState, **shapes)
        if not tokens.shape[1]:
            raise UsageError(f"{type(self).__name__}: tokens are {tuple(tokens.shape)}; give at least one token.")
        q, k, v = self.read(tokens, 0 if state is None else state.keys.shape[2])
        deduced, gram = (None, None) if state is None else (state.deduced, state.gram)
        if self.graph == "learned":
            seen = q.to(accumulation_type(q))
            seen = seen if visible is None else seen.masked_fill(~visible[:, None, :, None], 0)
            if self.metric_scope == "prefix":
                q, deduced, gram = self._by_prefix(q, seen, gram)
            else:
                deduced = self.deduce(self.metric(seen.mT @ seen)) if deduced is None else deduced
                k = times(k, deduced.G_LM.mT)
        elif self.graph == "given":
            k = times(k, self.given_graph.mT)
        if state is not None:
            k, v = torch.cat((state.keys, k), 2), torch.cat((state.values, v), 2)
        mixed = attend(q, k, v, self.coupling, mask=None if visible is None else visible[:, None, None, :])
        return self.proj(mixed.transpose(1, 2).flatten(2)), GraphState(k, v, deduced, gram)

    def step(self, token: Tensor, state: GraphState | None = None) -> tuple[Tensor, GraphState]:
        """One token: (batch, dim) and the state before it -> (batch, dim) and the state behind it."""
        out, state = self.extend(token.unsqueeze(1), state)
        return out.squeeze(1), state

    def forward(self, tokens: Tensor, visible: Tensor | None = None) -> Tensor:
        return self.extend(tokens, None, visible)[0]

    def extra_repr(self) -> str:
        return f"{self.proj.in_features}, num_heads={self.num_heads}, graph={self.graph!r}, scope={self.metric_scope!r}"
