"""Routing attention: tokens attend inside clusters of their queries and keys, next to heads that attend locally.

Source: Roy, Saffar, Vaswani, Grangier 2021, arXiv:2003.05997, section 4.
Cost: N k D multiplications a head for the distances of N tokens of D from k centroids, and 2 k w^2 D for the attention
    inside clusters of w tokens: with k = w = sqrt(N), 3 N^1.5 D instead of 2 N^2 D. `strict` costs 2 k N^2 D.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from mereo.core import AddedLoss, Causal, Coupling, mechanism
from mereo.core.inputs import check_streamed
from mereo.core.kernels.attention import attend
from mereo.core.kernels.clustered import Clustered, distances, gathered, over_prefixes, shares
from mereo.errors import UsageError, check_choice, check_finite, check_not_negative, check_positive, check_probability
from mereo.mechanisms.attention.local.sequence_blocks import SequencePositions, attend_blocks
from mereo.mechanisms.attention.sparse.clusters import Clusters, normalised

STRICT = ("never", "evaluation", "always")


def routing_attention(
    q: Tensor,
    k: Tensor | None,
    v: Tensor,
    centroids: Tensor,
    window: int,
    *,
    causal: bool = False,
    scale: float | None = None,
    mask: Tensor | None = None,
    strict: bool = False,
    coupling: Coupling | None = None,
) -> Tensor:
    """Attend inside clusters: each centroid takes the `window` queries and the `window` keys nearest to it.

    out_i = mean over the clusters c of query i of   sum_j softmax_j(scale <q_i, k_j>) v_j,   keys j of cluster c

    A query in no cluster, or without any key that it may attend to, becomes 0.

    Args:
        k: keys; None if queries and keys are the same, and share their clusters.
        centroids: of the clusters of each head.
        window: members of each cluster; all tokens if there are fewer.
        causal: whether keys behind the query are left out. Which tokens are members still depends on all tokens, as in
            the paper.
        scale: factor of the scores; 1 / sqrt(dim) by default.
        mask: bool (batch, tokens), True = takes part.
        strict: with `causal`, the clusters that query i attends in hold the nearest ones of tokens 0 to i, as when
            tokens come one by one: nothing depends on later tokens, at a cost that is quadratic.
        coupling: makes the couplings, for dropout and recording; plain softmax by default.

    Shapes:
        q (batch, heads, tokens, dim), k (batch, heads, senders, dim), v (batch, heads, senders, pose), centroids
        (heads, clusters, dim) -> (batch, heads, tokens, pose).

    Raises:
        UsageError: for shapes that do not fit together, and `strict` without `causal`.

    Reference: arXiv:2003.05997, section 4.1.
    """
    _check(q, k, v, centroids, causal, strict)
    check_positive(window=window)
    coupling = (
        Coupling("senders", topology=Causal() if causal and k is None else None) if coupling is None else coupling
    )
    check_finite(scale=scale)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    with torch.no_grad():
        of_queries = distances(q, centroids)
        of_keys = of_queries if k is None else distances(k, centroids)
    given = Clustered(q, k, v, of_queries, of_keys, window, coupling, scale, causal, mask)
    return over_prefixes(given) if strict else gathered(given)


def _check(q: Tensor, k: Tensor | None, v: Tensor, centroids: Tensor, causal: bool, strict: bool) -> None:
    keys = q if k is None else k
    fit = q.dim() == keys.dim() == v.dim() == 4 and v.shape[:3] == keys.shape[:3] and q.shape[:2] == keys.shape[:2]
    if not fit or keys.shape[-1] != q.shape[-1]:
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in (("q", q), ("k", keys), ("v", v)))
        raise UsageError(f"shapes are {shapes}; they must be (batch, heads, tokens, dim), with k and v of one length.")
    if centroids.dim() != 3 or (centroids.shape[0], centroids.shape[2]) != (q.shape[1], q.shape[3]):
        needed = f"({q.shape[1]}, clusters, {q.shape[3]})"
        raise UsageError(f"centroids are {tuple(centroids.shape)}; they must be {needed}, (heads, clusters, dim).")
    if not keys.shape[2] or not q.shape[2]:
        raise UsageError(f"q has {q.shape[2]} tokens and k {keys.shape[2]}; give at least one.")
    if causal and keys.shape[2] != q.shape[2]:
        raise UsageError(
            f"q has {q.shape[2]} tokens and k {keys.shape[2]}; with causal=True the numbers must be equal."
        )
    if strict and not causal:
        raise UsageError("strict is True with causal=False; without an order there is no past to keep to.")


class RoutingState(NamedTuple):
    """The state that routing attention carries from token to token; its size does not depend on how many it has read.

    Attributes:
        position: number of tokens read so far.
        local: keys and values of the block of the next token and the one before, (batch, heads, tokens, dim) each.
        apart: distances of the keys in each cluster, (batch, heads, clusters, window); infinite in empty places.
        keys, values: of each cluster, (batch, heads, clusters, window, dim).
        queries: distances of the nearest queries; the same as `apart` where queries are keys.
    """

    position: int
    local: tuple[Tensor, Tensor]
    apart: Tensor
    keys: Tensor
    values: Tensor
    queries: Tensor


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    module = RoutingAttention(12, 1, 2, clusters=2, window=3, block=16, causal=True, strict="always", positions=False)
    return module, (torch.randn(2, 9, 12),)


@mechanism(
    "routing_attention",
    family="sparse attention",
    over="senders",
    steps=2,
    values="shared",
    update="linear",
    source="arXiv:2003.05997",
    promises=("masks", "causal", "streaming", "any length"),
    sender_axes={"0": 1},
    receiver_axes={"0": 1, "output": 1},
    largest_input=1e15,  # queries times keys must fit float32
    interface="tokens",
    example=_example,
)
class RoutingAttention(nn.Module):
    """Replace each token by values of tokens nearby, in some heads, and of tokens of its clusters, in the others.

    q, k = LN(W_q x), LN(W_k x) without scale and bias,  v = W_v x  for each routed head

    out = W_o [local heads..., mean over the clusters c of a token of softmax(q k_c^T / sqrt(d)) v_c, ...]

    Every cluster holds the `window` queries and keys nearest to its centroid, so a token may be in several clusters or
    in none: its output is 0. Centroids follow the tokens in training, by k-means averaged over steps; they start at
    random, or by `start_clusters` from one batch.

    Args:
        dim: size of the tokens; a multiple of the number of heads.
        heads_local, heads_routed: heads of either kind; one of them may be 0.
        clusters: of each routed head.
        window: members of each cluster.
        block: tokens of a local block, `window` by default. A token sees its block and the one before; without
            `causal` the one behind as well.
        causal: whether a token attends to none behind it. Which tokens are in a cluster still depends on all of them.
        share_qk: whether routed queries are the keys too; as `causal` by default.
        strict: with `causal`, when the clusters of each token are made of it and those before, as in `step`, so that
            nothing depends on later tokens: "never", in "evaluation" only, or "always". Costs k dense attentions.
        routes: whether there are clusters; without them all heads are local, as in the first layers of some networks.
        positions: a learned bias by distance in local heads.
        decay: of the averages of the centroids, for each step of training.
        beta: factor of the loss that keeps tokens near their centroids.
        scale: of the scores of routed heads; 1 / sqrt(dim of a head) by default.
        attn_drop: dropout of the couplings.
        proj_drop: dropout of the output.

    Shapes: tokens (batch, tokens, dim), mask bool (batch, tokens), True = takes part -> (batch, tokens, dim).

    In training it adds the loss "clusters", beta mean |x - centroid of x|^2 summed over queries and keys.

    `step(token, state)` takes one token and equals `strict`; the state holds the members of the clusters so far.

    Reads as: couplings[b, h, r, s] is the share of token s in the output of head h for token r; `local_coupling` has
        the local heads, `coupling` the routed ones. Rows of a token that is in no cluster are 0.

    Deviates: scores are divided by sqrt(d), which the released code does not; relative positions are biases; a token
        becomes the exact mean over its clusters, where the released code divides by their number + 0.01.

    Reference: arXiv:2003.05997, section 4. Weights Xavier uniform.
    """

    def __init__(
        self,
        dim: int,
        heads_local: int = 4,
        heads_routed: int = 4,
        *,
        clusters: int = 8,
        window: int = 32,
        block: int | None = None,
        causal: bool = False,
        share_qk: bool | None = None,
        strict: str = "never",
        routes: bool = True,
        positions: bool = True,
        decay: float = 0.999,
        beta: float = 1e-4,
        scale: float | None = None,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        block = window if block is None else block
        check_positive(dim=dim, clusters=clusters, window=window, block=block)
        check_probability(attn_drop=attn_drop, proj_drop=proj_drop)
        heads = heads_local + heads_routed
        if min(heads_local, heads_routed) < 0 or not heads or dim % heads:
            raise UsageError(
                f"heads_local is {heads_local}, heads_routed {heads_routed} and dim {dim}; there must be at least one"
                " head, and dim must be a multiple of their number."
            )
        check_not_negative(beta=beta)
        check_choice("strict", strict, STRICT)
        if strict != "never" and not causal:
            raise UsageError(f"strict is {strict!r} with causal=False; without an order there is no past to keep to.")
        size = dim // heads
        if not routes:
            heads_local, heads_routed = heads, 0
        self.heads_local, self.heads_routed, self.window, self.block = heads_local, heads_routed, window, block
        self.causal, self.share_qk, self.strict = causal, causal if share_qk is None else share_qk, strict
        check_finite(scale=scale)
        self.scale, topology = size**-0.5 if scale is None else scale, Causal() if causal else None
        if heads_local:
            self.local_qkv = nn.Linear(dim, 3 * heads_local * size, bias=False)
            self.local_coupling = Coupling("senders", dropout=attn_drop)
            self.positions = SequencePositions(heads_local, block, causal) if positions else None
        if heads_routed:
            self.query = nn.Linear(dim, heads_routed * size, bias=False)
            self.key = None if self.share_qk else nn.Linear(dim, heads_routed * size, bias=False)
            self.value = nn.Linear(dim, heads_routed * size, bias=False)
            self.coupling = Coupling("senders", dropout=attn_drop, topology=topology if self.share_qk else None)
            self.clusters = Clusters(heads_routed, clusters, size, decay)
            self.commitment = AddedLoss("clusters", beta)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.proj_drop = nn.Dropout(proj_drop)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: Xavier uniform weights."""
        for linear in (each for each in self.modules() if isinstance(each, nn.Linear)):
            nn.init.xavier_uniform_(linear.weight)

    @property
    def is_causal(self) -> bool:
        """Whether nothing depends on later tokens in evaluation."""
        return self.causal and (self.strict != "never" or not self.heads_routed)

    @property
    def keeps_to_the_past(self) -> bool:
        """Whether the clusters of a token are made of it and those before in this mode."""
        return self.strict == "always" or (self.strict == "evaluation" and not self.training)

    def _heads(self, x: Tensor, heads: int) -> Tensor:
        """(batch, tokens, heads * dim) -> (batch, heads, tokens, dim)."""
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)

    def _local(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of the local heads."""
        q, k, v = self.local_qkv(tokens).chunk(3, -1)
        return self._heads(q, self.heads_local), self._heads(k, self.heads_local), self._heads(v, self.heads_local)

    def _routed(self, tokens: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Normalised queries and keys, and values, of the routed heads; no keys if the queries are the keys."""
        heads = self.heads_routed
        q = normalised(self.query(tokens).unflatten(-1, (heads, -1))).transpose(1, 2)
        k = None if self.key is None else normalised(self.key(tokens).unflatten(-1, (heads, -1))).transpose(1, 2)
        return q, k, self._heads(self.value(tokens), heads)

    def _follow(self, measured: list[tuple[Tensor, Tensor]], mask: Tensor | None) -> None:
        """Add the loss of queries and keys, and let the centroids follow them, in training.

        Args:
            measured: queries or keys with their distances.
        """
        nearest = [apart.argmin(2) for _, apart in measured]
        pairs = [(x, own) for (x, _), own in zip(measured, nearest, strict=True)]
        self.commitment(torch.stack([self.clusters.commitment(x, own, mask) for x, own in pairs]).sum())
        statistics = [self.clusters.assigned(x, own, mask) for x, own in pairs]
        counts, sums = (torch.stack(part).sum(0) for part in zip(*statistics, strict=True))
        self.clusters.follow(counts, sums)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        parts = []
        if not tokens.shape[1]:
            raise UsageError(f"RoutingAttention: tokens are {tuple(tokens.shape)}; give at least one token.")
        if self.heads_local:
            q, k, v = self._local(tokens)
            blocks = (self.block, self.local_coupling, self.causal, self.positions, mask)
            parts.append(attend_blocks(q, k, v, *blocks))
        if self.heads_routed:
            q, keys, v = self._routed(tokens)
            with torch.no_grad():
                apart = [distances(x, self.clusters.current()) for x in (q, keys) if x is not None]
            given = Clustered(
                q, keys, v, apart[0], apart[-1], self.window, self.coupling, self.scale, self.causal, mask
            )
            parts.append(over_prefixes(given) if self.keeps_to_the_past else gathered(given))
            if self.training:
                measured = [(x, own) for x, own in zip((q, keys), apart, strict=False) if x is not None]
                self._follow(measured, mask)
        merged = torch.cat(parts, 1).transpose(1, 2).flatten(2)
        out: Tensor = self.proj_drop(self.proj(merged))
        return out

    def step(self, token: Tensor, state: RoutingState | None = None) -> tuple[Tensor, RoutingState]:
        """The next token after `state`: (batch, dim) -> (batch, dim) and the state after it."""
        if not self.causal:
            raise UsageError("step needs causal=True; without it a token attends to those behind it as well.")
        check_streamed(type(self).__name__, token, "(batch, dim)", state, RoutingState, **self._sizes())
        token = token.unsqueeze(1)
        state = self._start(token) if state is None else state
        parts, local, lists = [], state.local, (state.apart, state.keys, state.values, state.queries)
        if self.heads_local:
            out, local = self._step_local(token, state)
            parts.append(out)
        if self.heads_routed:
            out, lists = self._step_routed(token, state)
            parts.append(out)
        merged = torch.cat(parts, 1).transpose(1, 2).flatten(2)
        return self.proj_drop(self.proj(merged)).squeeze(1), RoutingState(state.position + 1, local, *lists)

    def extend(self, tokens: Tensor, state: RoutingState | None = None) -> tuple[Tensor, RoutingState]:
        """The next tokens after `state`, one by one: (batch, at least 1, dim) -> the same, and the state."""
        parts = []
        for token in tokens.unbind(1):
            out, state = self.step(token, state)
            parts.append(out)
        if state is None or not parts:
            raise UsageError(f"RoutingAttention: tokens are {tuple(tokens.shape)}; give at least one token.")
        return torch.stack(parts, 1), state

    def _start(self, token: Tensor) -> RoutingState:
        """No tokens yet."""
        batch, size = token.shape[0], self.proj.in_features // (self.heads_local + self.heads_routed)
        clusters = self.clusters.centroids.shape[1] if self.heads_routed else 0
        none = token.new_empty(batch, self.heads_local, 0, size)
        shape = (batch, self.heads_routed, clusters, self.window)
        wide = torch.promote_types(torch.float32, token.dtype)
        apart = torch.full(shape, torch.inf, dtype=wide, device=token.device)
        members_of = token.new_zeros(*shape, size)
        return RoutingState(0, (none, none), apart, members_of, members_of, apart)

    def _sizes(self) -> dict[str, tuple[int | None, ...]]:
        """Sizes of the tensors of a state behind the batch."""
        size = self.proj.in_features // (self.heads_local + self.heads_routed)
        clusters = self.clusters.centroids.shape[1] if self.heads_routed else 0
        places = (self.heads_routed, clusters, self.window)
        members = (*places, size)
        return {
            "local": (self.heads_local, None, size), "apart": places, "keys": members, "values": members,
            "queries": places,
        }  # fmt: skip

    def _step_local(self, token: Tensor, state: RoutingState) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        q, k, v = self._local(token)
        keys, values = (torch.cat(pair, 2) for pair in zip(state.local, (k, v), strict=True))
        first = state.position + 1 - keys.shape[2]
        bias = None
        if self.positions is not None:
            senders = torch.arange(first - state.position, 1, device=token.device)
            bias = self.positions(senders).unsqueeze(1).to(q.dtype)
        out = attend(q, keys, values, self.local_coupling, bias=bias)
        kept = max(0, ((state.position + 1) // self.block - 1) * self.block) - first
        return out, (keys[:, :, max(kept, 0) :], values[:, :, max(kept, 0) :])

    def _step_routed(self, token: Tensor, state: RoutingState) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
        q, k, v = self._routed(token)
        new = distances(q, self.clusters.centroids)
        apart, (keys, values), inside = _admit(
            state.apart, new if k is None else distances(k, self.clusters.centroids),
            (state.keys, q if k is None else k), (state.values, v),
        )  # fmt: skip
        queries = apart
        if k is not None:
            queries, _, inside = _admit(state.queries, new)
        allowed = apart.isfinite()
        scores = (keys @ (q * self.scale).unsqueeze(2).mT).squeeze(-1)
        couplings = self.coupling.normalise(scores, allowed) * shares(inside, q)
        out = (couplings.unsqueeze(-1) * values).sum((2, 3)).unsqueeze(2)
        return out, (apart, keys, values, queries)

    def extra_repr(self) -> str:
        return (
            f"{self.proj.in_features}, heads_local={self.heads_local}, heads_routed={self.heads_routed}, "
            f"window={self.window}, block={self.block}, causal={self.causal}, share_qk={self.share_qk}"
        )


def _admit(apart: Tensor, new: Tensor, *pairs: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
    """Put a token into the clusters that it is nearer to than their farthest member.

    Args:
        apart: distances of the members, (batch, heads, clusters, window).
        new: distances of the new token, (batch, heads, clusters, 1).
        pairs: a tensor of the members, (batch, heads, clusters, window, dim), with the token's, (batch, heads, 1,
            dim).

    Returns: the new distances, the new members, and whether the token is one of them, bool (batch, heads, clusters, 1).
    """
    farthest, place = apart.max(-1, keepdim=True)
    inside = new < farthest
    put = inside & (torch.arange(apart.shape[-1], device=apart.device) == place)
    kept = tuple(torch.where(put.unsqueeze(-1), own.unsqueeze(2), those) for those, own in pairs)
    return torch.where(put, new, apart), kept, inside
