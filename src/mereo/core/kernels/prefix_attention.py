"""Softmax attention of one query to every prefix of a sequence, in five forms that are equal.

    out_k = sum_{i<=k} exp(s_i) v_i / sum_{i<=k} exp(s_i)                                        arXiv:2405.13956

Tokens of any set are summed up by (m, u, w): the largest score, and the sums of exp(s - m) and of exp(s - m) v. Two
summaries of disjoint sets add up to the summary of both. The sequential form adds a token at a time; the scan adds the
summary 1, 2, 4 ... tokens before to each; the cumulative one has log u by a sum of exponentials and scans outputs only;
the block form multiplies couplings and values inside blocks, and scans the summaries of blocks; the compiled form is
the sequential one in C++. Sums are in float32 or wider.

Cost: N (E + 2) operations for N tokens of E numbers one by one; log2 N times more by the scan; 2 b N E FLOPs by
blocks of b, which are matrix products. Compiled, values and outputs pass through memory once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mereo.core.kernels.methods import compiled_cannot, execute
from mereo.core.kernels.prefix_attention_compiled import prefixes_compiled
from mereo.core.squash import accumulation_type
from mereo.errors import UsageError

BLOCK = 32


class Summary(NamedTuple):
    """What a set of tokens is for attention: `top` (...), `total` (...) and `values` (..., dim), see above.

    Without tokens, top is -inf and the others are 0.
    """

    top: Tensor
    total: Tensor
    values: Tensor

    @property
    def output(self) -> Tensor:
        """What the query becomes: (..., dim); 0 without tokens."""
        return self.values / self.total.clamp(min=torch.finfo(self.total.dtype).tiny).unsqueeze(-1)


def add(one: Summary, other: Summary) -> Summary:
    """The summary of the tokens of both."""
    top = torch.maximum(one.top, other.top).detach()
    finite = top.clamp(min=torch.finfo(top.dtype).min)
    first, second = (one.top - finite).exp(), (other.top - finite).exp()
    values = one.values * first.unsqueeze(-1) + other.values * second.unsqueeze(-1)
    return Summary(top, one.total * first + other.total * second, values)


def no_tokens(scores: Tensor, values: Tensor) -> Summary:
    """The summary of no token, for scores (..., tokens) and values (..., tokens, dim)."""
    dtype = accumulation_type(values)
    empty = torch.zeros(scores.shape[:-1], dtype=dtype, device=scores.device)
    return Summary(empty - torch.inf, empty, empty.new_zeros((*scores.shape[:-1], values.shape[-1])))


@dataclass(frozen=True)
class Prefixes:
    """One call.

    Attributes:
        scores: (..., tokens); -inf leaves a token out.
        values: (..., tokens, dim).
        before: the summary of the tokens before the first one.
        block: tokens of a block.
    """

    scores: Tensor
    values: Tensor
    before: Summary
    block: int = BLOCK

    @property
    def wide(self) -> tuple[Tensor, Tensor]:
        """Scores and values in the type of sums."""
        dtype = accumulation_type(self.values)
        return self.scores.to(dtype), self.values.to(dtype)


Result = tuple[Tensor, Summary]


def _leaf(scores: Tensor, values: Tensor) -> Summary:
    there = (scores > -torch.inf).to(values.dtype)
    return Summary(scores, there, values * there.unsqueeze(-1))


def sequential(given: Prefixes) -> Result:
    """A token at a time: the definition."""
    scores, values = given.wide
    current, outputs = given.before, []
    for k in range(scores.shape[-1]):
        current = add(current, _leaf(scores[..., k], values[..., k, :]))
        outputs.append(current.output)
    out = torch.stack(outputs, -2) if outputs else values
    return out.to(given.values.dtype), current


def _shifted(summary: Summary, by: int) -> Summary:
    """The summary `by` places before each; the summary of no token before the first ones."""
    top, total = (
        F.pad(x, (by, 0), value=fill)[..., :-by] for x, fill in ((summary.top, -torch.inf), (summary.total, 0))
    )
    return Summary(top, total, F.pad(summary.values, (0, 0, by, 0))[..., :-by, :])


def _inclusive(leaves: Summary) -> Summary:
    """The summary of each element and those before it, by doubling: ceil(log2 N) rounds."""
    by = 1
    while by < leaves.top.shape[-1]:
        leaves = add(_shifted(leaves, by), leaves)
        by *= 2
    return leaves


def _widened(before: Summary) -> Summary:
    return Summary(before.top.unsqueeze(-1), before.total.unsqueeze(-1), before.values.unsqueeze(-2))


def _last(summary: Summary, before: Summary) -> Summary:
    if summary.top.shape[-1] == 0:
        return before
    return Summary(summary.top[..., -1], summary.total[..., -1], summary.values[..., -1, :])


def scan(given: Prefixes) -> Result:
    """Every prefix by doubling."""
    prefixes = add(_widened(given.before), _inclusive(_leaf(*given.wide)))
    return prefixes.output.to(given.values.dtype), _last(prefixes, given.before)


def cumulative(given: Prefixes) -> Result:
    """out_k = a_k out_(k-1) + (1 - a_k) v_k, a_k = u_(k-1) / u_k, with log u by a cumulative sum of exponentials."""
    scores, values = given.wide
    tiny, least = torch.finfo(scores.dtype).tiny, torch.finfo(scores.dtype).min
    start = (given.before.total.clamp(min=tiny).log() + given.before.top).unsqueeze(-1)
    logs = torch.logcumsumexp(torch.cat((start, scores), -1).clamp(min=least), -1)
    there = scores > -torch.inf
    kept = torch.where(there, (logs[..., :-1] - logs[..., 1:]).exp(), 1.0)
    own = torch.where(there, (scores.masked_fill(~there, least) - logs[..., 1:]).exp(), 0.0)
    factors, out = kept, own.unsqueeze(-1) * values
    by = 1
    while by < scores.shape[-1]:
        earlier = F.pad(out, (0, 0, by, 0))[..., :-by, :]
        out = out + factors.unsqueeze(-1) * earlier
        factors = factors * F.pad(factors, (by, 0), value=1.0)[..., :-by]
        by *= 2
    out = out + factors.unsqueeze(-1) * given.before.output.unsqueeze(-2)
    if scores.shape[-1] == 0:
        return out.to(given.values.dtype), given.before
    top = torch.maximum(given.before.top, scores.amax(-1)).detach()
    total = (logs[..., -1] - top.clamp(min=least)).exp() * (top > -torch.inf)
    return out.to(given.values.dtype), Summary(top, total, out[..., -1, :] * total.unsqueeze(-1))


def blocks(given: Prefixes) -> Result:
    """Products inside blocks, and a scan of the summaries of blocks."""
    scores, values = given.wide
    tokens = scores.shape[-1]
    if tokens == 0:
        return given.values, given.before
    size = min(given.block, tokens)
    scores = F.pad(scores, (0, -tokens % size), value=-torch.inf).unflatten(-1, (-1, size))
    values = F.pad(values, (0, 0, 0, -tokens % size)).unflatten(-2, (-1, size))
    tops = scores.cummax(-1).values.detach()
    finite = tops.clamp(min=torch.finfo(tops.dtype).min)
    later = torch.ones(size, size, dtype=torch.bool, device=scores.device).triu(1)
    # What each token adds to each prefix of its block, over exp(top): (..., blocks, prefixes, tokens).
    parts = (scores.unsqueeze(-2) - finite.unsqueeze(-1)).masked_fill(later, -torch.inf).exp()
    inside = Summary(tops, parts.sum(-1), parts @ values)
    whole = Summary(tops[..., -1], inside.total[..., -1], inside.values[..., -1, :])
    earlier = add(_widened(given.before), _shifted(_inclusive(whole), 1))
    prefixes = add(_widened(earlier), inside)
    flat = Summary(prefixes.top.flatten(-2), prefixes.total.flatten(-2), prefixes.values.flatten(-3, -2))
    cut = Summary(flat.top[..., :tokens], flat.total[..., :tokens], flat.values[..., :tokens, :])
    return cut.output.to(given.values.dtype), _last(cut, given.before)


def compiled(given: Prefixes) -> Result:
    """A token at a time in C++."""
    values, before = given.values, given.before
    lead = values.shape[:-2]
    shape = lead if len(lead) == 2 else torch.Size((1, *lead)) if len(lead) == 1 else torch.Size((lead.numel(), 1))
    summary = (x.reshape(*shape, *x.shape[len(lead) :]) for x in before)
    out, *last = prefixes_compiled(
        given.scores.reshape(*shape, -1), values.reshape(*shape, *values.shape[-2:]), *summary
    )
    return out.view(values.shape), Summary(*(x.view_as(y) for x, y in zip(last, before, strict=True)))


def _compiled_cannot(given: Prefixes) -> str | None:
    if not given.values.numel():
        return "it has no numbers"
    return compiled_cannot(given.scores, given.values)


METHODS: dict[str, tuple[Callable[[Prefixes], Result], Callable[[Prefixes], str | None]]] = {
    "compiled": (compiled, _compiled_cannot),
    "block": (blocks, lambda given: None),
    "scan": (scan, lambda given: None),
    "cumulative": (cumulative, lambda given: None),
    "sequential": (sequential, lambda given: None),
}
"""Name -> (function, why it cannot run: None if it can), the preferred first."""


def prefixes(given: Prefixes, method: str = "auto") -> Result:
    """The output of each prefix (..., tokens, dim), and the summary of all tokens."""
    shape, before = given.values.shape, given.before
    sizes = [shape[:-2], shape[:-2], shape[:-2] + shape[-1:]]
    if [x.shape for x in before] != sizes:
        raise UsageError(
            f"the summary before is {[tuple(x.shape) for x in before]}; it must be {[*map(tuple, sizes)]}."
        )
    return execute(METHODS, given, method, always="block")
