"""Combiner: attention to every token, to a few directly and to the rest by summaries of regions.

Source: Ren, H. Dai, Z. Dai, Yang, Leskovec, Schuurmans, B. Dai 2021, arXiv:2107.05768.
Cost: N (s + N / s) scores a head for N tokens in blocks of s, least at s = sqrt(N); N log2 N for the plan "logsparse";
    N (n + 2 m) for an image of n x m. Couplings over all pairs are made only while they are recorded.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from mereo.core import Causal, Coupling, mechanism
from mereo.core.squash import accumulation_type
from mereo.errors import UsageError, check_choice, check_heads, check_probability
from mereo.mechanisms.attention.sparse.plans import PLANS, POOLS, Joint, Learned, LogSparse, Plan


def plan_of(plan: str, size: int | None = None, regions: Tensor | None = None) -> Plan:
    """A plan by its name.

    Args:
        size: tokens of a block for "fixed", of a row for the axial plans; None for the square root of their number.
        regions: of each token, for "learned".
    """
    check_choice("plan", plan, PLANS)
    if (regions is not None) != (plan == "learned"):
        raise UsageError(f"regions are {'given' if regions is not None else None} with plan {plan!r}; only 'learned' "
                         "takes them, and needs them.")  # fmt: skip
    if regions is not None:
        return Learned(regions)
    if plan == "logsparse":
        if size is not None:
            raise UsageError(f"size is {size} with plan 'logsparse', whose regions have every power of two; leave it.")
        return LogSparse()
    return PLANS[plan](size)  # type: ignore[call-arg]


def combiner_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Plan | str,
    causal: bool = False,
    pool: str = "max",
    return_probs: bool = False,
    *,
    dropout: float = 0.0,
    project: Callable[[Tensor], Tensor] | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attend to every token by a factorised expectation.

    out_i = sum_j p(j | i) v_j,   Z_i = sum_{j in D_i} exp(<q_i, k_j> / sqrt(d)) + sum_R exp(<q_i, k_R> / sqrt(d))

    p(j | i) = exp(<q_i, k_j> / sqrt(d)) / Z_i   for direct tokens j in D_i

    p(j | i) = exp(<q_i, k_R> / sqrt(d)) / Z_i softmax_{j in R}(<q_R, k_j> / sqrt(d))   for j in a region R

    with q_R and k_R the largest entries of the queries and keys of R. Every token is either direct or in one region.

    Args:
        plan: direct tokens and regions, such as `Fixed(16)`, or a name of `PLANS`, with sizes of sqrt(tokens).
        causal: whether tokens behind the query are left out.
        pool: how the queries and keys of a region become one, "max" or "mean".
        return_probs: also return p, at a cost that is quadratic and more.
        dropout: probability with which a weight of the joint softmax is dropped.
        project: for the plan "axial_rowmajor", what makes keys (batch, heads, tokens, dim) of the attention of each
            token to its row (batch, heads, tokens, pose); by default the key of a row is pooled.

    Shapes: q, k (batch, heads, tokens, dim), v (batch, heads, tokens, pose) -> (batch, heads, tokens, pose), and
        (batch, heads, tokens, tokens), at least float32.

    Reference: arXiv:2107.05768, eq. 3 to 6.
    """
    if isinstance(plan, str):
        plan = plan_of(plan)
    check_choice("pool", pool, POOLS)
    check_probability(dropout=dropout)
    if q.dim() != 4 or k.shape != q.shape or v.dim() != 4 or v.shape[:3] != q.shape[:3] or not q.shape[2]:
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in (("q", q), ("k", k), ("v", v)))
        raise UsageError(f"shapes are {shapes}; they must be (batch, heads, tokens, dim), at least one token, q as k.")
    wide = accumulation_type(q)
    q, k, values = q.to(wide), k.to(wide), v.to(wide)
    out = plan.mix(Joint(q, k, values, causal, pool, dropout, project)).to(v.dtype)
    if not return_probs:
        return out
    return out, _probabilities(plan, Joint(q, k, values, causal, pool, project=project))


def _probabilities(plan: Plan, given: Joint) -> Tensor:
    """p(j | i): the expectation of one-hot vectors, (batch, heads, tokens, tokens)."""
    tokens = given.q.shape[2]
    each = torch.eye(tokens, dtype=given.q.dtype, device=given.q.device).expand(*given.q.shape[:2], -1, -1)
    return plan.mix(replace(given, carried=each))


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return CombinerAttention(12, 3, size=3, causal=True), (torch.randn(2, 8, 12),)


