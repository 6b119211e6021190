"""SEA: linear attention estimates which keys matter to each query, and softmax attention runs over only those.

Source: Lee, Kim, Willette, Hwang 2024, arXiv:2310.01777.
Cost: for T tokens of D numbers a head, K columns and k keys a query: T D^2 ln D multiply-adds for the linear attention,
    5 T D^2 for the encoding, a few H T K for the decoder, and 2 T k D for the attention. Training against a teacher
    compares maps of T x T.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mereo.core import Coupling, mechanism
from mereo.core.kernels.column_attention import cannot_run, column_attention
from mereo.core.kernels.methods import execute
from mereo.core.squash import accumulation_type
from mereo.core.topology import KeyLists
from mereo.core.topology.base import LARGEST_DENSE
from mereo.errors import UsageError, check_choice, check_finite, check_positive
from mereo.mechanisms.attention.sparse import sea_mask
from mereo.mechanisms.attention.sparse.sea_estimate import KernelAttention, MapDecoder, PositionValues

QUERIES = 256
"""Queries whose lists of keys are gathered together."""


class SeaMaps(NamedTuple):
    """Intermediate results of SEA.

    Shapes: estimated (batch, heads, queries, columns), probabilities; kept bool of the same shape; mask bool (batch,
        heads, queries, keys); couplings (batch, heads, queries, keys), as used.
    """

    estimated: Tensor
    kept: Tensor
    mask: Tensor
    couplings: Tensor


class _Estimate(NamedTuple):
    """One call before the sparse attention: scores, kept keys, and two gates for each query."""

    scores: Tensor
    kept: Tensor
    scale: Tensor
    share: Tensor
    lengths: Tensor
    places: Tensor
    valid: Tensor | None
    causal: bool


class _Kept(NamedTuple):
    """Attention to the keys that an estimate keeps, times the first gate of each query."""

    q: Tensor
    k: Tensor
    v: Tensor
    given: _Estimate
    coupling: Coupling
    scale: float


def _dense(call: _Kept) -> Tensor:
    """Scores of all pairs, with a mask of the kept ones."""
    q, k, v, given, coupling, scale = call
    kept, seen = sea_mask.stretch(given.kept, given.lengths, given.places, given.causal, given.valid)
    return coupling((q * scale) @ k.mT, kept & seen, weight=given.scale.unsqueeze(-1)) @ v


def _first_valid(valid: Tensor) -> Tensor:
    """Numbers of the tokens, those that take part before padding: bool (batch, tokens) -> int64 (batch, tokens)."""
    return valid.to(torch.uint8).argsort(dim=1, descending=True, stable=True)


def _lists(call: _Kept) -> Tensor:
    """Scores of lists of keys; only these are ever made."""
    q, k, v, given, coupling, scale = call
    lists = sea_mask.listed(given.kept, given.lengths)
    if given.valid is not None:
        order = _first_valid(given.valid)[:, None, None, :].expand(*lists.shape[:3], -1)
        lists = order.gather(3, lists.clamp(min=0)).where(lists >= 0, -1)

    def rows_of(x: Tensor, here: Tensor) -> Tensor:
        index = here.clamp(min=0).flatten(2).unsqueeze(-1).expand(-1, -1, -1, x.shape[-1])
        return x.gather(2, index).unflatten(2, here.shape[2:])

    parts = list(zip((q * scale).split(QUERIES, 2), lists.split(QUERIES, 2), strict=True))
    scores = torch.cat([(rows_of(k, here) @ x.unsqueeze(-1)).squeeze(-1) for x, here in parts], 2)
    tiles = KeyLists(lists, k.shape[2])
    couplings = coupling(scores, lists >= 0, weight=given.scale.unsqueeze(-1), tiles=tiles)
    pieces = zip(couplings.split(QUERIES, 2), lists.split(QUERIES, 2), strict=True)
    return torch.cat([(c.unsqueeze(-2) @ rows_of(v, here)).squeeze(-2) for c, here in pieces], 2)


def _compiled(call: _Kept) -> Tensor:
    """Runs of keys in C++, for which the keys that are seen come first."""
    q, k, v, given, _, scale = call
    if given.valid is not None:
        index = _first_valid(given.valid)[:, None, :, None].expand_as(k)
        k, v = k.gather(2, index), v.gather(2, index)
    lengths = given.lengths.expand(q.shape[0], -1)
    return column_attention(q, k, v, given.kept, lengths, given.scale, scale)


def _compiled_cannot(call: _Kept) -> str | None:
    if call.coupling.watched:
        return "the couplings are observed"
    return cannot_run(call.q, call.k, call.v, call.given.scale)


METHODS: dict[str, tuple[Callable[[_Kept], Tensor], Callable[[_Kept], str | None]]] = {
    "compiled": (_compiled, _compiled_cannot),
    "dense": (_dense, lambda call: None),
    "lists": (_lists, lambda call: None),
}
"""Name -> (function, why it cannot run: None if it can), the preferred first."""


def map_losses(student: Tensor, teacher: Tensor) -> Tensor:
    """0.1 KL(teacher || student) + MSE of two maps of probabilities; the KL is a mean over queries.

    Shapes: (batch, heads, queries, keys) each -> scalar.
    """
    smallest = torch.finfo(teacher.dtype).tiny
    divergence = teacher * (teacher.clamp(min=smallest).log() - student.clamp(min=smallest).log())
    return 0.1 * divergence.sum(-1).mean() + (student - teacher).square().mean()


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return SeaAttention(2, 4, columns=8, top_k=2), tuple(torch.randn(2, 2, 9, 4) for _ in range(3))


@mechanism(
    "sea",
    family="sparse attention",
    over="senders",
    values="shared",
    update="linear",
    source="arXiv:2310.01777",
    promises=("any length",),  # a query may keep no key of a head, and then its couplings sum to zero
    lacks={
        "couplings only": "an average of the values is mixed in",
        "half precision": "rounding can change which keys are kept, and with them the output",
    },
    zero_gradients={"decoder.last.bias": "it adds the same to every column, and the softmax takes that out"},
    sender_axes={"0": 2, "1": 2, "2": 2},
    receiver_axes={"0": 2, "1": 2, "2": 2, "output": 1},
    largest_input=1e15,  # queries times keys must fit float32
    interface="qkv",
    example=_example,
)
class SeaAttention(nn.Module):
    """Attend to the keys that an estimate of the attention, made in linear time, ranks highest.

    z = GELU(LN(W [kernel attention(q, k, [position ; v]) ; v])),   P = softmax over K columns of decoder(z)

    keep the largest entries of P, k keys a query on average;   key j of n is in column floor((j + 1/2) K / n - 1e-4)

    out = s2 s1 softmax_j(q k_j^T / sqrt(D)) v_j + (1 - s2) mean of v,   j in kept columns,   (s1, s2) = sigmoid(W z)

    The mean weights the values by the estimate, stretched to all keys and averaged over the queries; when causal, it is
    the running mean. The kept keys have no gradient: the estimate learns from a teacher's attention and, through the
    mean, from the output.

    Args:
        num_heads, head_dim: H and D.
        columns: of the estimate, K; a multiple of 2, of 4 when causal.
        top_k: keys that a query keeps on average over its group, k. It may be changed later.
        causal: whether a query sees only itself and what comes before it.
        group: what shares one budget of keys: "causal_batch" a query over all heads, "query" a query of one head,
            "head" all queries of a head, "batch" a whole sample. Causal attention takes only the first.
        max_len: most tokens of causal attention, whose positions have a learned table.
        features: number of random features; int(D ln(D)) by default.
        scale: of the scores; D^-1/2 by default. Give 1 if queries are scaled already.
        method: "dense" attends with a mask over all keys, "lists" to lists of keys, "compiled" to runs of keys in C++
            (CPU, float32, without gradients); "auto" takes "compiled" if it can run and "dense" elsewhere, but
            "lists" where a recorded map would be too large.

    Shapes:
        q, k, v (batch, heads, tokens, head_dim); key_mask bool (batch, tokens) or (batch, 1, 1, tokens), or as large
        negative numbers that are added, not causal -> (batch, tokens, heads * head_dim); 0 for padding.

    Reads as: couplings[b, h, r, s]: s1 times the share of token s in what token r becomes in head h; 0 for keys that it
        does not keep. A sparse tensor where the map is large. In training, while they are recorded, `estimate` has the
        estimate stretched to all keys and `dense` the softmax over all of them, for the losses of `sea_matches`.

    Deviates: the convolution of size 1 of the causal decoder has no padding, since resizing what it pads would mix
        queries; the estimate that weights the mean is normalised over the keys. Unused tensors of the authors' code are
        left out, and so are the keys that it adds at random in training.

    Reference: arXiv:2310.01777, section 3; random features: arXiv:2009.14794. With both deviations undone, the
        estimate, the kept keys and the output equal the authors' code, causal or not, to 5e-7 in float32.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        columns: int = 128,
        top_k: float = 64,
        causal: bool = False,
        group: str = "causal_batch",
        max_len: int = 2048,
        features: int | None = None,
        scale: float | None = None,
        method: str = "auto",
    ) -> None:
        super().__init__()
        check_positive(num_heads=num_heads, head_dim=head_dim, columns=columns, top_k=top_k, max_len=max_len)
        check_choice("group", group, sea_mask.GROUPS)
        check_choice("method", method, ["auto", *METHODS])
        if columns % (4 if causal else 2):
            raise UsageError(f"columns is {columns}; it must be a multiple of {4 if causal else 2}.")
        if causal and group != "causal_batch":
            raise UsageError(
                f"group is {group!r} with causal=True; queries may not share a budget, give 'causal_batch'."
            )
        self.num_heads, self.head_dim, self.columns, self.top_k = num_heads, head_dim, columns, top_k
        self.causal, self.group, self.max_len, self.method = causal, group, max_len, method
        check_finite(scale=scale)
        self.scale = head_dim**-0.5 if scale is None else scale
        self.positions = nn.Parameter(torch.randn(max_len, head_dim)) if causal else PositionValues(head_dim)
        self.kernel = KernelAttention(head_dim, features, causal)
        self.encoder = nn.Sequential(nn.Linear(3 * head_dim, 2 * head_dim), nn.LayerNorm(2 * head_dim), nn.GELU())
        self.decoder = MapDecoder(head_dim, num_heads, columns, causal)
        self.gates = nn.Linear(2 * head_dim, 2)
        self.coupling, self.estimate, self.dense = Coupling("senders"), Coupling("senders"), Coupling("senders")

    def _check(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor | None:
        """The mask as bool (batch, tokens); UsageError for inputs that do not fit."""
        wanted = (self.num_heads, q.shape[2], self.head_dim)
        if not q.shape == k.shape == v.shape or q.shape[1:] != wanted:
            shapes = ", ".join(str(tuple(x.shape)) for x in (q, k, v))
            raise UsageError(
                f"q, k, v are {shapes}; each must be (batch, {self.num_heads}, tokens, {self.head_dim}), equally many."
            )
        if not q.shape[2]:
            raise UsageError("q has no tokens; give at least one.")
        if self.causal and q.shape[2] > self.max_len:
            raise UsageError(f"there are {q.shape[2]} tokens and max_len is {self.max_len}; give at most max_len.")
        if key_mask is None:
            return None
        if self.causal:
            raise UsageError("key_mask is given with causal=True; leave it out, later tokens are not seen anyway.")
        if key_mask.dim() == 4:
            key_mask = key_mask[:, 0, 0] if key_mask.shape[1:3] == (1, 1) else key_mask
        if key_mask.shape != (q.shape[0], q.shape[2]):
            raise UsageError(
                f"key_mask is {tuple(key_mask.shape)}; it must be {(q.shape[0], q.shape[2])} or with two axes of 1"
                " between them."
            )
        return key_mask if key_mask.dtype == torch.bool else key_mask > -1

    def _estimated(self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None) -> _Estimate:
        lengths, places = sea_mask.visible(q.shape[2], self.causal, valid, q.device)
        if isinstance(self.positions, nn.Parameter):
            ramp = self.positions[: q.shape[2]].unsqueeze(0)
        else:
            ramp = self.positions(places, lengths[:, :1])
            ramp = ramp if valid is None else ramp * valid.unsqueeze(-1)
        ramp = ramp.to(v.dtype).unsqueeze(1).expand(*v.shape[:2], -1, -1)
        context = self.kernel(q, k, torch.cat((ramp, v), -1), valid)
        z = self.encoder(torch.cat((context, v), -1))
        if valid is not None:
            z = z.masked_fill(~valid[:, None, :, None], 0.0)
        scores = self.decoder(z)
        kept = sea_mask.choose(scores.softmax(-1), lengths, self.top_k, self.group, causal=self.causal, valid=valid)
        scale, share = self.gates(z).sigmoid().unbind(-1)
        return _Estimate(scores, kept, scale, share, lengths, places, valid, self.causal)

    def _mean(self, v: Tensor, given: _Estimate) -> Tensor:
        """The mean of the values that is mixed in: (batch, heads, tokens or 1, head_dim)."""
        wide = v.to(accumulation_type(v))
        if self.causal:
            return (wide.cumsum(2) / given.lengths[..., None]).to(v.dtype)
        sizes = sea_mask.keys_of_columns(given.lengths, given.places, self.columns, given.valid).to(wide.dtype)
        estimated = given.scores.to(wide.dtype).softmax(-1)
        of_rows = (estimated @ sizes[:, None, :, None]).clamp(min=torch.finfo(wide.dtype).tiny)
        rows = torch.ones_like(of_rows) if given.valid is None else given.valid[:, None, :, None].to(wide.dtype)
        counts = rows.sum(2).clamp(min=1)
        weights = (estimated / of_rows * rows).sum(2) / counts  # (batch, heads, columns)
        index = sea_mask.column_of(given.places, given.lengths[:, :1].clamp(min=1), self.columns)
        each = weights.gather(2, index.unsqueeze(1).expand(*weights.shape[:2], -1))
        each = each if given.valid is None else each * given.valid.unsqueeze(1)
        return (each.unsqueeze(2) @ wide).to(v.dtype)

    def _observe(self, q: Tensor, k: Tensor, given: _Estimate) -> None:
        """Maps over all keys for a teacher's losses, while something records them in training."""
        if not self.training:
            return
        if self.estimate.watched:
            self.estimate(*sea_mask.stretch(given.scores, given.lengths, given.places, self.causal, given.valid))
        if self.dense.watched:
            _, seen = sea_mask.stretch(given.kept, given.lengths, given.places, self.causal, given.valid)
            self.dense((q * self.scale) @ k.mT, seen)

    def _mixed(self, q: Tensor, k: Tensor, v: Tensor, given: _Estimate) -> Tensor:
        method = self.method
        if method == "auto" and self.coupling.watched and q.shape[:3].numel() * q.shape[2] > LARGEST_DENSE:
            method = "lists"  # the map that is recorded would be too large
        attended = execute(METHODS, _Kept(q, k, v, given, self.coupling, self.scale), method, always="lists")
        share = given.share.unsqueeze(-1)
        out = share * attended + (1 - share) * self._mean(v, given)
        if given.valid is not None:
            out = out.masked_fill(~given.valid[:, None, :, None], 0.0)
        return out.transpose(1, 2).flatten(2)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        valid = self._check(q, k, v, key_mask)
        given = self._estimated(q, k, v, valid)
        self._observe(q, k, given)
        return self._mixed(q, k, v, given)

    def with_losses(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None = None,
        teacher_scores: Tensor | None = None,
        teacher_context: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, SeaMaps]:
        """The output, the losses against a teacher, and the maps on the way.

        loss = approx + prob + context:  0.1 KL(A || .) + MSE of the stretched estimate and of the dense softmax, with A
        the teacher's probabilities, and MSE of the outputs

        Shapes: teacher_scores (batch, heads, tokens, tokens), before the softmax, teacher_context (batch, tokens, heads
            * head_dim) -> (batch, tokens, heads * head_dim), scalar or None without a teacher, `SeaMaps`.
        """
        valid = self._check(q, k, v, key_mask)
        given = self._estimated(q, k, v, valid)
        out = self._mixed(q, k, v, given)
        stretched, seen = sea_mask.stretch(given.scores, given.lengths, given.places, self.causal, valid)
        mask = sea_mask.stretch(given.kept, given.lengths, given.places, self.causal, valid)[0] & seen
        dense = (q * self.scale) @ k.mT
        couplings = self.coupling.normalise(dense, mask) * given.scale.unsqueeze(-1)
        losses = []
        if teacher_scores is not None:
            rows = slice(None) if valid is None else valid.unsqueeze(1).expand(-1, self.num_heads, -1)
            teacher = self.coupling.normalise(teacher_scores, seen)[rows]
            losses += [map_losses(self.coupling.normalise(x, seen)[rows], teacher) for x in (stretched, dense)]
        if teacher_context is not None:
            losses.append((out - teacher_context).square().mean())
        loss = torch.stack(losses).sum() if losses else None
        return out, loss, SeaMaps(given.scores.softmax(-1), given.kept, mask, couplings)

    def extra_repr(self) -> str:
        return (
            f"num_heads={self.num_heads}, head_dim={self.head_dim}, columns={self.columns}, top_k={self.top_k},"
            f" causal={self.causal}, group={self.group!r}"
        )


__all__: Sequence[str] = ["SeaAttention", "SeaMaps", "map_losses"]
