"""RCMHA: causal attention with short convolutions over time and learned scores of relative positions.

Source: Sugiharto, Aradea, Mubarok 2023, arXiv:2308.03429. Where the paper leaves the equations open, the released code
decides. Convolutions are from Primer (arXiv:2109.08668), relative scores and memory from Transformer-XL
(arXiv:1901.02860).
Cost: R S D multiplications each for scores, relative scores and combination of R tokens that attend to S, and 9 S D for
the convolutions. The relative scores take one map of (R, S + 1) numbers a head; shifting its rows copies nothing.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mereo.core import Causal, Coupling, mechanism
from mereo.core.inputs import check_streamed
from mereo.core.kernels.attention import attend
from mereo.errors import UsageError, check_count, check_heads, check_probability


def shift_rows(scores: Tensor, senders: int) -> Tensor:
    """Scores by offset -> scores by sender, as a view: out[i, j] = scores[i, j - i + receivers].

    Column c of row i has offset c - senders. An entry beyond the end of its row, a sender behind its receiver where
    there are only offsets up to 0, continues in the next row and must be masked.

    Shapes: (..., receivers, at least senders + 1) -> (..., receivers, senders).
    """
    receivers, width = scores.shape[-2:]
    return scores.flatten(-2)[..., receivers:].unflatten(-1, (receivers, width - 1))[..., :senders]


def relative_scores(q: Tensor, table: Tensor, bias: Tensor, senders: int) -> Tensor:
    """Scores by how far each sender is before its receiver; receivers are the last ones of the senders.

    s_ij = q_i . R[P + r] + b[P + r],   r = j - (i + senders - receivers), for -P < r <= 0; -inf for r <= -P where there
    are more than P senders; senders behind must be masked

    Shapes: q (batch, heads, receivers, dim), table (2 P, heads, dim), bias (2 P, heads)
        -> (batch, heads, receivers, senders).
    """
    batch, _, receivers, _ = q.shape
    reach = len(table) // 2
    beyond = senders + 1 - reach if senders > reach else 0
    offsets = slice(reach - senders + beyond, reach + 1)
    added, vectors = bias[offsets].T.unsqueeze(1), table[offsets].permute(1, 2, 0)
    by_offset = torch.baddbmm(added, q.transpose(0, 1).flatten(1, 2), vectors)
    if beyond:
        by_offset = F.pad(by_offset, (beyond, 0), value=-torch.inf)
    return shift_rows(by_offset.unflatten(1, (batch, receivers)).transpose(0, 1), senders)


class RelativeState(NamedTuple):
    """The state between parts of a sequence.

    Attributes:
        keys, values: of the tokens that the next one can attend to, at most reach - 1, convolved,
            (batch, heads, tokens, dim / heads) each.
        last: queries, keys and values of the last tokens before the convolutions, which the next ones still read,
            (batch, kernel - 1, dim) each.
    """

    keys: Tensor
    values: Tensor
    last: tuple[Tensor, Tensor, Tensor]


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return RelativeConvolutionalAttention(12, 3, reach=16), (torch.randn(2, 7, 12),)


@mechanism(
    "rcmha",
    family="dense attention",
    over="senders",
    values="shared",
    update="linear",
    source="arXiv:2308.03429",
    promises=("normalised", "causal", "streaming", "any length"),
    zero_gradients={"key_conv.bias": "it adds the same to every score of a receiver, and the softmax takes that out"},
    sender_axes={"0": 1},
    receiver_axes={"0": 1, "output": 1},
    largest_input=1e15,  # queries times keys must fit float32
    interface="tokens",
    example=_example,
)
class RelativeConvolutionalAttention(nn.Module):
    """Attend to each token and those before it, by convolved queries and keys and by how far apart they are.

    q, k, v = conv(W_q x), conv(W_k y), conv(W_v y + b_v)   for each head;   y = [memory, x]

    s_ij = ((q_i + u) . k_j + q_i . R_r + b_r) / sqrt(D / heads),   r = j - i - |memory|

    out = W_o [softmax(s) v, ...] + b_o

    A convolution has one filter for each channel of a head, which all heads share, and reads the token and those before
    it; zeros are before the first.

    Args:
        dim: D, size of the tokens.
        num_heads: divides `dim`.
        kernel: tokens that a convolution reads; 0 for no convolutions.
        reach: P, most tokens that one can attend to, itself included; 0 for no relative scores and no limit. Both 0 is
            multi-head attention (MHA), `kernel` 0 is RMHA, and `reach` 0 is MDHA.
        attn_drop: dropout of the couplings.

    Shapes: tokens (batch, tokens, dim), memory (batch, past, dim) or None, visible bool (batch, past + tokens) or None,
        False for padding, which no token attends to and which is convolved as zeros -> (batch, tokens, dim).

    The memory is Transformer-XL's: the inputs of this layer before the first token. Keys and values are convolved over
    memory and tokens, queries over the tokens alone, so the first `kernel` - 1 outputs differ from one pass over both.
    `step(token, state)` and `extend(tokens, state)` keep the last queries as well and equal one pass. Beyond `reach`,
    where one pass is refused, they forget: each token attends to the last P alone.

    Reads as: couplings[b, h, r, s] is the share of sender s in the output of head h for token r; the first senders are
        the memory.

    Deviates: padding is convolved as zeros, like what is before the start; the released code hides it in the scores
        only. The tables have P entries for later senders, as in the released code, which nothing reads.

    Reference: arXiv:2308.03429, section 3. R, b and u start at zero, all else as PyTorch's layers do.
    """

    def __init__(
        self, dim: int, num_heads: int = 8, *, kernel: int = 3, reach: int = 4096, attn_drop: float = 0.0
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        check_probability(attn_drop=attn_drop)
        check_count(kernel=kernel, reach=reach)
        size = dim // num_heads
        self.num_heads, self.kernel, self.reach = num_heads, kernel, reach
        self._before = max(kernel - 1, 0)
        self.query, self.key = (nn.Linear(dim, dim, bias=False) for _ in range(2))
        self.value, self.proj = nn.Linear(dim, dim), nn.Linear(dim, dim)
        if kernel:
            self.query_conv, self.key_conv, self.value_conv = (
                nn.Conv2d(size, size, (kernel, 1), groups=size) for _ in range(3)
            )
        if reach:
            self.query_bias = nn.Parameter(torch.zeros(num_heads, size))
            self.table = nn.Parameter(torch.zeros(2 * reach, num_heads, size))
            self.table_bias = nn.Parameter(torch.zeros(2 * reach, num_heads))
        self.coupling = Coupling("senders", dropout=attn_drop, topology=Causal())

    def _read(self, tokens: Tensor, context: Tensor) -> list[Tensor]:
        """Queries of the tokens, keys and values of the context, (batch, tokens or senders, dim) each."""
        if not tokens.shape[1]:
            raise UsageError(f"{type(self).__name__}: tokens are {tuple(tokens.shape)}; give at least one token.")
        return [self.query(tokens), self.key(context), self.value(context)]

    def _heads(self, name: str, x: Tensor) -> Tensor:
        """Convolve and split into heads: (batch, kernel - 1 + tokens, dim) -> (batch, heads, tokens, dim / heads)."""
        maps = x.unflatten(-1, (self.num_heads, -1)).permute(0, 3, 1, 2)  # channels, tokens, heads
        return (self.get_submodule(f"{name}_conv")(maps) if self.kernel else maps).permute(0, 3, 2, 1)

    def _exchange(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None = None) -> Tensor:
        """Attend, merge heads and project: (batch, heads, tokens or senders, dim / heads) -> (batch, tokens, dim)."""
        scale, mask = q.shape[-1] ** -0.5, None if visible is None else visible[:, None, None, :]
        q, bias = q * scale, None
        if self.reach:
            bias = relative_scores(q, self.table, self.table_bias * scale, k.shape[2])
            q = q + self.query_bias.unsqueeze(1) * scale
        mixed = attend(q, k, v, self.coupling, mask=mask, bias=bias, scale=1.0)
        return self.proj(mixed.transpose(1, 2).flatten(2))

    def forward(self, tokens: Tensor, memory: Tensor | None = None, visible: Tensor | None = None) -> Tensor:
        context = tokens if memory is None else torch.cat((memory, tokens), 1)
        if 0 < self.reach < context.shape[1]:
            raise UsageError(
                f"reach is {self.reach}, and there are {context.shape[1]} tokens to attend to; give fewer, or a larger"
                " one, or read them by extend, which forgets the first ones."
            )
        parts = self._read(tokens, context)
        if visible is not None:
            parts = [part.masked_fill(~visible[:, -part.shape[1] :, None], 0) for part in parts]
        parts = [F.pad(part, (0, 0, self._before, 0)) for part in parts]
        q, k, v = map(self._heads, ("query", "key", "value"), parts)
        return self._exchange(q, k, v, visible)

    def extend(self, tokens: Tensor, state: RelativeState | None = None) -> tuple[Tensor, RelativeState]:
        """The next tokens after `state`: their outputs, and the state after them."""
        kept, dim = self._before, self.proj.in_features
        size = (self.num_heads, None, dim // self.num_heads)
        shapes = {"keys": size, "values": size, "last": (kept, dim)}
        check_streamed(type(self).__name__, tokens, "(batch, tokens, dim)", state, RelativeState, **shapes)
        before = (tokens.new_zeros(tokens.shape[0], kept, tokens.shape[2]),) * 3 if state is None else state.last
        joined = [torch.cat(pair, 1) for pair in zip(before, self._read(tokens, tokens), strict=True)]
        q, k, v = map(self._heads, ("query", "key", "value"), joined)
        if state is not None:
            k, v = torch.cat((state.keys, k), 2), torch.cat((state.values, v), 2)
        last = [part[:, part.shape[1] - kept :] for part in joined]
        out, forgotten = self._exchange(q, k, v), max(k.shape[2] + 1 - self.reach, 0) if self.reach else 0
        return out, RelativeState(k[:, :, forgotten:], v[:, :, forgotten:], (last[0], last[1], last[2]))

    def step(self, token: Tensor, state: RelativeState | None = None) -> tuple[Tensor, RelativeState]:
        """One token: (batch, dim) and the state before it -> (batch, dim) and the state behind it."""
        out, state = self.extend(token.unsqueeze(1), state)
        return out.squeeze(1), state

    def extra_repr(self) -> str:
        return f"{self.proj.in_features}, num_heads={self.num_heads}, kernel={self.kernel}, reach={self.reach}"
