"""Channel group attention: the channels of a group attend to each other, compared over all tokens of the image.

Source: Ding et al. 2022, arXiv:2204.03645, section 3.3; scale "tokens": Xiao et al. 2023, arXiv:2311.06242.
Cost: for N tokens of C channels in groups of G: plain, projections 4 N C^2 and exchange 2 N C G multiply-adds an image;
by the Gram matrix of the tokens, 2 N C^2 + 2 C^3 + 2 C^2 G, and neither queries nor keys nor values are stored.
"""

import torch
from torch import Tensor, nn

from mereo.core import Coupling, mechanism
from mereo.core.modes import autocasts, must_be_called
from mereo.core.votes import SameVotes
from mereo.errors import UsageError, check_choice, check_positive, check_probability

METHODS = ("auto", "plain", "gram")
SCALES = ("channels", "tokens")


def _example() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return ChannelGroupAttention(6, 2), (torch.randn(2, 9, 6),)


@mechanism(
    "channel_group",
    family="dense attention",
    over="senders",
    values="shared",
    update="linear",
    source="arXiv:2204.03645",
    promises=("normalised",),
    largest_input=1e12,  # queries times keys, summed over the tokens, must fit float32
    interface="tokens",
    example=_example,
)
class ChannelGroupAttention(nn.Module):
    """Replace each channel by a weighted sum of the channels of its group, by the fit of their maps over the image.

    Q, K, V = X W^T + b   for each group

    S = Q^T K / sqrt(C / groups),   A = softmax(S),   O = V A^T   in each group;   out = O W_o^T + b_o

    Every token passes through the same matrix, which depends on the image only through the Gram matrix of the tokens:

    S = (W_q (X^T X) W_k^T + W_q s b_k^T + b_q (W_k s + N b_k)^T) / sqrt(C / groups),   s = X^T 1

    out = X (W_o A W_v)^T + W_o A b_v + b_o

    Args:
        dim: channels.
        num_groups: of channels; divides `dim`.
        qkv_bias: biases of queries, keys and values.
        scale: "channels" divides the scores by sqrt(C / groups), as the paper does; "tokens" by sqrt(N), so that they
            do not grow with the image.
        method: "plain"; "gram", by the second form; or "auto", which takes "gram" if N >= 4 C, where it is faster.
            Half precision always takes the plain form: the Gram matrix would overflow.
        attn_drop: dropout of the couplings.
        proj_drop: dropout of the output.

    Shapes: tokens (batch, tokens, dim) -> the same; couplings (batch, groups, dim / groups, dim / groups).

    Reads as: couplings[b, g, r, s] is the share of channel s of group g in what its channel r becomes.

    Deviates: the authors' code names the thirds of its projection otherwise than the paper: its first third acts as the
        value, the second as the query and the third as the key. Here they are query, key and value.

    Reference: arXiv:2204.03645, section 3.3.
    """

    def __init__(
        self,
        dim: int,
        num_groups: int,
        *,
        qkv_bias: bool = True,
        scale: str = "channels",
        method: str = "auto",
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive(dim=dim, num_groups=num_groups)
        check_probability(attn_drop=attn_drop, proj_drop=proj_drop)
        check_choice("scale", scale, SCALES)
        check_choice("method", method, METHODS)
        if dim % num_groups:
            raise UsageError(f"dim is {dim} and num_groups {num_groups}; dim must be a multiple of num_groups.")
        self.num_groups, self.scale, self.method = num_groups, scale, method
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.coupling = Coupling("senders", dropout=attn_drop)
        self.coupling.of_places = False
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.proj_drop(self._by_gram(tokens) if self._uses_gram(tokens) else self._plain(tokens))

    def _uses_gram(self, tokens: Tensor) -> bool:
        wide = tokens.dtype in (torch.float32, torch.float64) and not autocasts(tokens)
        if not wide or self.method == "plain" or must_be_called(self.qkv, self.proj):
            return False
        return self.method == "gram" or tokens.shape[1] >= 4 * tokens.shape[2]

    def _factor(self, tokens: Tensor) -> float:
        terms = tokens.shape[1] if self.scale == "tokens" else tokens.shape[2] // self.num_groups
        return max(terms, 1) ** -0.5

    def _plain(self, tokens: Tensor) -> Tensor:
        parts = self.qkv(tokens).unflatten(-1, (3, self.num_groups, -1))
        q, k, v = parts.permute(2, 0, 3, 4, 1).unbind(0)  # (batch, groups, channels, tokens)
        scores = SameVotes(k).agree(q * self._factor(tokens))
        mixed = SameVotes(v).combine(self.coupling(scores))
        return self.proj(mixed.flatten(1, 2).transpose(1, 2))

    def _by_gram(self, tokens: Tensor) -> Tensor:
        groups, number = self.num_groups, tokens.shape[1]
        wq, wk, wv = (w.unflatten(0, (groups, -1)) for w in self.qkv.weight.chunk(3))  # (groups, channels, dim)
        scores = (self.qkv.weight.chunk(3)[0] @ (tokens.transpose(1, 2) @ tokens)).unflatten(1, (groups, -1)) @ wk.mT
        if self.qkv.bias is not None:
            bq, bk, bv = (b.view(groups, -1, 1) for b in self.qkv.bias.chunk(3))  # (groups, channels, 1)
            total = tokens.sum(1).view(-1, 1, tokens.shape[2], 1)
            scores = scores + (wq @ total) @ bk.mT + bq @ (wk @ total + number * bk).mT
        couplings = self.coupling(scores * self._factor(tokens))
        weight = self.proj.weight @ (couplings @ wv).flatten(1, 2)
        bias = self.proj.bias
        if self.qkv.bias is not None:
            bias = bias + (couplings @ bv).flatten(1) @ self.proj.weight.T
        return torch.baddbmm(bias.expand(tokens.shape[0], -1).unsqueeze(1), tokens, weight.mT)

    def extra_repr(self) -> str:
        return f"{self.proj.in_features}, num_groups={self.num_groups}, scale={self.scale!r}"