@mechanism(
    "combiner",
    family="sparse attention",
    over="senders",
    values="shared",
    update="linear",
    source="arXiv:2107.05768",
    promises=("normalised", "causal", "any length"),
    sender_axes={"0": 1},
    receiver_axes={"0": 1, "output": 1},
    largest_input=1e15,  # queries times keys must fit float32
    interface="tokens",
    example=_example,
)
class CombinerAttention(nn.Module):
    """Replace each token by a weighted sum of the values of all tokens, most of them weighted as regions.

    q, k, v = W x   for each head;   out = W_o [combiner(q, k, v), ...]

    Args:
        dim: size of the tokens.
        num_heads: independent sets of couplings; divides `dim`.
        plan: "fixed" (blocks), "logsparse", "axial_vertical", "axial_horizontal", "axial_rowmajor", "axial_mixture", or
            "learned", whose regions are an input.
        size: tokens of a block, or of a row; the square root of their number by default. Any number of tokens fits;
            "logsparse" has none.
        causal: each token attends to itself and those before it.
        pool: how the queries and keys of a region become one, "max" or "mean".
        qkv_bias: biases of the projections to queries, keys and values.
        attn_drop: dropout of the weights of direct tokens and regions.
        proj_drop: dropout of the output.

    Shapes: tokens (batch, tokens, dim), regions int64 (tokens,), (batch, tokens) or (batch, heads, tokens), for the
        plan "learned" only -> (batch, tokens, dim).

    Reads as: couplings[b, h, r, s] is the share of token s in the output of head h for token r, whether it comes
        directly or by a region; above 0 for every token that it may attend to.

    Deviates: `pool` has no learned network (DeepSets). The key of a row in "axial_rowmajor" is learned, as in the
        released code: W_2 LN(x + W_1 a) of the token x and its attention a to the row, with an epsilon of 1e-5, for
        1e-6. "axial_mixture" is the mean of two attentions, where the released code has one softmax over the items of
        both, in which a token may be counted twice.

    Reference: arXiv:2107.05768. Weights normal of 0.02. Every plan equals loops over the paper's regions; the released
        code was read, and not run.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        plan: str = "fixed",
        size: int | None = None,
        causal: bool = False,
        pool: str = "max",
        qkv_bias: bool = False,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        check_probability(attn_drop=attn_drop, proj_drop=proj_drop)
        check_choice("plan", plan, PLANS)
        check_choice("pool", pool, POOLS)
        self._plan = None if plan == "learned" else plan_of(plan, None if plan == "logsparse" else size)
        self.num_heads, self.plan, self.size, self.causal, self.pool = num_heads, plan, size, causal, pool
        self.attn_drop = attn_drop
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        learned_keys = plan == "axial_rowmajor"
        self.region_in = nn.Linear(dim, dim, bias=False) if learned_keys else None
        self.region_norm = nn.LayerNorm(dim) if learned_keys else None
        self.region_out = nn.Linear(dim, dim, bias=False) if learned_keys else None
        self.coupling = Coupling("senders", topology=Causal() if causal else None)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.proj_drop = nn.Dropout(proj_drop)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise: normal weights of 0.02, biases of zero."""
        for linear in (each for each in self.modules() if isinstance(each, nn.Linear)):
            nn.init.normal_(linear.weight, std=0.02)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def _project(self, tokens: Tensor) -> Callable[[Tensor], Tensor] | None:
        """The projection from rows to keys, for the plan that learns them."""
        if self.region_in is None or self.region_norm is None or self.region_out is None:
            return None
        inner, norm, outer = self.region_in, self.region_norm, self.region_out

        def project(seen: Tensor) -> Tensor:
            merged = seen.transpose(1, 2).flatten(2).to(tokens.dtype)
            keys = outer(norm(tokens + inner(merged)))
            return keys.unflatten(-1, (self.num_heads, -1)).transpose(1, 2).to(seen.dtype)

        return project

    def forward(self, tokens: Tensor, regions: Tensor | None = None) -> Tensor:
        plan = self._plan
        if plan is None or regions is not None:
            plan = plan_of(self.plan, self.size, regions)
        if not tokens.shape[1]:
            raise UsageError(f"CombinerAttention: tokens are {tuple(tokens.shape)}; give at least one token.")
        q, k, v = self.qkv(tokens).unflatten(-1, (3, self.num_heads, -1)).transpose(1, 3).unbind(2)
        dropout, project = self.attn_drop if self.training else 0.0, self._project(tokens)
        if self.coupling.watched:
            out = self._coupled(q, k, v, plan, dropout, project)
        else:
            mixed = combiner_attention(q, k, v, plan, self.causal, self.pool, dropout=dropout, project=project)
            assert isinstance(mixed, Tensor)
            out = mixed
        return self.proj_drop(self.proj(out.transpose(1, 2).flatten(2)))

    def _coupled(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        plan: Plan,
        dropout: float,
        project: Callable[[Tensor], Tensor] | None,
    ) -> Tensor:
        """The same, by couplings over all pairs of tokens: their logarithms are scores with this softmax."""
        wide = accumulation_type(q)
        given = Joint(q.to(wide), k.to(wide), v.to(wide), self.causal, self.pool, dropout, project)
        shares = _probabilities(plan, replace(given, dropout=0.0))
        weight = None
        if dropout:
            weight = torch.where(shares > 0, _probabilities(plan, given) / shares, 0)
        scores = shares.clamp(min=torch.finfo(wide).tiny).log()
        return (self.coupling(scores, weight=weight) @ given.v).to(v.dtype)

    def extra_repr(self) -> str:
        parts = [str(self.qkv.in_features), f"num_heads={self.num_heads}", f"plan={self.plan!r}"]
        parts += [f"size={self.size}"] if self.size is not None else []
        return ", ".join([*parts, f"causal={self.causal}"])
